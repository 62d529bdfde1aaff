"""What failed, why, and the commands that repeat it."""

from __future__ import annotations

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
    findings = "".join(
        _finding(finding, f"{name}-{index}") for index, finding in enumerate(row.findings)
    )
    return (
        f'<article id="{name}"><h3>{text(row.subject)} on {text(row.device)} '
        f'<span class="standing {row.standing.value}">{row.standing.value}</span></h3>'
        f"<p>{text(row.text)}</p>{f'<ul>{findings}</ul>' if findings else ''}</article>"
    )


def _finding(finding: Finding, name: str) -> str:
    parts = [text(finding.text)]
    if finding.file:
        parts.append(f" <small>shown by <code>{text(finding.file)}</code></small>")
    if finding.command:
        parts.append(
            f'<div class="command"><pre id="{name}">{text(finding.command)}</pre>'
            f"{copy_button(name)}</div>"
        )
    return f"<li>{''.join(parts)}</li>"
