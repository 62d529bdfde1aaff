"""A run is simulated again by what its own record tells of it, and comes out alike.

That is so for runs of a simulation with delays and joins that are known, so that it does not depend
on the machine: what is taken from a record must be what is put into a simulation.
"""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from nnasync.experiments import (
    Delays,
    Network,
    Overheads,
    Poisson,
    Recording,
    RunResult,
    RunTimes,
    Stream,
    Workload,
    simulate,
)
from nnasync.experiments.delays_of_runs import delays_by_company
from nnasync.experiments.times_of_runs import times_by_company

US = 1_000

CALM = Delays(told_ns=(50 * US, 80 * US), comes_ns=(40 * US, 60 * US), heard_ns=(40 * US, 60 * US))
BUSY = Delays(
    told_ns=(50 * US,) * 9 + (2500 * US,),
    comes_ns=(60 * US,) * 9 + (2000 * US,),
    begins_ns=(50 * US,) * 8 + (800 * US,) * 2,
    heard_ns=(60 * US,) * 8 + (2800 * US,) * 2,
    calls_ns=(60 * US,) * 9 + (600 * US,),
    answers_ns=(15 * US, 20 * US),
)
OVERHEADS = Overheads(20 * US, 30 * US, 20 * US, delays=CALM, beside=(CALM, BUSY, BUSY))

LONG = RunTimes(
    usual_ms=tuple(np.linspace(2.4, 2.8, 50)),
    beside_ms={"0": tuple(np.linspace(2.5, 3.2, 50))},
    joined_ms={
        "0": ((0.1, 2.6, 0.1),) * 4 + ((2.0, 3.0, 3.4),),
        "1": ((0.1, 0.1, 0.0),) * 4 + ((1.0, 0.1, 0.2),),
    },
)
SHORT = RunTimes(tuple(np.linspace(0.05, 0.15, 50)), {}, (), {"0": ((0.1, 2.6, 0.02),)})


def run_of(times: tuple[RunTimes, RunTimes], overheads: Overheads, load: float) -> RunResult:
    streams = (
        Stream(
            name="0",
            arrivals=Poisson(2 * load / 2.6e-3),
            cost=Network("long.nnm", (2.6,), times=times[0]),
        ),
        Stream(
            name="1",
            arrivals=Poisson(100.0),
            cost=Network("short.nnm", (0.1,), times=times[1]),
            priority="high",
        ),
    )
    return simulate(
        Workload(streams),
        cores=2,
        seed=4,
        duration_ns=15_000_000_000,
        overheads=overheads,
        record=Recording(0.0, 1_000_000),
    )


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_a_run_is_simulated_again_by_its_own_record(load: float) -> None:
    first = run_of((LONG, SHORT), OVERHEADS, load)
    long, short = (times_by_company([first], number) for number in (0, 1))
    assert long is not None
    assert short is not None
    beside = delays_by_company([first], OVERHEADS.call_ns)
    again = run_of((long, short), replace(OVERHEADS, beside=beside), load)
    for one, other in zip(first.streams, again.streams, strict=True):
        assert other.latency.mean_ns == pytest.approx(one.latency.mean_ns, rel=0.1)
        assert other.latency.p99_ns == pytest.approx(one.latency.p99_ns, rel=0.15)
