"""When requests come: the arrival processes of a stream.

Open arrivals have their times from the process alone, whatever the system does with the requests;
so a system that falls behind is told by its latencies (no coordinated omission). In a closed loop
the next request of a caller depends on the answer to its last one.

`blocks(rng)` of an open process yields planned times in nanoseconds from the start of the run, in
arrays that never go back in time, until the process ends, if it does. The sequence depends on the
generator alone, so the same seed gives the same requests to every policy, simulated or real.

Gamma interarrivals of a given coefficient of variation are what serving papers scale burstiness by
(AlpaServe, Shepherd); a CV of 1 is Poisson. On-off is the interrupted Poisson process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from nnasync.errors import ExperimentError
from nnasync.experiments.checks import (
    MOST_CALLERS,
    Kind,
    at_least,
    positive,
    startable,
    variation,
    whole_ns,
)
from nnasync.experiments.traces import TraceBlock, TraceColumns, read_trace

Times: TypeAlias = NDArray[np.int64]

BLOCK = 4096
"""Requests that are drawn at a time."""


class Periodic(Kind, frozen=True):
    """Requests at a fixed period, from `phase_ms` on, each up to `jitter_ms` late (uniform)."""

    period_ms: float
    phase_ms: float = 0.0
    jitter_ms: float = 0.0

    def __post_init__(self) -> None:
        positive("period_ms", self.period_ms)
        startable("1000 / period_ms", 1e3 / self.period_ms)
        at_least("phase_ms", self.phase_ms, 0)
        at_least("jitter_ms", self.jitter_ms, 0)
        if self.jitter_ms > self.period_ms:
            raise ExperimentError(
                f"jitter_ms is {self.jitter_ms:g}, and must not exceed period_ms, "
                f"{self.period_ms:g}: requests would overtake each other"
            )

    @property
    def mean_rate_hz(self) -> float:
        """Returns the requests per second in the long run."""
        return 1e3 / self.period_ms

    def scaled(self, factor: float) -> Periodic:
        """Returns the same process, `factor` times as fast."""
        return Periodic(self.period_ms / factor, self.phase_ms / factor, self.jitter_ms / factor)

    def blocks(self, rng: np.random.Generator) -> Iterator[Times]:
        """Yields planned times in nanoseconds, without end."""
        first = 0
        while True:
            numbers = np.arange(first, first + BLOCK, dtype=np.float64)
            times_ms = self.phase_ms + numbers * self.period_ms
            if self.jitter_ms:
                times_ms += rng.uniform(0.0, self.jitter_ms, BLOCK)
            yield whole_ns(times_ms * 1e6)
            first += BLOCK


class Poisson(Kind, frozen=True):
    """Requests at random, independent of each other, `rate_hz` a second."""

    rate_hz: float

    def __post_init__(self) -> None:
        startable("rate_hz", self.rate_hz)

    @property
    def mean_rate_hz(self) -> float:
        """Returns the requests per second in the long run."""
        return self.rate_hz

    def scaled(self, factor: float) -> Poisson:
        """Returns the same process, `factor` times as fast."""
        return Poisson(self.rate_hz * factor)

    def blocks(self, rng: np.random.Generator) -> Iterator[Times]:
        """Yields planned times in nanoseconds, without end."""
        mean_ns = 1e9 / self.rate_hz
        now_ns = 0.0
        while True:
            times_ns = now_ns + np.cumsum(rng.exponential(mean_ns, BLOCK))
            now_ns = float(times_ns[-1])
            yield whole_ns(times_ns)


class Gamma(Kind, frozen=True):
    """Requests in bursts: gaps have a Gamma distribution with coefficient of variation `cv`."""

    rate_hz: float
    cv: float

    def __post_init__(self) -> None:
        startable("rate_hz", self.rate_hz)
        variation("cv", self.cv, 0.001)

    @property
    def mean_rate_hz(self) -> float:
        """Returns the requests per second in the long run."""
        return self.rate_hz

    def scaled(self, factor: float) -> Gamma:
        """Returns the same process, `factor` times as fast."""
        return Gamma(self.rate_hz * factor, self.cv)

    def blocks(self, rng: np.random.Generator) -> Iterator[Times]:
        """Yields planned times in nanoseconds, without end."""
        shape = self.cv**-2
        scale_ns = 1e9 / (self.rate_hz * shape)
        now_ns = 0.0
        while True:
            times_ns = now_ns + np.cumsum(rng.gamma(shape, scale_ns, BLOCK))
            now_ns = float(times_ns[-1])
            yield whole_ns(times_ns)


class OnOff(Kind, frozen=True):
    """Poisson arrivals of `rate_hz` while it is on, and none while it is off.

    Both kinds of periods are exponential, with means `on_ms` and `off_ms`. It begins with one that
    is on.
    """

    rate_hz: float
    on_ms: float
    off_ms: float

    def __post_init__(self) -> None:
        startable("rate_hz", self.rate_hz)
        positive("on_ms", self.on_ms)
        at_least("off_ms", self.off_ms, 0)
        # All periods are drawn, those without a request, too.
        at_least("requests while it is on, rate_hz * on_ms / 1000", self._in_a_period, 1e-3)

    @property
    def _in_a_period(self) -> float:
        return self.rate_hz * self.on_ms / 1e3

    @property
    def mean_rate_hz(self) -> float:
        """Returns the requests per second in the long run."""
        return self.rate_hz * self.on_ms / (self.on_ms + self.off_ms)

    def scaled(self, factor: float) -> OnOff:
        """Returns the process with the same periods, and `factor` times the requests in them."""
        return OnOff(self.rate_hz * factor, self.on_ms, self.off_ms)

    def blocks(self, rng: np.random.Generator) -> Iterator[Times]:
        """Yields planned times in nanoseconds, without end.

        The Poisson process runs in the time that is on; the pauses before an instant of that time
        are added afterwards.
        """
        mean_ns = 1e9 / self.rate_hz
        now_ns = 0.0
        borders_ns, pauses_ns = np.zeros(1), np.zeros(1)
        while True:
            times_ns = now_ns + np.cumsum(rng.exponential(mean_ns, BLOCK))
            now_ns = float(times_ns[-1])
            while borders_ns[-1] <= now_ns:
                on_ns = rng.exponential(self.on_ms * 1e6, BLOCK)
                off_ns = rng.exponential(self.off_ms * 1e6, BLOCK)
                borders_ns = np.concatenate((borders_ns, borders_ns[-1] + np.cumsum(on_ns)))
                pauses_ns = np.concatenate((pauses_ns, pauses_ns[-1] + np.cumsum(off_ns)))
            period = np.searchsorted(borders_ns, times_ns, side="right") - 1
            yield whole_ns(times_ns + pauses_ns[period])
            passed = int(period[-1])
            borders_ns, pauses_ns = borders_ns[passed:], pauses_ns[passed:]


class ClosedLoop(Kind, frozen=True):
    """`callers` that each wait for their answer, think for `think_ms`, and ask again.

    Times to think are exponential with that mean, or constant. Each caller thinks before its first
    request too.
    """

    callers: int
    think_ms: float
    think: Literal["exponential", "constant"] = "exponential"

    def __post_init__(self) -> None:
        at_least("callers", self.callers, 1, MOST_CALLERS)
        at_least("think_ms", self.think_ms, 0)

    def thinking(self, rng: np.random.Generator) -> Iterator[int]:
        """Yields times to think in nanoseconds, without end, as callers need them."""
        mean_ns = self.think_ms * 1e6
        while True:
            if self.think == "constant" or mean_ns == 0:
                yield round(mean_ns)
            else:
                yield from whole_ns(rng.exponential(mean_ns, BLOCK)).tolist()


class Trace(Kind, frozen=True):
    """Requests of a file, CSV or Parquet (see `traces.read_trace`), `speed` times as fast.

    `stream` selects rows by the column of that name; without it all rows count. Times count from
    the first row of the file; they are numbers of `time_unit_ms` each, or ISO dates. The column
    `cost`, in `cost_unit_ms`, serves costs of the kind `recorded`.
    """

    path: str
    stream: str = ""
    speed: float = 1.0
    time_unit_ms: float = 1000.0
    cost_unit_ms: float = 1.0
    time_column: str = "time"
    stream_column: str = "stream"
    cost_column: str = "cost"

    def __post_init__(self) -> None:
        positive("speed", self.speed)
        positive("time_unit_ms", self.time_unit_ms)
        positive("cost_unit_ms", self.cost_unit_ms)

    @property
    def mean_rate_hz(self) -> float:
        """Returns the requests per second; reads the whole file, and raises what reading raises."""
        count, last_ns = 0, 0
        for block in self.rows(with_costs=False):
            count += len(block.times_ns)
            last_ns = int(block.times_ns[-1])
        return (count - 1) * 1e9 / last_ns if count > 1 and last_ns else 0.0

    def scaled(self, factor: float) -> Trace:
        """Returns the same trace, `factor` times as fast."""
        return msgspec.structs.replace(self, speed=self.speed * factor)

    def rows(self, *, with_costs: bool) -> Iterator[TraceBlock]:
        """Yields planned times and costs in nanoseconds, until the file ends.

        Raises ExperimentError where the file is not as it should be; see `read_trace`.
        """
        columns = TraceColumns(
            self.time_column,
            self.stream_column if self.stream else None,
            self.cost_column if with_costs else None,
        )
        yield from read_trace(
            self.path,
            columns,
            stream=self.stream,
            time_unit_ns=self.time_unit_ms * 1e6,
            cost_unit_ns=self.cost_unit_ms * 1e6,
            speed=self.speed,
        )


Arrivals: TypeAlias = Periodic | Poisson | Gamma | OnOff | ClosedLoop | Trace
