"""Each subject: its histograms over one axis for all devices, and all of its figures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from nnasync._core.pages.document import section
from nnasync._core.pages.escaping import text
from nnasync._core.pages.ridges import Ridge, ridges
from nnasync._core.pages.scales import Linear, Logarithmic, Scale
from nnasync._core.pages.tables import row as table_row
from nnasync._core.pages.tables import table, word
from nnasync.suites.page.shown import cell, is_drawable, title
from nnasync.suites.results import Bars, SuiteRow

_WIDE = 4.0


def subjects(rows: Sequence[SuiteRow]) -> str:
    """The section; empty where no row has figures."""
    colors = {device: n for n, device in enumerate(dict.fromkeys(row.device for row in rows))}
    parts = []
    for subject in dict.fromkeys(row.subject for row in rows):
        here = [row for row in rows if row.subject == subject and (row.figures or row.bars)]
        if here:
            charts = f'<div class="charts">{"".join(_histograms(here, colors))}</div>'
            parts.append(f"<article><h3>{text(subject)}</h3>{charts}{_figures(here)}</article>")
    return section("subjects", "By subject", "".join(parts)) if parts else ""


def _figures(rows: Sequence[SuiteRow]) -> str:
    """A table with a column for each row, so that devices stand beside one another."""
    names = tuple(dict.fromkeys(title(figure) for row in rows for figure in row.figures))
    if not names:
        return ""
    by_title = [{title(figure): figure for figure in row.figures} for row in rows]
    heads = [("", True), *((row.device, False) for row in rows)]
    lines = [
        table_row([word(name), *(cell(each.get(name)) for each in by_title)]) for name in names
    ]
    return table(heads, lines)


def _histograms(rows: Sequence[SuiteRow], colors: dict[str, int]) -> list[str]:
    found: dict[tuple[str, str], list[Ridge]] = {}
    for row in rows:
        for bars in row.bars:
            if (ridge := _ridge(row.device, colors[row.device], bars)) is not None:
                found.setdefault((bars.name, bars.unit), []).append(ridge)
    return [
        ridges(each, _along(each), title=name, x_label=unit) for (name, unit), each in found.items()
    ]


def _ridge(device: str, color: int, bars: Bars) -> Ridge | None:
    """Returns a ridge line of a histogram; None where a result has something else there."""
    is_one = is_drawable(bars.start, bars.step) and bars.step > 0
    counts = tuple(max(count, 0) for count in bars.counts)
    if not is_one or not any(counts):
        return None
    first = next(index for index, count in enumerate(counts) if count)
    last = len(counts) - next(index for index, count in enumerate(reversed(counts)) if count)
    edges = tuple(bars.start + bars.step * index for index in range(first, last + 1))
    is_growing = all(low < high for low, high in itertools.pairwise(edges))
    return Ridge(device, color, edges, counts[first:last]) if is_growing else None


def _along(rows: Sequence[Ridge]) -> Scale:
    low, high = min(row.edges[0] for row in rows), max(row.edges[-1] for row in rows)
    return Logarithmic(low, high) if low > 0 and high / low >= _WIDE else Linear(low, high)
