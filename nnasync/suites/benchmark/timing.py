"""How long what is measured, and what is made of the times.

The rules are those of Android's benchmark: inferences are measured until the sum of the times of
the invocations alone reaches a limit, after a warm-up of which nothing is kept; compilations
likewise, or until there are enough. One factor scales all of them, and the share of the data.

Times that follow one another are not independent: what disturbs one disturbs its neighbors. The
interval of a mean is therefore that of the means of some batches of consecutive times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from nnasync.errors import InvalidArgument
from nnasync.experiments.intervals import Interval, interval
from nnasync.hal import Array
from nnasync.suites.results import Bars, Better, SuiteFigure

BUCKETS = 32
_BATCHES = 10
_PERCENTILES = (50, 95, 99)


class TimingRules(msgspec.Struct, frozen=True):
    """Limits of the sums of what is measured, in seconds.

    The whole data set must be done within `data_limit_s`. There are at most `compilations` of each
    kind.
    """

    warm_up_s: float = 2.0
    run_s: float = 10.0
    data_limit_s: float = 300.0
    compile_warm_up_s: float = 2.0
    compile_s: float = 10.0
    compilations: int = 100

    def scaled(self, scale: float) -> TimingRules:
        """Returns the rules `scale` times as long; raises InvalidArgument unless above 0."""
        if not (math.isfinite(scale) and scale > 0):
            raise InvalidArgument(f"a benchmark is scaled by a positive number, not {scale}")
        return TimingRules(
            self.warm_up_s * scale,
            self.run_s * scale,
            self.data_limit_s * scale,
            self.compile_warm_up_s * scale,
            self.compile_s * scale,
            max(3, math.ceil(self.compilations * scale)),
        )

    @property
    def patience_s(self) -> float:
        """Returns how long a device may take for all of it before it is taken to hang."""
        runs = self.warm_up_s + max(self.run_s, self.data_limit_s)
        return 120 + 4 * (runs + 3 * (self.compile_warm_up_s + self.compile_s))


def latency_figures(
    name: str, seconds: Sequence[float], base: Sequence[float] = ()
) -> tuple[SuiteFigure, ...]:
    """Returns figures of times: mean with its interval, deviation and percentiles in ms.

    The mean is worse than that of `base`, if that is given, where their intervals tell so.
    """
    if not seconds:
        return ()
    times = np.asarray(seconds) * 1e3
    mean = batch_interval(times)
    is_worse = is_slower(seconds, base) if base else None
    less = Better.LESS
    low, high = (None, None) if mean.half is None else (max(0.0, mean.low), mean.high)
    figures = [
        SuiteFigure(f"{name} mean", mean.mean, "ms", low, high, less, is_worse),
        SuiteFigure(f"{name} deviation", float(times.std()), "ms"),
    ]
    figures += [
        SuiteFigure(f"{name} p{share}", float(np.percentile(times, share)), "ms", better=less)
        for share in _PERCENTILES
    ]
    return (*figures, SuiteFigure(f"{name} count", len(times)))


def histogram(name: str, seconds: Sequence[float]) -> Bars:
    """32 buckets from the least time to the longest, in milliseconds."""
    times = np.asarray(seconds, float) * 1e3
    start = float(times.min())
    step = (float(times.max()) - start) / (BUCKETS - 1)
    places = np.zeros(len(times), int) if step == 0 else np.floor((times - start) / step)
    counts = np.bincount(np.minimum(places, BUCKETS - 1).astype(int), minlength=BUCKETS)
    return Bars(name, "ms", start, step, tuple(map(int, counts)))


def batch_interval(times: Array) -> Interval:
    """The interval of the mean of times that follow one another."""
    batches = np.array_split(times, min(_BATCHES, len(times)))
    found = interval([float(batch.mean()) for batch in batches])
    if found is None:
        raise InvalidArgument("there are no times to take the mean of")
    return msgspec.structs.replace(found, mean=float(times.mean()))


def is_slower(seconds: Sequence[float], base: Sequence[float]) -> bool | None:
    """Returns whether times are longer than others beyond doubt; None where there are too few."""
    mine, other = batch_interval(np.asarray(seconds)), batch_interval(np.asarray(base))
    if mine.half is None or other.half is None:
        return None
    return mine.mean - other.mean > math.hypot(mine.half, other.half)
