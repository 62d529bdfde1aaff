"""Does a series of samples grow? A straight line through it, and how sure its slope is.

Samples that follow each other are alike: a process that has just grown is still large a second
later. Each sample on its own would make the slope look far surer than it is. So the samples after a
settling time are cut into a few batches, each batch gives one point (the median of its times and a
quantile of its values), and the line goes through these by least squares. With n points the
interval of the slope is, after Student, `slope +- t(n - 2) * s / sqrt(sum((t - mean t)^2))`, s
being the standard error of the points around the line.

Some quantities depend on something else that is known, as times depend on what others have of the
cores. The line is then a plane: the slope is that at equal company, and its interval is wide where
company came as time went on, for then nothing can tell the two apart.

A leak is a slope that is surely above zero, and that over the time measured has grown by more than
what is allowed. Both are asked: a surely positive slope of some bytes an hour is nobody's problem,
and a large one that may be chance is no finding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nnasync.experiments.intervals import CONFIDENCE, student_t
from nnasync.hal import Array, Struct

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
        """Returns by how much the series has surely grown over its time; 0 if it may be chance."""
        return max(0.0, self.low) * self.seconds

    @property
    def growth(self) -> float:
        """Returns by how much the line rises over its time, where it surely does; else 0."""
        return self.slope * self.seconds if self.low > 0 else 0.0


def trend(
    times: Sequence[float],
    values: Sequence[float],
    *,
    settle: float = 0.0,
    confidence: float = CONFIDENCE,
    company: Sequence[float] | None = None,
    quantile: float = 0.5,
) -> Trend | None:
    """The trend of a series from the time `settle` on; None where there are too few samples.

    `company` is what the values depend on besides, of each sample. `quantile` of the values stands
    for a batch, a low one for what is held all the time, which work in flight only adds to; beside
    company it is the mean.
    """
    rows = zip(times, values, company or [0.0] * len(times), strict=True)
    kept = [row for row in rows if row[0] >= settle]
    batches = _batches(kept)
    if len(batches) < MIN_BATCHES:
        return None
    columns = [np.array(batch).T for batch in batches]
    if company is None:
        xs, zs = (np.array([np.median(each[place]) for each in columns]) for place in (0, 2))
        ys = np.array([np.quantile(each[1], quantile) for each in columns])
    else:  # Means alone depend on each other as samples do.
        xs, ys, zs = np.array([each.mean(axis=1) for each in columns]).T
    fit = _fit(xs, ys, zs, confidence)
    if fit is None:
        return None
    slope, half = fit
    seconds = kept[-1][0] - kept[0][0]
    return Trend(slope, slope - half, slope + half, float(ys[0]), seconds)


def _batches(rows: list[tuple[float, float, float]]) -> list[list[tuple[float, float, float]]]:
    size = max(1, math.ceil(len(rows) / BATCHES))
    batches = [rows[start : start + size] for start in range(0, len(rows), size)]
    if len(batches) > 1 and len(batches[-1]) * 2 < size:
        batches.pop()
    return batches


def _fit(xs: Array, ys: Array, zs: Array, confidence: float) -> tuple[float, float] | None:
    """The slope along `xs` at equal `zs`, and half of its interval; None where all is at once.

    What `zs` tell of `xs` is taken from these first: the slope along the rest is that of the plane.
    """
    known = [np.ones_like(xs)]
    if np.ptp(zs) > 0 and len(xs) > MIN_BATCHES:
        known.append(zs)
    others = np.stack(known, axis=1)
    rest = xs - others @ np.linalg.lstsq(others, xs, rcond=None)[0]
    spread = float(rest @ rest)
    if spread <= 1e-9 * float(np.var(xs)) * len(xs) or not np.ptp(xs):
        return None
    slope = float(rest @ (ys - ys.mean())) / spread
    leaves = ys - slope * xs
    around = leaves - others @ np.linalg.lstsq(others, leaves, rcond=None)[0]
    degrees = len(xs) - 1 - len(known)
    error = math.sqrt(float(around @ around) / degrees / spread)
    return slope, student_t(confidence, degrees) * error
