"""What failed, why, and the commands that repeat it."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.pages.document import copy_button, section
from nnasync._core.pages.escaping import text
from nnasync.suites.page.verdicts import anchor
from nnasync.suites.results import Finding, Standing, SuiteResult, SuiteRow

_FINE = (Standing.SUCCESS, Standing.SKIPPED)


def failures(result: SuiteResult) -> str:
    """The section: rows that failed, and findings of rows that did not; empty if there are none."""
    parts = [
        _failure(row, anchor(row, result.rows))
        for row in result.rows
        if row.standing not in _FINE or row.findings
    ]
    if not parts:
        return ""
    return section("failed", "What failed, and how to repeat it", "".join(parts))


def _failure(row: SuiteRow, name: str) -> str:
    """A row: what it says unless the findings say the same, and the findings of each command."""
    told = "; ".join(finding.text for finding in row.findings)
    groups: dict[str, list[Finding]] = {}
    for finding in row.findings:
        groups.setdefault(finding.command, []).append(finding)
    findings = "".join(
        _findings(command, found, f"{name}-{index}")
        for index, (command, found) in enumerate(groups.items())
    )
    return (
        f'<article id="{name}"><h3>{text(row.subject)} on {text(row.device)} '
        f'<span class="standing {row.standing.value}">{row.standing.value}</span></h3>'
        f"{f'<p>{text(row.text)}</p>' if row.text != told else ''}{findings}</article>"
    )


def _findings(command: str, findings: Sequence[Finding], name: str) -> str:
    """Returns the findings of one command as HTML."""
    listed = "".join(f"<li>{_finding(each)}</li>" for each in findings)
    if not command:
        return f"<ul>{listed}</ul>"
    return (
        f'<ul>{listed}</ul><div class="command"><pre id="{name}">{text(command)}</pre>'
        f"{copy_button(name)}</div>"
    )


def _finding(finding: Finding) -> str:
    shown = f" <small>shown by <code>{text(finding.file)}</code></small>" if finding.file else ""
    return text(finding.text) + shown
