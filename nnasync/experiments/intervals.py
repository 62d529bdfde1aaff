"""Confidence intervals of what repeats of an experiment gave, after Student.

Repeats have seeds of their own, so their figures are independent, and each is a mean or a quantile
of many requests, so near enough to a normal distribution. The interval is then the mean, give or
take `t * s / sqrt(n)`. The distribution of t has a closed form for whole degrees of freedom
(Abramowitz and Stegun, 26.7.3 and 26.7.4), which is turned around by bisection.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import msgspec

CONFIDENCE = 0.95
_BISECTIONS = 60


class Interval(msgspec.Struct, frozen=True):
    """A mean over `count` repeats; the true one is within `half` of it, with 95 % confidence.

    Where another confidence was asked for, it is with that. `half` is None where there was one
    repeat only, which says nothing of its own precision.
    """

    mean: float
    half: float | None
    count: int

    @property
    def low(self) -> float:
        """Returns the lower end; the mean itself where the width is unknown."""
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        """Returns the upper end; the mean itself where the width is unknown."""
        return self.mean + (self.half or 0.0)

    def overlaps(self, other: Interval) -> bool:
        """Returns whether the two intervals have values in common."""
        return self.low <= other.high and other.low <= self.high


def interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval | None:
    """Returns the confidence interval of the mean of `values`; None where there are none."""
    count = len(values)
    if not count:
        return None
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = student_t(confidence, count - 1) * math.sqrt(variance / count)
    return Interval(mean, half, count)


@functools.lru_cache
def student_t(confidence: float, degrees: int) -> float:
    """Returns the t that a Student variable exceeds, up or down, with chance 1 - confidence."""
    low, high = 0.0, math.pi / 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.tan((low + high) / 2) * math.sqrt(degrees)


def _within(angle: float, degrees: int) -> float:
    """Returns the probability that the variable is within `tan(angle) * sqrt(degrees)` of zero."""
    square = math.cos(angle) ** 2
    is_odd = degrees % 2 == 1
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for index in range(3 if is_odd else 2, degrees + 1, 2):
        total += term
        term *= square * (index - 1) / index
    if is_odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
