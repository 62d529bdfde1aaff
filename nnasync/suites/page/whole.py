"""The page: verdicts by device, what failed, figures, and each subject with its histograms.

It holds all that it needs, so that it can be mailed, kept with a build and opened from a disk.
Names of subjects, devices and files are anybody's: all of them pass through `text`.
"""

from __future__ import annotations

from collections import Counter

from nnasync._core.pages.assets import asset
from nnasync._core.pages.document import chips, copy_button, document, warning
from nnasync._core.pages.escaping import text
from nnasync.suites.comparison import compare_suites
from nnasync.suites.page.differences import differences
from nnasync.suites.page.failures import failures
from nnasync.suites.page.figures import figures
from nnasync.suites.page.shown import moment
from nnasync.suites.page.subjects import subjects
from nnasync.suites.page.verdicts import verdicts
from nnasync.suites.results import Standing, SuiteResult

SECTIONS = ("compared", "verdicts", "failed", "figures", "intervals", "subjects")
"""Ids of the sections, where they are there."""


def page(result: SuiteResult, old: SuiteResult | None = None) -> str:
    """The whole page."""
    compared = None if old is None else compare_suites(old, result)
    parts = [
        _header(result),
        "" if compared is None else differences(compared),
        verdicts(result.rows),
        failures(result),
        figures(result.rows),
        subjects(result.rows),
        _footer(result),
    ]
    title = f"{result.suite}: {result.standing.value}"
    return document(title, "\n".join(parts), style=asset("suites.css", "nnasync.suites.page"))


def _header(result: SuiteResult) -> str:
    counts = Counter(row.standing for row in result.rows)
    told: dict[str, object] = {
        "devices": len({row.device for row in result.rows}),
        "subjects": len({row.subject for row in result.rows}),
    }
    told |= {standing.value: counts[standing] for standing in Standing if counts[standing]}
    told |= {"begun": moment(result.began_at), "took": _duration(result.seconds)}
    if "processor" in result.machine:
        told["machine"] = result.machine["processor"]
    partial = warning("This run was ended before its time: rows are missing.")
    return (
        f"<header><h1>nnasync {text(result.suite)}</h1>{chips(told)}"
        f"{partial if result.is_partial else ''}"
        f"{'' if result.rows else warning('There are no rows.')}</header>"
    )


def _footer(result: SuiteResult) -> str:
    return (
        '<footer><h2>How to repeat it</h2><div class="command">'
        f'<pre id="command">{text(result.command)}</pre>{copy_button("command")}</div>'
        f"<h2>Where it ran</h2>{chips({**result.machine})}{chips({**result.versions})}</footer>"
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
