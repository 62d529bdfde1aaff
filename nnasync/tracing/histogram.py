"""Histograms of durations, as Prometheus reads them."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence

from nnasync.tracing.families import Sample

BOUNDS_S = (*(m * 10.0**e for e in range(-5, 1) for m in (1, 2.5, 5)), 10.0)
"""Upper bounds of the buckets of histograms, from 10 microseconds to 10 seconds."""


class Histogram:
    """Counts by bucket, each without those of the buckets below; and their sum."""

    __slots__ = ("_bounds_s", "counts", "total_s")

    def __init__(self, bounds_s: Sequence[float] = BOUNDS_S) -> None:
        """`bounds_s` are the upper bounds of the buckets; there is one more beyond them."""
        self._bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration; what is negative counts as 0."""
        seconds = max(0.0, seconds)
        self.counts[bisect.bisect_left(self._bounds_s, seconds)] += 1
        self.total_s += seconds

    def samples(self, labels: tuple[tuple[str, str], ...]) -> Iterator[Sample]:
        """Yields the histogram's samples for a family."""
        reached = 0
        for bound_s, count in zip((*self._bounds_s, math.inf), self.counts, strict=True):
            reached += count
            yield Sample("_bucket", (*labels, ("le", number(bound_s))), reached)
        yield Sample("_sum", labels, self.total_s)
        yield Sample("_count", labels, reached)


def number(value: float) -> str:
    """A number as metrics have it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
