"""What networks do to each other on shared cores, seen in real runs of all of them.

Each network is a stream that comes at random, as often as at a point of an experiment: what a
network finds in the caches, and whether cores and threads have rested before it, depends on how
often it comes and what else does. Where the cores would have next to nothing to do, or more than
they can, all come more often or less. How long runs take by what ran beside them is told in
`times_of_runs`; the delays of the loop and its workers are of the same runs (`delays_of_runs`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace

from nnasync.experiments.arrivals import Poisson
from nnasync.experiments.costs import Network, RunTimes
from nnasync.experiments.real import run_real
from nnasync.experiments.record import Recording, RunResult
from nnasync.experiments.run_of_point import DISTURBED, disturbance_of
from nnasync.experiments.times_of_runs import times_by_company
from nnasync.experiments.workload import Stream, Workload
from nnasync.hal import Priority
from nnasync.machine import CpuMeter

_RUN_NS, _WARM_MS, _ALL = 4_000_000_000, 200.0, 1_000_000
_LEAST_LOAD, _MOST_LOAD, _MOST_HZ = 0.2, 0.8, 1_200.0
_ATTEMPTS = 3

_PRIORITIES: dict[Priority, Literal["low", "medium", "high"]] = {
    Priority.LOW: "low",
    Priority.MEDIUM: "medium",
    Priority.HIGH: "high",
}


File: TypeAlias = tuple[str, int | None]
"""A model file, and what a value of it may take if that is stated."""


class Kind(NamedTuple):
    """A network with a priority, which is measured once."""

    model: str
    priority: Priority
    value_limit_bytes: int | None = None

    @property
    def file(self) -> File:
        """The file of the network, whatever its priority."""
        return self.model, self.value_limit_bytes


Mix: TypeAlias = Mapping[Kind, float]
"""How often each network comes, in requests a second."""


class _Taken(NamedTuple):
    """A real run of all networks, with how much others disturbed it."""

    run: RunResult
    disturbance: float


class Together:
    """Networks that were measured alone, and a growing number of real runs of all together."""

    def __init__(self, networks: Mapping[Kind, Network], cores: int, mix: Mix) -> None:
        self._networks = networks
        self._cores = cores
        self._streams = _streams(networks, usable(mix, networks, cores))
        self._taken: list[_Taken] = []

    async def measure(self) -> None:
        """Makes a run, and repeats it a few times at most while others disturb it."""
        for _ in range(_ATTEMPTS):
            if (await self.measure_more()).disturbance < DISTURBED:
                break

    async def measure_more(self) -> _Taken:
        """Makes one more run."""
        meter = CpuMeter()
        run = await run_real(
            Workload(self._streams),
            cores=self._cores,
            seed=len(self._taken),
            duration_ns=_RUN_NS,
            record=Recording(_WARM_MS, _ALL),
        )
        busy = meter.read()
        taken = _Taken(run, disturbance_of(busy.others, busy.stolen, run.waited))
        self._taken.append(taken)
        return taken

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """Returns the runs that others did not disturb.

        If there are none, it returns the least disturbed one.
        """
        calm = [each for each in self._taken if each.disturbance < DISTURBED]
        least = sorted(self._taken, key=lambda each: each.disturbance)[:1]
        return tuple(each.run for each in calm or least)

    def networks(self) -> dict[Kind, Network]:
        """Returns the networks with their measured slow-downs; blocks for some tenths of a second.

        The networks that a run was `beside` are named by the numbers of their kinds.
        """
        runs = self.runs
        return {
            kind: _with_times(network, times_by_company(runs, number, _is_wide_below_ns(network)))
            for number, (kind, network) in enumerate(self._networks.items())
        }


def _streams(networks: Mapping[Kind, Network], mix: Mix) -> tuple[Stream, ...]:
    return tuple(
        Stream(
            name=str(number),
            arrivals=Poisson(mix[kind]),
            cost=network,
            priority=_PRIORITIES[kind.priority],
        )
        for number, (kind, network) in enumerate(networks.items())
    )


def usable(mix: Mix, networks: Mapping[Kind, Network], cores: int) -> Mix:
    """Returns rates at which the cores are busy, but not overloaded; a rate of 0 was unknown."""
    share = _LEAST_LOAD * cores * 1e9 / len(networks)
    known = {kind: mix[kind] or share / networks[kind].mean_ns for kind in networks}
    load = load_of(known, networks, cores)
    factor = min(max(load, _LEAST_LOAD), _MOST_LOAD) / load
    factor = min(factor, _MOST_HZ / sum(known.values()))
    return {kind: rate_hz * factor for kind, rate_hz in known.items()}


def load_of(mix: Mix, networks: Mapping[Kind, Network], cores: int) -> float:
    """Returns the load of networks that come so often: the share of the time of each core."""
    return sum(mix[kind] * network.mean_ns for kind, network in networks.items()) / 1e9 / cores


def _is_wide_below_ns(network: Network) -> float:
    """Returns the run time halfway between the two forms of a network; 0 if it has only one."""
    times = network.times
    if times is None or not times.wide_ms:
        return 0.0
    return math.sqrt(float(np.median(times.wide_ms)) * float(np.median(times.usual_ms))) * 1e6


def _with_times(network: Network, found: RunTimes | None) -> Network:
    """Returns the network with the times found among others; its wide form stays as it was."""
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
