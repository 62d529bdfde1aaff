"""Latencies of any number of requests in little memory: a histogram, exact but for its buckets.

Each bucket is 1 % wide, so a quantile is told to within 1 %; count, mean, variance, least and most
are exact. Memory depends on the range of the latencies alone: from a microsecond to a minute it is
some 1,800 buckets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from nnasync.errors import ExperimentError

_WIDTH = 1.01
_LOG_WIDTH = math.log(_WIDTH)
_BUCKETS = math.ceil(63 * math.log(2) / _LOG_WIDTH) + 1


class Latencies(msgspec.Struct, frozen=True):
    """Latencies of the requests that completed, in nanoseconds.

    `buckets` are pairs of an upper border and the number of latencies up to it and above the bucket
    before; those without any are left out.
    """

    count: int = 0
    mean_ns: float = 0.0
    variance_ns2: float = 0.0
    least_ns: int = 0
    most_ns: int = 0
    buckets: tuple[tuple[int, int], ...] = ()

    def __repr__(self) -> str:
        parts = {"mean": self.mean_ns, "p50": self.p50_ns, "p99": self.p99_ns}
        told = ", ".join(f"{name} {value / 1e6:.4g} ms" for name, value in parts.items())
        return f"<Latencies of {self.count} requests{f': {told}' if self.count else ''}>"

    def quantile(self, share: float) -> float:
        """Returns the latency that this share of requests (0 to 1) does not exceed.

        It is NaN without requests. Raises ExperimentError for a share outside of 0 to 1.
        """
        if not 0 <= share <= 1:
            raise ExperimentError(f"a quantile is asked for at {share:g}, and must be at 0 to 1")
        if not self.count:
            return math.nan
        if share == 0:
            return float(self.least_ns)
        rank, below = share * self.count, 0
        for upper_ns, count in self.buckets:
            below += count
            if below >= rank:
                return float(min(upper_ns, self.most_ns))
        return float(self.most_ns)

    @property
    def p50_ns(self) -> float:
        """Returns the median latency."""
        return self.quantile(0.5)

    @property
    def p99_ns(self) -> float:
        """Returns the 99th percentile of the latencies."""
        return self.quantile(0.99)

    @property
    def p999_ns(self) -> float:
        """Returns the 99.9th percentile of the latencies."""
        return self.quantile(0.999)

    def cumulative(self) -> tuple[tuple[float, float], ...]:
        """Returns the distribution function.

        It is given as pairs of a latency and the share of requests up to it.
        """
        below, found = 0, []
        for upper_ns, count in self.buckets:
            below += count
            found.append((float(min(upper_ns, self.most_ns)), below / self.count))
        return tuple(found)


class LatencyHistogram:
    """Counts any number of latencies in memory that does not grow with them."""

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(_BUCKETS, np.int64)
        self._count = self._sum_ns = 0
        self._mean_ns = self._squares_ns2 = 0.0
        self._least_ns, self._most_ns = 2**63 - 1, 0

    def add(self, latencies_ns: Sequence[int]) -> None:
        """Counts some latencies; those below 1 ns count as 1 ns."""
        if not latencies_ns:
            return
        values = np.maximum(np.array(latencies_ns, np.int64), 1)
        numbers = np.ceil(np.log(values) / _LOG_WIDTH).astype(np.int64)
        self._counts += np.bincount(numbers, minlength=_BUCKETS)
        self._least_ns = min(self._least_ns, int(values.min()))
        self._most_ns = max(self._most_ns, int(values.max()))
        self._combine(len(values), float(values.mean()), float(values.var()))
        self._sum_ns += sum(latencies_ns)

    def latencies(self) -> Latencies:
        """Returns the distribution of all latencies that were counted so far."""
        if not self._count:
            return Latencies()
        filled = np.flatnonzero(self._counts).tolist()
        return Latencies(
            count=self._count,
            mean_ns=self._sum_ns / self._count,
            variance_ns2=self._squares_ns2 / self._count,
            least_ns=self._least_ns,
            most_ns=self._most_ns,
            buckets=tuple((math.ceil(_WIDTH**i), int(self._counts[i])) for i in filled),
        )

    def _combine(self, count: int, mean_ns: float, variance_ns2: float) -> None:
        """Combines mean and variance with those of a further part by Chan's formula."""
        total = self._count + count
        apart_ns = mean_ns - self._mean_ns
        self._squares_ns2 += variance_ns2 * count + apart_ns**2 * self._count * count / total
        self._mean_ns += apart_ns * count / total
        self._count = total
