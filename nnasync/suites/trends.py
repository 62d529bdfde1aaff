"""Does a series of samples grow? A straight line through it, and how sure its slope is.

Samples that follow each other are alike: a process that has just grown is still large a second
later. Each sample on its own would make the slope look far surer than it is. So the samples after a
settling time are cut into a few batches, each batch gives one point (the medians of its times and
values), and the line goes through these by least squares. With n points the interval of the slope
is, after Student, `slope +- t(n - 2) * s / sqrt(sum((t - mean t)^2))`, s being the standard error
of the points around the line.

A leak is a slope that is surely above zero, and that over the time measured has grown by more than
what is allowed. Both are asked: a surely positive slope of some bytes an hour is nobody's problem,
and a large one that may be chance is no finding.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from nnasync.experiments.intervals import CONFIDENCE, student_t
from nnasync.hal import Struct

__all__ = ["MIN_BATCHES", "Trend", "trend"]

BATCHES = 12
MIN_BATCHES = 4
"""A line through fewer points says nothing of its own precision."""


class Trend(Struct, frozen=True):
    """The slope of a series per second within its interval, its level, and how long it was."""

    slope: float
    low: float
    high: float
    level: float
    seconds: float

    @property
    def grown(self) -> float:
        """By how much the series has surely grown over its time; 0 where it may be chance."""
        return max(0.0, self.low) * self.seconds


def trend(
    times: Sequence[float],
    values: Sequence[float],
    *,
    settle: float = 0.0,
    confidence: float = CONFIDENCE,
) -> Trend | None:
    """The trend of a series from the time `settle` on; None where there are too few samples."""
    kept = [pair for pair in zip(times, values, strict=True) if pair[0] >= settle]
    size = max(1, math.ceil(len(kept) / BATCHES))
    batches = [kept[start : start + size] for start in range(0, len(kept), size)]
    if len(batches) > 1 and len(batches[-1]) * 2 < size:
        batches.pop()
    if len(batches) < MIN_BATCHES:
        return None
    xs = [statistics.median(time for time, _ in batch) for batch in batches]
    ys = [statistics.median(value for _, value in batch) for batch in batches]
    if xs[0] == xs[-1]:
        return None
    fit = statistics.linear_regression(xs, ys)
    middle = statistics.fmean(xs)
    spread = math.fsum((x - middle) ** 2 for x in xs)
    around = math.fsum(
        (y - fit.intercept - fit.slope * x) ** 2 for x, y in zip(xs, ys, strict=True)
    )
    degrees = len(xs) - 2
    half = student_t(confidence, degrees) * math.sqrt(around / degrees / spread)
    return Trend(fit.slope, fit.slope - half, fit.slope + half, ys[0], kept[-1][0] - kept[0][0])
