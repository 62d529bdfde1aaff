"""Tables of a report: the figures of every point, and how far the simulation was."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.pages.escaping import text
from nnasync._core.pages.tables import number, row, table, word
from nnasync.experiments.fidelity import Fidelity
from nnasync.experiments.figures import Figures
from nnasync.experiments.intervals import Interval
from nnasync.experiments.report.axes import Value, shown

_COLUMNS = (
    ("attainment", "deadlines met, %", 100.0, 2),
    ("goodput_hz", "goodput, 1/s", 1.0, 1),
    ("mean_ms", "mean, ms", 1.0, 3),
    ("p50_ms", "p50, ms", 1.0, 3),
    ("p99_ms", "p99, ms", 1.0, 3),
    ("p999_ms", "p99.9, ms", 1.0, 3),
)
_COUNTS = ("submitted", "met", "late", "expired", "refused", "displaced", "cancelled", "pending")


def figures_table(figures: Sequence[Figures], name: str = "") -> str:
    """Returns the table of all figures, with a row for each point, kind and stream.

    `name` is the id of the table.
    """
    keys = tuple(dict.fromkeys(key for each in figures for key in each.values))
    words = {key for key in keys if any(isinstance(f.values.get(key), str) for f in figures)}
    heads = [*keys, "stream", "run", *(title for _, title, _, _ in _COLUMNS), *_COUNTS]
    texts = {*words, "stream", "run"}
    rows = []
    for each in figures:
        cells = [(shown(each.values.get(key, "")), key in words) for key in keys]
        cells += [(each.stream, True), (each.kind, True)]
        shown_cells = [word(value) if is_word else number(text(value)) for value, is_word in cells]
        shown_cells += [
            number(_told(each.measures.get(measure), factor, digits))
            for measure, _, factor, digits in _COLUMNS
        ]
        shown_cells += [number(str(each.counts[count])) for count in _COUNTS]
        rows.append(row(shown_cells))
    return table([(head, head in texts) for head in heads], rows, name=name)


def fidelity_table(errors: Sequence[Fidelity], name: str = "") -> str:
    """Returns the table of the simulation's errors and verdicts; errors beyond limits stand out."""
    keys = tuple(dict.fromkeys(key for each in errors for key in each.values))
    heads = [*keys, "stream", "verdict", "mean, %", "p99, %", "deadlines met, points"]
    rows = []
    for each in errors:
        cells = [_swept(each.values.get(key, "")) for key in keys]
        cells += [word(each.stream), word(each.told)]
        far = each.far() if each.verdict == "outside" else ()
        for what in ("mean", "p99", "attainment"):
            told = _signed(each.intervals.get(what))
            cells.append(number(told, kind="far" * (what in far)))
        rows.append(row(cells))
    words = {key for key in keys if any(isinstance(e.values.get(key), str) for e in errors)}
    words |= {"stream", "verdict"}
    return table([(head, head in words) for head in heads], rows, name=name)


def _swept(value: Value) -> str:
    return word(value) if isinstance(value, str) else number(text(shown(value)))


def _signed(found: Interval | None) -> str:
    """Returns an error with its sign, in percent or in points."""
    if found is None:
        return ""
    half = "" if found.half is None else f" <small>±{found.half:.1%}</small>".replace("%", "")
    return f"{100 * found.mean:+.1f}{half}"


def _told(found: Interval | None, factor: float, digits: int) -> str:
    if found is None:
        return ""
    half = "" if found.half is None else f" <small>±{found.half * factor:.{digits}f}</small>"
    return f"{found.mean * factor:.{digits}f}{half}"
