"""What networks do to each other on shared cores, seen in real runs of all of them.

Each network is a stream that comes at random, and together they ask for two and then for four
fifths of the cores, so that each runs alone, beside each other one and beside itself many times.
How long a run takes is told apart by what ran beside it for nearly all of its length; a pair of
which that is hardly ever seen, as of a long run beside a short one, makes no difference. Of the
same runs are the delays of the loop and its workers by how many requests are under way
(`delays_of_runs`).
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
_LOADS, _MOST_HZ = (0.4, 0.8), 250.0
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


async def measured_together(
    networks: Mapping[Kind, Network], cores: int
) -> tuple[dict[Kind, Network], tuple[RunResult, ...]]:
    """These networks, which were measured alone, with what others do to them; and the runs of that.

    What runs `beside` has the number of its kind for its name.
    """
    runs = tuple([await _calmest_of(networks, cores, seed) for seed in range(len(_LOADS))])
    return {
        kind: _with_times(network, times_by_company(runs, number, _is_wide_below_ns(network)))
        for number, (kind, network) in enumerate(networks.items())
    }, runs


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


async def _calmest_of(networks: Mapping[Kind, Network], cores: int, seed: int) -> RunResult:
    """A run that others did not disturb, or the least disturbed of a few."""
    found: list[tuple[float, RunResult]] = []
    for _ in range(_ATTEMPTS):
        meter = CpuMeter()
        run = await _run_of(networks, cores, seed)
        busy = meter.read()
        disturbance = disturbance_of(busy.others, busy.stolen, run.waited)
        found.append((disturbance, run))
        if disturbance < DISTURBED:
            break
    return min(found, key=lambda each: each[0])[1]


async def _run_of(networks: Mapping[Kind, Network], cores: int, seed: int) -> RunResult:
    streams = (_stream(kind, networks, _LOADS[seed] * cores) for kind in networks)
    return await run_real(
        Workload(tuple(streams)),
        cores=cores,
        seed=seed,
        duration_ns=_RUN_NS,
        record=Recording(_WARM_MS, _ALL),
    )


def _stream(kind: Kind, networks: Mapping[Kind, Network], wanted: float) -> Stream:
    """A stream of a network; together they want so many cores."""
    network = networks[kind]
    rate_hz = wanted / len(networks) / (network.mean_ns / 1e9)
    return Stream(
        name=str(list(networks).index(kind)),
        arrivals=Poisson(min(rate_hz, _MOST_HZ)),
        cost=network,
        priority=_PRIORITIES[kind.priority],
    )


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
