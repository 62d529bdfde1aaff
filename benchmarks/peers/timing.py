"""Timed calls, synchronous and awaited, and the statistics of their rounds; microseconds."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from benchmarks._report import percentile

__all__ = ["SETTLE_S", "awaited_us", "called_us", "geometric_mean", "middle"]

SETTLE_S = 0.02
"""Pause before a contestant's turn, in which threads of the last one's engine stop spinning."""
LEAST = 5
WARM_UP = 3


def called_us(call: Callable[[], object], seconds: float) -> list[float]:
    """Returns the durations of repeated calls over about so long, at least five."""
    clock = time.perf_counter_ns
    for _ in range(WARM_UP):
        call()
    samples: list[float] = []
    until = clock() + int(seconds * 1e9)
    while True:
        started = clock()
        call()
        ended = clock()
        samples.append((ended - started) / 1e3)
        if ended >= until and len(samples) >= LEAST:
            return samples


async def awaited_us(call: Callable[[], Awaitable[object]], seconds: float) -> list[float]:
    """Returns the durations of repeated awaits over about so long, at least five."""
    clock = time.perf_counter_ns
    for _ in range(WARM_UP):
        await call()
    samples: list[float] = []
    until = clock() + int(seconds * 1e9)
    while True:
        started = clock()
        await call()
        ended = clock()
        samples.append((ended - started) / 1e3)
        if ended >= until and len(samples) >= LEAST:
            return samples


def middle(values: Sequence[float]) -> float:
    """Returns the median."""
    return percentile(values, 0.5)


def geometric_mean(values: Sequence[float]) -> float:
    """Returns the geometric mean."""
    product = 1.0
    for value in values:
        product *= value ** (1 / len(values))
    return product
