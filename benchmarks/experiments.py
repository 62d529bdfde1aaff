"""Experiments: how many requests the simulator does in a second, beside a queue made with SimPy.

An M/M/1 queue at 80 % load, an M/M/4 queue, a mix of three priorities that is preempted, and two of
them as the runtime's machine. SimPy's contestant is the usual process per request that asks a
resource and waits: no estimates, no deadlines, no record but a list of latencies. Requests per
second are those of processor time, so that others on the machine matter less.

Memory: how much the process grows in a run of `--long` requests after one of a tenth of them.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable

import numpy as np
import simpy

from benchmarks._report import arguments, median, publish, spread, table
from nnasync.experiments import (
    Exponential,
    Lognormal,
    Overheads,
    Poisson,
    Stream,
    Workload,
    simulate,
)

LOAD = 0.8
OVERHEADS = Overheads(hop_ns=20_000, cold_hop_ns=60_000, call_ns=50_000)


def queue(cores: int) -> Workload:
    """Returns a workload of exponential arrivals and costs of a millisecond."""
    return Workload(
        (Stream(name="a", arrivals=Poisson(LOAD * cores * 1e3), cost=Exponential(1.0)),)
    )


def mix() -> Workload:
    """Returns a workload of three priorities with deadlines, for two cores."""
    rate_hz = LOAD * 2e3 / 3
    arrivals, cost = Poisson(rate_hz), Lognormal(1.0, 0.5)
    return Workload(
        (
            Stream(name="l", arrivals=arrivals, cost=cost, priority="low", step_ms=0.2),
            Stream(name="m", arrivals=arrivals, cost=cost, deadline_ms=50.0, step_ms=0.2),
            Stream(name="h", arrivals=arrivals, cost=cost, priority="high", deadline_ms=20.0),
        )
    )


def with_simpy(cores: int) -> Callable[[int], None]:
    """Returns a function that runs the same queue as processes of SimPy."""

    def run(requests: int) -> None:
        rng = np.random.default_rng(1)
        gaps = rng.exponential(1 / (LOAD * cores), requests).tolist()
        costs = rng.exponential(1.0, requests).tolist()
        environment = simpy.Environment()
        servers = simpy.Resource(environment, cores)
        latencies: list[float] = []

        def request(cost: float) -> simpy.events.ProcessGenerator:
            came = environment.now
            with servers.request() as turn:
                yield turn
                yield environment.timeout(cost)
            latencies.append(environment.now - came)

        def source() -> simpy.events.ProcessGenerator:
            for gap, cost in zip(gaps, costs, strict=True):
                yield environment.timeout(gap)
                environment.process(request(cost))

        environment.process(source())
        environment.run()
        _expect(len(latencies) == requests)

    return run


def with_nnasync(
    workload: Workload, cores: int, policy: str | None = None, overheads: Overheads | None = None
) -> Callable[[int], None]:
    """Returns a function that runs the simulator."""

    def run(requests: int) -> None:
        found = simulate(
            workload, cores=cores, policy=policy, overheads=overheads, seed=1, requests=requests
        )
        _expect(sum(stream.submitted for stream in found.streams) == requests)

    return run


CONTESTANTS: dict[str, Callable[[int], None]] = {
    "SimPy, M/M/1": with_simpy(1),
    "SimPy, M/M/4": with_simpy(4),
    "M/M/1": with_nnasync(queue(1), 1),
    "M/M/4": with_nnasync(queue(4), 4),
    "M/M/1, policy edf": with_nnasync(queue(1), 1, "edf"),
    "M/M/1, overheads": with_nnasync(queue(1), 1, overheads=OVERHEADS),
    "three priorities": with_nnasync(mix(), 2),
    "three priorities, overheads": with_nnasync(mix(), 2, overheads=OVERHEADS),
}


def rate_hz(run: Callable[[int], None], requests: int) -> float:
    """Returns the requests per second of processor time."""
    gc.collect()
    began = time.process_time()
    run(requests)
    return requests / (time.process_time() - began)


def growth_mb(requests: int) -> tuple[float, float]:
    """Returns the process's memory after a tenth of a long run, and its growth after the rest."""
    run = CONTESTANTS["M/M/1"]
    run(requests // 10)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(requests)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return before / 1024, (after - before) / 1024


def _expect(has_all: bool) -> None:
    if not has_all:
        raise SystemExit("requests were lost")


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--requests", type=int, default=100_000, help="a round (%(default)s)")
    parser.add_argument("--long", type=int, default=10_000_000, help="of memory (%(default)s)")
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for _ in range(options.rounds):
        for name, run in CONTESTANTS.items():
            found[name].append(rate_hz(run, options.requests))
    base = median(found["SimPy, M/M/1"])
    rows = [[name, spread(rates), f"{median(rates) / base:.1f}"] for name, rates in found.items()]
    text = table(["simulated", "requests/s", "SimPy's, times"], rows)
    before_mb, grown_mb = growth_mb(options.long)
    text += f"\n\n{options.long:,} requests: {grown_mb:.1f} MB more than a tenth of them"
    figures = {"rates": found, "memory": {"before_mb": before_mb, "grown_mb": grown_mb}}
    publish("Experiments", text, figures, options)


if __name__ == "__main__":
    main()
