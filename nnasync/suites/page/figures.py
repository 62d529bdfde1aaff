"""All rows in one table with the figures that most of them have, and intervals as charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nnasync._core.pages.charts import Mark, Series, chart, legend
from nnasync._core.pages.document import copy_button, section
from nnasync._core.pages.scales import Linear, Logarithmic, Scale, Words
from nnasync._core.pages.tables import number, remark, table, word
from nnasync._core.pages.tables import row as table_row
from nnasync.suites.page.shown import cell, is_drawable, shown, title
from nnasync.suites.results import Better, SuiteFigure, SuiteRow

_MOST_COLUMNS = 7
_BESIDE = 5
"""So many subjects have room in one chart."""
_WIDE = 8.0


def figures(rows: Sequence[SuiteRow]) -> str:
    """Both sections; charts only of figures that have intervals."""
    if not rows:
        return ""
    return _table(rows) + _intervals(rows)


def _table(rows: Sequence[SuiteRow]) -> str:
    names = common_titles(rows)
    heads = [("subject", True), ("device", True), ("standing", True), ("s", False)]
    heads += [*((name, False) for name in names), ("", True)]
    lines = []
    for row in rows:
        by_title = {title(figure): figure for figure in row.figures}
        cells = [word(row.subject), word(row.device)]
        cells += [word(row.standing.value, f"standing {row.standing.value}")]
        cells += [number(f"{row.seconds:.1f}", row.seconds)]
        if any(name in by_title for name in names):
            cells += [*(cell(by_title.get(name)) for name in names), word(row.text, "wide")]
        else:
            cells.append(remark(row.text, len(names) + 1))
        lines.append(table_row(cells))
    made = table(heads, lines, name="all-rows")
    has_intervals = any(figure.low is not None for row in rows for figure in row.figures)
    told = "Small figures are intervals. " if has_intervals else ""
    intro = f"<p>{told}A click on a head sorts.</p>"
    copied = f'<div class="bar tools">{copy_button("all-rows")}</div>'
    return section("figures", "All rows", intro + copied + made)


def common_titles(rows: Sequence[SuiteRow]) -> tuple[str, ...]:
    """The figures that at least half of the rows with figures have, in their order.

    Where there are many, they are those of which it is known what is better, then the others.
    """
    counts: dict[str, int] = {}
    judged = set()
    for row in rows:
        for figure in {title(figure): figure for figure in row.figures}.values():
            counts[title(figure)] = counts.get(title(figure), 0) + 1
            if figure.better is not Better.NEITHER:
                judged.add(title(figure))
    told = sum(bool(row.figures) for row in rows)
    names = [name for name, count in counts.items() if 2 * count >= told]
    kept = set(sorted(names, key=lambda name: name not in judged)[:_MOST_COLUMNS])
    return tuple(name for name in names if name in kept)


def _intervals(rows: Sequence[SuiteRow]) -> str:
    devices = tuple(dict.fromkeys(row.device for row in rows))
    charts = [made for name, points in _known(rows).items() for made in _charts(name, points)]
    if not charts:
        return ""
    keys = legend((device, index, "points") for index, device in enumerate(devices))
    grid = f'<div class="charts">{"".join(charts)}</div>'
    return section("intervals", "Figures with their intervals", keys + grid)


_Point = tuple[str, str, int, SuiteFigure]
"""Subject, device, color and figure."""


def _known(rows: Sequence[SuiteRow]) -> dict[str, list[_Point]]:
    """Returns the figures that have an interval, grouped by name."""
    colors = {device: n for n, device in enumerate(dict.fromkeys(row.device for row in rows))}
    found: dict[str, list[_Point]] = {}
    for row in rows:
        for figure in row.figures:
            if is_drawable(figure.value, figure.low, figure.high):
                point = row.subject, row.device, colors[row.device], figure
                found.setdefault(title(figure), []).append(point)
    return found


def _charts(name: str, points: Sequence[_Point]) -> Iterator[str]:
    """Yields the charts of a figure, one for each subject, all with the same vertical axis."""
    values = [v for *_, f in points for v in (f.value, f.low, f.high) if v is not None]
    if min(values) == max(values):
        return  # as where nothing was lost anywhere
    names = tuple(dict.fromkeys(subject for subject, *_ in points))
    y = _upright(min(values), max(values))
    count = math.ceil(len(names) / math.ceil(len(names) / _BESIDE))
    for first in range(0, len(names), count):
        part = names[first : first + count]
        series = [
            Series(device, color, tuple(_marks(points, device, part)), "points")
            for device, color in dict.fromkeys((device, color) for _, device, color, _ in points)
        ]
        yield chart(series, Words(part), y, title=name, x_label="")


def _marks(points: Sequence[_Point], device: str, part: Sequence[str]) -> Iterator[Mark]:
    for subject, where, _, figure in points:
        if where == device and subject in part:
            told = f"{subject} on {device}: {shown(figure.value)}"
            yield Mark(subject, figure.value, figure.low, figure.high, told)


def _upright(low: float, high: float) -> Scale:
    if low > 0 and high / low >= _WIDE:
        return Logarithmic(low / 1.2, high * 1.2)
    margin = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    return Linear(low - margin, high + margin)
