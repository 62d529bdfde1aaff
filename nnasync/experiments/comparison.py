"""Two results beside each other: what changed at the points that both have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from nnasync._core.arguments import check_kind
from nnasync._core.pages.assets import asset
from nnasync._core.pages.tables import number, row, table, word
from nnasync.experiments.figures import Figures, Kind
from nnasync.experiments.intervals import Interval
from nnasync.experiments.results import Results, to_pandas

COMPARED = ("attainment", "goodput_hz", "mean_ms", "p99_ms")


class Change(msgspec.Struct, frozen=True):
    """One measure of one stream at a point that both results have.

    `is_clear` if the 95 % confidence intervals have no value in common, or the values differ where
    one repeat left none.
    """

    values: dict[str, float | str]
    stream: str
    kind: Kind
    measure: str
    before: Interval
    after: Interval

    @property
    def ratio(self) -> float | None:
        """Returns the later mean as a multiple of the earlier one; None where that is 0."""
        return self.after.mean / self.before.mean if self.before.mean else None

    @property
    def is_clear(self) -> bool:
        """Returns whether the difference is more than repeats differ by."""
        return not self.before.overlaps(self.after)


class Comparison(msgspec.Struct, frozen=True):
    """All changes between two results, and how many points each has that the other has not."""

    changes: tuple[Change, ...]
    only_before: int
    only_after: int

    def rows(self) -> list[dict[str, Any]]:
        """Returns the changes as flat rows; half-widths of 95 % intervals end in `_half`."""
        return [_row(change) for change in self.changes]

    def to_pandas(self) -> Any:
        """The rows as a DataFrame.

        Raises:
            InvalidArgument: pandas is not installed.
        """
        return to_pandas(self.rows())

    def __repr__(self) -> str:
        clear = sum(change.is_clear for change in self.changes)
        return f"<Comparison: {clear} of {len(self.changes)} measures differ clearly>"

    # Notebooks show what this returns.
    def _repr_html_(self) -> str:
        rows = self.rows()
        heads = list(rows[0]) if rows else []
        cells = [row([_cell(value) for value in each.values()]) for each in rows]
        words = {key for key, value in (rows[0] if rows else {}).items() if isinstance(value, str)}
        told = table([(head, head in words) for head in heads], cells)
        return f'<style>{asset("style.css")}</style><div class="nnx">{told}</div>'


def compare(before: Results, after: Results) -> Comparison:
    """The measures of all points, streams and kinds of run that two results share."""
    for name, results in (("before", before), ("after", after)):
        check_kind(name, results, Results, "Results, as read_results gives them")
    first = {_key(each): each for each in before.figures()}
    second = {_key(each): each for each in after.figures()}
    shared = [key for key in first if key in second]
    changes = tuple(change for key in shared for change in _changes(first[key], second[key]))
    return Comparison(changes, len(first) - len(shared), len(second) - len(shared))


def _row(change: Change) -> dict[str, Any]:
    return {
        **change.values,
        "stream": change.stream,
        "run": change.kind,
        "measure": change.measure,
        "before": change.before.mean,
        "before_half": change.before.half,
        "after": change.after.mean,
        "after_half": change.after.half,
        "ratio": change.ratio,
        "clear": "yes" if change.is_clear else "no",
    }


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return word(value)
    return number("" if value is None else f"{value:.4g}")


def _key(figures: Figures) -> tuple[Kind, str, tuple[tuple[str, float | str], ...]]:
    return figures.kind, figures.stream, tuple(sorted(figures.values.items()))


def _changes(before: Figures, after: Figures) -> Iterator[Change]:
    for name in COMPARED:
        old, new = before.measures.get(name), after.measures.get(name)
        if old is not None and new is not None:
            yield Change(before.values, before.stream, before.kind, name, old, new)
