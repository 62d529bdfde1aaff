"""What differs from an older result: figures beyond their intervals, standings, rows, machines."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.pages.document import chips, section, warning
from nnasync._core.pages.escaping import text
from nnasync._core.pages.tables import number, table, word
from nnasync._core.pages.tables import row as table_row
from nnasync.suites.comparison import FigureChange, SuiteComparison, Trend
from nnasync.suites.page.shown import moment, title, told
from nnasync.suites.results import SuiteRow

_CLEAR = (Trend.WORSE, Trend.BETTER, Trend.CHANGED)
_HEADS = [("", True), ("subject", True), ("device", True), ("figure", True)]
_HEADS += [("before", False), ("after", False), ("change, %", False)]


def differences(found: SuiteComparison) -> str:
    """The section."""
    clear = [change for trend in _CLEAR for change in found.of(trend)]
    parts = [
        _circumstances(found),
        _verdict(found),
        _standings(found.standings),
        _changes(clear, "changes") if clear else "",
        _rows("New rows", found.new),
        _rows("Rows that are gone", found.gone),
        _unsure(found.of(Trend.UNSURE)),
    ]
    return section("compared", f"Since {moment(found.old.began_at)}", "".join(parts))


def _verdict(found: SuiteComparison) -> str:
    is_worse = found.of(Trend.WORSE) or found.standings
    return f'<p class="verdict{" far" if is_worse else ""}">{text(found.summary)}</p>'


def _circumstances(found: SuiteComparison) -> str:
    """Returns which circumstances may explain differences besides the devices themselves."""
    told_of = {"machine": found.machine, "versions": found.versions}
    parts = []
    for what, entries in told_of.items():
        if entries:
            named = {key: f"{a or 'none'} → {b or 'none'}" for key, (a, b) in entries.items()}
            parts.append(warning(f"Other {what} than before:") + chips({**named}))
    if found.old.is_partial:
        parts.append(warning("The older run was ended before its time: rows of it are missing."))
    return "".join(parts)


def _changes(changes: Sequence[FigureChange], name: str) -> str:
    lines = []
    for each in changes:
        ratio = each.ratio
        percent = "" if ratio is None else f"{100 * (ratio - 1):+.1f}"
        cells = [word(each.trend.value, f"trend {each.trend.value}")]
        cells += [word(each.subject), word(each.device), word(title(each.after))]
        cells += [number(told(each.before), each.before.value)]
        cells += [number(told(each.after), each.after.value), number(percent)]
        lines.append(table_row(cells))
    return table(_HEADS, lines, name=name)


def _unsure(changes: Sequence[FigureChange]) -> str:
    if not changes:
        return ""
    return (
        f'<details class="prints"><summary>{len(changes)} figures differ that have no intervals'
        f"</summary>{_changes(changes, 'unsure')}</details>"
    )


def _standings(pairs: Sequence[tuple[SuiteRow, SuiteRow]]) -> str:
    if not pairs:
        return ""
    lines = [
        table_row(
            [
                word(after.subject),
                word(after.device),
                word(before.standing.value, f"standing {before.standing.value}"),
                word(after.standing.value, f"standing {after.standing.value}"),
                word(after.text or before.text, "wide"),
            ]
        )
        for before, after in pairs
    ]
    heads = ("subject", "device", "before", "after", "")
    return f"<h3>Ended otherwise</h3>{table([(head, True) for head in heads], lines)}"


def _rows(head: str, rows: Sequence[SuiteRow]) -> str:
    if not rows:
        return ""
    told_of = "".join(
        f"<li>{text(row.subject)} on {text(row.device)}: {row.standing.value}</li>" for row in rows
    )
    return f"<h3>{head}</h3><ul>{told_of}</ul>"
