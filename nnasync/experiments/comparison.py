"""Two results beside each other: what changed at the points that both have."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from nnasync.experiments.figures import Figures, Kind
from nnasync.experiments.intervals import Interval
from nnasync.experiments.results import Results

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
        """The later mean as a multiple of the earlier one."""
        return self.after.mean / self.before.mean if self.before.mean else None

    @property
    def is_clear(self) -> bool:
        """Whether the difference is more than what repeats differ by."""
        return not self.before.overlaps(self.after)


class Comparison(msgspec.Struct, frozen=True):
    """All changes, and how many points of each result the other one does not have."""

    changes: tuple[Change, ...]
    only_before: int
    only_after: int


def compare(before: Results, after: Results) -> Comparison:
    """The measures of all points, streams and kinds of run that two results share."""
    first = {_key(each): each for each in before.figures()}
    second = {_key(each): each for each in after.figures()}
    shared = [key for key in first if key in second]
    changes = tuple(change for key in shared for change in _changes(first[key], second[key]))
    return Comparison(changes, len(first) - len(shared), len(second) - len(shared))


def _key(figures: Figures) -> tuple[Kind, str, tuple[tuple[str, float | str], ...]]:
    return figures.kind, figures.stream, tuple(sorted(figures.values.items()))


def _changes(before: Figures, after: Figures) -> Iterator[Change]:
    for name in COMPARED:
        old, new = before.measures.get(name), after.measures.get(name)
        if old is not None and new is not None:
            yield Change(before.values, before.stream, before.kind, name, old, new)
