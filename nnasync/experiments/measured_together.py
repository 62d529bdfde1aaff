"""What networks do to each other on shared cores, seen in real runs of all of them.

Each network is a stream that comes at random, all of them equally often, and together they ask for
two and then for four fifths of the cores, so that each runs alone, beside each other one, beside
itself and right after another one, which leaves it cold caches, many times. Networks so small that
they would come too often for one loop come less often. How long a run takes is told apart by what
ran beside it for nearly all of its length; a pair of which that is hardly ever seen, as of a long
run beside a short one, makes no difference. Of the same runs are the delays of the loop and its
workers by how many requests are under way (`delays_of_runs`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nnasync.experiments.arrivals import Poisson
from nnasync.experiments.costs import Network, RunTimes
from nnasync.experiments.real import run_real
from nnasync.experiments.record import Outcome, Recording, RunResult, Span
from nnasync.experiments.run_of_point import DISTURBED, disturbance_of
from nnasync.experiments.workload import Stream, Workload
from nnasync.hal import Priority
from nnasync.machine import CpuMeter

_RUN_NS, _WARM_MS, _ALL = 4_000_000_000, 200.0, 1_000_000
_LOADS, _MOST_HZ = (0.4, 0.8), 1_200.0
_NEARLY, _HARDLY = 0.9, 0.1
_ENOUGH, _ATTEMPTS = 20, 3
_VALUES = 199

_PRIORITIES: dict[Priority, Literal["low", "medium", "high"]] = {
    Priority.LOW: "low",
    Priority.MEDIUM: "medium",
    Priority.HIGH: "high",
}


class Kind(NamedTuple):
    """A network with a priority: what is measured once."""

    model: str
    priority: Priority


class _Taken(NamedTuple):
    """A real run of all networks, at which of the loads, and how much others disturbed it."""

    load: float
    run: RunResult
    disturbance: float


class Together:
    """Networks that were measured alone, and ever more real runs of all of them."""

    def __init__(self, networks: Mapping[Kind, Network], cores: int) -> None:
        self._networks = networks
        self._cores = cores
        self._taken: list[_Taken] = []

    async def measure(self) -> None:
        """Take a run of each load, once more while others disturb it, a few times at most."""
        for load in _LOADS:
            for _ in range(_ATTEMPTS):
                if (await self._measure(load)).disturbance < DISTURBED:
                    break

    async def measure_more(self) -> None:
        """Take one more run, of the loads in turn."""
        await self._measure(_LOADS[len(self._taken) % len(_LOADS)])

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """Of each load those that others did not disturb, or the least disturbed one."""
        by_load = ([each for each in self._taken if each.load == load] for load in _LOADS)
        return tuple(each.run for taken in by_load for each in _calm(taken))

    def networks(self) -> dict[Kind, Network]:
        """The networks with what others do to them; blocks for some tenths of a second.

        What runs `beside` has the number of its kind for its name.
        """
        runs = self.runs
        return {
            kind: _with_times(network, times_by_company(runs, number, _is_wide_below_ns(network)))
            for number, (kind, network) in enumerate(self._networks.items())
        }

    async def _measure(self, load: float) -> _Taken:
        meter = CpuMeter()
        run = await run_real(
            Workload(_streams(self._networks, load * self._cores)),
            cores=self._cores,
            seed=len(self._taken),
            duration_ns=_RUN_NS,
            record=Recording(_WARM_MS, _ALL),
        )
        busy = meter.read()
        taken = _Taken(load, run, disturbance_of(busy.others, busy.stolen, run.waited))
        self._taken.append(taken)
        return taken


def _calm(taken: Sequence[_Taken]) -> Sequence[_Taken]:
    calm = [each for each in taken if each.disturbance < DISTURBED]
    return calm or sorted(taken, key=lambda each: each.disturbance)[:1]


def _streams(networks: Mapping[Kind, Network], wanted: float) -> tuple[Stream, ...]:
    """A stream of each network, equally often; together they want so many cores."""
    rate_hz = wanted / (sum(network.mean_ns for network in networks.values()) / 1e9)
    return tuple(
        Stream(
            name=str(number),
            arrivals=Poisson(min(rate_hz, _MOST_HZ / len(networks))),
            cost=network,
            priority=_PRIORITIES[kind.priority],
        )
        for number, (kind, network) in enumerate(networks.items())
    )


def times_by_company(
    runs: Sequence[RunResult], number: int, is_wide_below_ns: float = 0.0
) -> RunTimes | None:
    """How long the runs of a stream took by what ran beside; None where alone is not known.

    What took less than `is_wide_below_ns` alone had a form with more threads, and does not count.
    """
    parts = [_lengths_and_shares(run, number) for run in runs]
    lengths = np.concatenate([part[0] for part in parts])
    shares = np.concatenate([part[1] for part in parts], axis=1)
    everything = shares.sum(axis=0)
    alone = lengths[(everything < _HARDLY) & (lengths > is_wide_below_ns)]
    if alone.size < _ENOUGH:
        return None
    known = {
        str(other): lengths[(share > _NEARLY) & (everything < share + _HARDLY)]
        for other, share in enumerate(shares)
    }
    beside = {name: quantiles_ms(each) for name, each in known.items() if each.size >= _ENOUGH}
    return RunTimes(quantiles_ms(alone), beside)


def _lengths_and_shares(
    run: RunResult, number: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """How long the runs of a stream took, and for which shares of that each stream ran beside.

    The pieces of a run that gave way are one run. Those that did not end do not count.
    """
    cut = {row.request for row in run.requests if row.outcome not in (Outcome.MET, Outcome.LATE)}
    mine = [span for span in run.spans if span.stream == number and span.request not in cut]
    requests = np.array([span.request for span in mine], np.int64)
    _, place = np.unique(requests, return_inverse=True)

    def summed(of_pieces: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(place, of_pieces).astype(np.int64)

    lengths = summed(np.array([span.ended_ns - span.began_ns for span in mine], np.int64))
    others = [
        [span for span in run.spans if span.stream == other] for other in range(len(run.streams))
    ]
    shares = np.array([summed(_overlaps(mine, each)) for each in others]) / np.maximum(lengths, 1)
    shares[number] -= 1.0
    return lengths, shares


def quantiles_ms(durations_ns: Sequence[int] | NDArray[np.int64]) -> tuple[float, ...]:
    """Evenly spaced quantiles of durations, shortest first, in milliseconds."""
    shares = (np.arange(_VALUES) + 0.5) / _VALUES
    found = np.quantile(np.maximum(durations_ns, 1), shares, method="nearest")
    return tuple((found / 1e6).tolist())


def _is_wide_below_ns(network: Network) -> float:
    """Halfway between the usual lengths of the two forms of a network, if it has two."""
    times = network.times
    if times is None or not times.wide_ms:
        return 0.0
    return math.sqrt(float(np.median(times.wide_ms)) * float(np.median(times.usual_ms))) * 1e6


def _with_times(network: Network, found: RunTimes | None) -> Network:
    """With the form for runs alone as it was measured, and all else as it is among others."""
    if found is None:
        return network
    wide_ms = () if network.times is None else network.times.wide_ms
    mean_ms = float(np.mean(found.usual_ms))
    scale = mean_ms / sum(network.steps_ms)
    return replace(
        network,
        steps_ms=tuple(step * scale for step in network.steps_ms),
        times=replace(found, wide_ms=wide_ms),
    )


def _overlaps(spans: Sequence[Span], others: Sequence[Span]) -> NDArray[np.int64]:
    """For how long these others ran during each of the spans."""
    began = np.array([span.began_ns for span in others], np.int64)
    ended = np.array([span.ended_ns for span in others], np.int64)
    return np.array(
        [
            np.maximum(np.minimum(ended, span.ended_ns) - np.maximum(began, span.began_ns), 0).sum()
            for span in spans
        ],
        np.int64,
    )
