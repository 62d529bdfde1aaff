"""Two results of a suite beside one another: what got better or worse beyond doubt.

A figure is better or worse only where both results state its interval and these do not overlap:
for two 95 % intervals of independent runs that happens by chance in fewer than one case in a
hundred. Figures without intervals that are not the same are listed as differences, without a word
on which is better. Rows are told apart by subject, device and how often the pair came before.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import msgspec

from nnasync.suites.results import Better, SuiteFigure, SuiteResult, SuiteRow

_Key = tuple[str, str, int]


class Trend(enum.Enum):
    """What became of a figure."""

    WORSE = "worse"
    BETTER = "better"
    CHANGED = "changed"
    """Beyond its interval, and neither way of it is better."""
    UNSURE = "unsure"
    """Not the same, and no interval tells whether that means anything."""
    SAME = "same"


class FigureChange(msgspec.Struct, frozen=True):
    """A figure of a row before and after."""

    subject: str
    device: str
    before: SuiteFigure
    after: SuiteFigure
    trend: Trend

    @property
    def ratio(self) -> float | None:
        """After over before; None where that says nothing."""
        if self.before.value == 0 or not math.isfinite(self.before.value + self.after.value):
            return None
        return self.after.value / self.before.value


class SuiteComparison(msgspec.Struct, frozen=True):
    """What differs between two results.

    `changes` are all figures that both have. `standings` are rows, before and after, that ended
    otherwise. `machine` and `versions` are what differs, with "" for what is not stated.
    """

    old: SuiteResult
    changes: tuple[FigureChange, ...]
    standings: tuple[tuple[SuiteRow, SuiteRow], ...]
    new: tuple[SuiteRow, ...]
    gone: tuple[SuiteRow, ...]
    machine: dict[str, tuple[str, str]]
    versions: dict[str, tuple[str, str]]

    def of(self, trend: Trend) -> tuple[FigureChange, ...]:
        """The figures of which that became."""
        return tuple(change for change in self.changes if change.trend is trend)

    @property
    def summary(self) -> str:
        """Returns two sentences that count what got better or worse, is new or is gone."""
        counts = {trend: len(self.of(trend)) for trend in Trend}
        return (
            f"Since {self.old.began_at} {counts[Trend.WORSE]} of {len(self.changes)} figures got "
            f"worse and {counts[Trend.BETTER]} better beyond their intervals; "
            f"{counts[Trend.UNSURE]} differ that have none. {len(self.standings)} rows ended "
            f"otherwise, {len(self.new)} are new and {len(self.gone)} are gone."
        )


def compare_suites(old: SuiteResult, new: SuiteResult) -> SuiteComparison:
    """Returns the differences between an older result and a newer one."""
    before, after = _keyed(old.rows), _keyed(new.rows)
    both = [(before[key], row) for key, row in after.items() if key in before]
    return SuiteComparison(
        old,
        changes=tuple(change for rows in both for change in _changes(*rows)),
        standings=tuple(rows for rows in both if rows[0].standing is not rows[1].standing),
        new=tuple(row for key, row in after.items() if key not in before),
        gone=tuple(row for key, row in before.items() if key not in after),
        machine=_differences(old.machine, new.machine),
        versions=_differences(old.versions, new.versions),
    )


def trend_of(before: SuiteFigure, after: SuiteFigure) -> Trend:
    """Returns the trend of a figure; figures without intervals that differ are UNSURE."""
    if before.value == after.value or (math.isnan(before.value) and math.isnan(after.value)):
        return Trend.SAME
    known = _interval(before), _interval(after)
    if known[0] is None or known[1] is None:
        return Trend.UNSURE
    (low_before, high_before), (low_after, high_after) = known[0], known[1]
    if low_after <= high_before and low_before <= high_after:
        return Trend.SAME
    if after.better is Better.NEITHER:
        return Trend.CHANGED
    is_more = low_after > high_before
    return Trend.BETTER if is_more == (after.better is Better.MORE) else Trend.WORSE


def _interval(figure: SuiteFigure) -> tuple[float, float] | None:
    """The interval of a figure, None where it has none that holds its value."""
    if figure.low is None or figure.high is None or not figure.low <= figure.value <= figure.high:
        return None
    return figure.low, figure.high


def _changes(before: SuiteRow, after: SuiteRow) -> list[FigureChange]:
    known = {(figure.name, figure.unit): figure for figure in before.figures}
    return [
        FigureChange(after.subject, after.device, old, figure, trend_of(old, figure))
        for figure in after.figures
        if (old := known.get((figure.name, figure.unit))) is not None
    ]


def _keyed(rows: Sequence[SuiteRow]) -> dict[_Key, SuiteRow]:
    seen: dict[tuple[str, str], int] = {}
    keyed = {}
    for row in rows:
        pair = row.subject, row.device
        keyed[*pair, seen.get(pair, 0)] = row
        seen[pair] = seen.get(pair, 0) + 1
    return keyed


def _differences(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Returns the facts on which two machines differ, except the load of the moment."""
    return {
        key: (before.get(key, ""), after.get(key, ""))
        for key in (before | after)
        if before.get(key, "") != after.get(key, "") and key != "load"
    }
