"""How each subject ended on each device, as a matrix."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.pages.document import section
from nnasync._core.pages.escaping import text
from nnasync._core.pages.tables import row as table_row
from nnasync._core.pages.tables import table, word
from nnasync.suites.results import Standing, SuiteRow, worst_of


def verdicts(rows: Sequence[SuiteRow]) -> str:
    """The section; a cell leads to what failed there."""
    if not rows:
        return ""
    devices = tuple(dict.fromkeys(row.device for row in rows))
    places: dict[tuple[str, str], list[SuiteRow]] = {}
    for row in rows:
        places.setdefault((row.subject, row.device), []).append(row)
    lines = []
    for subject in dict.fromkeys(row.subject for row in rows):
        cells = [word(subject)]
        cells += [_cell(places.get((subject, device), []), rows) for device in devices]
        lines.append(table_row(cells))
    heads = [("subject", True), *((device, True) for device in devices)]
    return section("verdicts", "Verdicts", table(heads, lines, name="matrix"))


def _cell(here: Sequence[SuiteRow], rows: Sequence[SuiteRow]) -> str:
    """The worst standing of a place; empty where nothing was run."""
    if not here:
        return word("")
    standing = worst_of(here)
    worst = next(row for row in here if row.standing is standing)
    told = text(standing.value)
    if len(here) > 1:
        count = sum(row.standing is standing for row in here)
        told += f" <small>{count} of {len(here)}</small>"
    if any(figure.is_worse for row in here for figure in row.figures):
        told += " <small>worse than the baseline</small>"
    if any(row.is_baseline for row in here):
        told += " <small>baseline</small>"
    if standing not in (Standing.SUCCESS, Standing.SKIPPED):
        told = f'<a href="#{anchor(worst, rows)}">{told}</a>'
    why = f' title="{text(worst.text)}"' if worst.text else ""
    return f'<td class="word standing {standing.value}"{why}>{told}</td>'


def anchor(row: SuiteRow, rows: Sequence[SuiteRow]) -> str:
    """The id of what is told of a row."""
    return f"row-{next(index for index, each in enumerate(rows) if each is row)}"
