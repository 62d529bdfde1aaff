"""What samples of a soak come to: the slopes of what a process holds and how fast it answers.

Pure: times are whatever the samples say, so invented series are judged like hours of load.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from nnasync.hal import Struct
from nnasync.suites.results import Better, SuiteFigure
from nnasync.suites.trends import Trend, trend

__all__ = ["SoakSample", "judge"]

MIB = 1 << 20
HOUR_S = 3600.0
STARVED = 0.9
"""Where others had so much of the cores, a process hardly did its load: no sample of it."""
LOW_QUANTILE = 0.25
"""Stands for samples of what is held: what is in flight only adds to it."""


class SoakSample(Struct, frozen=True):
    """A process after `at_s`: the least that it held since the last sample, the median of calls.

    `foreign` is the share of the cores that others had.
    """

    at_s: float
    memory_bytes: int
    descriptors: int
    threads: int
    latency_ms: float | None = None
    foreign: float = 0.0


class _Quantity(Struct, frozen=True):
    """Something that must not grow by more than a share of its level, and than `least`.

    In less than an hour it may grow by that part of the share only. `is_shared` tells of what gets
    worse where others want the same cores.
    """

    name: str
    unit: str
    value: Callable[[SoakSample], float | None]
    share: float
    least: float
    is_shared: bool = False


_QUANTITIES = (
    _Quantity("memory", "MiB", lambda each: each.memory_bytes / MIB, 0.01, 1.0),
    _Quantity("descriptors", "", lambda each: float(each.descriptors), 0.0, 2.0),
    _Quantity("threads", "", lambda each: float(each.threads), 0.0, 2.0),
    _Quantity("latency", "ms", lambda each: each.latency_ms, 0.25, 0.05, is_shared=True),
)


def judge(
    samples: Sequence[SoakSample], settle_s: float
) -> tuple[tuple[SuiteFigure, ...], list[str]]:
    """The slopes after the settling time with their intervals, and those that are findings.

    Samples of times in which others had nearly all of the cores are left out, and counted.
    """
    kept = [each for each in samples if each.foreign < STARVED]
    figures = _company(samples, len(samples) - len(kept))
    faults: list[str] = []
    for quantity in _QUANTITIES:
        seen = _trend_of(quantity, kept, settle_s)
        if seen is None:
            continue
        unit = f"{quantity.unit}/h" if quantity.unit else "1/h"
        slope, low, high = (each * HOUR_S for each in (seen.slope, seen.low, seen.high))
        hours = min(1.0, seen.seconds / HOUR_S)
        grows = seen.growth > max(quantity.least, quantity.share * seen.level * hours)
        name = f"slope of {quantity.name}"
        figures.append(SuiteFigure(name, slope, unit, low, high, Better.LESS, grows))
        if grows:
            faults.append(
                f"{quantity.name} grows by {slope:.3g} {unit} (95 %: {low:.3g} to {high:.3g})"
            )
    return tuple(figures), faults


def _company(samples: Sequence[SoakSample], left_out: int) -> list[SuiteFigure]:
    """Returns figures: the share of cores that others had, and the samples left out for it."""
    if not samples:
        return []
    others = 100 * statistics.median(each.foreign for each in samples)
    figures = [SuiteFigure("cores that others had, median", others, "%", better=Better.LESS)]
    if left_out:
        figures.append(SuiteFigure("samples left out, as others had all cores", left_out))
    return figures


def _trend_of(quantity: _Quantity, samples: Sequence[SoakSample], settle_s: float) -> Trend | None:
    known = [(each, value) for each in samples if (value := quantity.value(each)) is not None]
    return trend(
        [each.at_s for each, _ in known],
        [value for _, value in known],
        settle=settle_s,
        company=[each.foreign for each, _ in known] if quantity.is_shared else None,
        quantile=0.5 if quantity.is_shared else LOW_QUANTILE,
    )
