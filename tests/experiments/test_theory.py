"""The simulator beside queueing theory and real-time analysis, on ideal cores.

A queue is simulated several times over with seeds of their own. The mean that theory states has to
lie in the 99 % confidence interval of the simulated ones, which has to be narrow.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest

from nnasync.experiments import (
    Constant,
    Exponential,
    Latencies,
    Lognormal,
    Periodic,
    Poisson,
    Recording,
    RunResult,
    Steps,
    Stream,
    Workload,
    simulate,
)
from nnasync.experiments.costs import Cost
from nnasync.hal import NEVER_NS

SEEDS = range(1, 11)
STUDENT = 3.250
"""Of ten runs, at 99 %."""
SERVICE_MS = 1.0
SIZES = [3_000, pytest.param(30_000, marks=pytest.mark.slow)]
Name = Literal["high", "medium", "low"]
PRIORITIES: tuple[Name, Name, Name] = ("high", "medium", "low")


def runs(
    workload: Workload, count: int, policy: str | None = None, cores: int = 1
) -> list[RunResult]:
    """Runs with so many requests each, of which the first tenth or so is not counted."""
    rate_hz = sum(
        stream.arrivals.rate_hz
        for stream in workload.streams
        if isinstance(stream.arrivals, Poisson)
    )
    record = Recording(warm_up_ms=0.1 * count / rate_hz * 1e3)
    return [
        simulate(
            workload,
            cores=cores,
            policy=policy,
            seed=seed,
            requests=count,
            aging_ns=NEVER_NS,
            record=record,
        )
        for seed in SEEDS
    ]


def interval(values: Sequence[float]) -> tuple[float, float]:
    half = STUDENT * float(np.std(values, ddof=1)) / len(values) ** 0.5
    mean = float(np.mean(values))
    assert half < 0.1 * mean
    return mean - half, mean + half


def latencies(found: Sequence[RunResult], stream: int = 0) -> list[Latencies]:
    return [result.streams[stream].latency for result in found]


def assert_mean(found: Sequence[Latencies], expected_ms: float) -> None:
    low_ns, high_ns = interval([each.mean_ns for each in found])
    assert low_ns <= expected_ms * 1e6 <= high_ns


def assert_quantile(found: Sequence[Latencies], share: float, expected_ms: float) -> None:
    """A quantile is told by the upper border of its bucket, which is 1 % wide."""
    low_ns, high_ns = interval([each.quantile(share) for each in found])
    assert low_ns / 1.01 <= expected_ms * 1e6 <= high_ns


def queue(load: float, cost: Cost) -> Workload:
    return Workload((Stream(name="a", arrivals=Poisson(load * 1e3), cost=cost),))


@pytest.mark.parametrize("count", SIZES)
def test_m_m_1(count: int) -> None:
    load = 0.5
    found = latencies(runs(queue(load, Exponential(SERVICE_MS)), count))
    mean_ms = SERVICE_MS / (1 - load)
    assert_mean(found, mean_ms)
    # Times in the system are exponential.
    assert_quantile(found, 0.5, mean_ms * math.log(2))
    assert_quantile(found, 0.9, mean_ms * math.log(10))


@pytest.mark.parametrize("count", SIZES)
def test_m_d_1(count: int) -> None:
    load = 0.6
    found = latencies(runs(queue(load, Constant(SERVICE_MS)), count))
    assert_mean(found, SERVICE_MS + load * SERVICE_MS / (2 * (1 - load)))


@pytest.mark.parametrize("count", SIZES)
def test_m_g_1(count: int) -> None:
    """Pollaczek and Khinchine, with costs that vary more than exponential ones."""
    load, cv = 0.5, 1.2
    found = latencies(runs(queue(load, Lognormal(SERVICE_MS, cv)), count))
    assert_mean(found, SERVICE_MS + load * SERVICE_MS * (1 + cv**2) / (2 * (1 - load)))


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("cores", [2, 4])
def test_m_m_c(cores: int, count: int) -> None:
    load = 0.6
    found = latencies(runs(queue(load * cores, Exponential(SERVICE_MS)), count, cores=cores))
    asked = load * cores
    sums = sum(asked**k / math.factorial(k) for k in range(cores))
    last = asked**cores / math.factorial(cores) / (1 - load)
    waits = last / (sums + last)
    assert_mean(found, SERVICE_MS + waits * SERVICE_MS / (cores * (1 - load)))


COSTS: tuple[Exponential, Constant, Lognormal] = (
    Exponential(0.5),
    Constant(1.0),
    Lognormal(1.5, 0.5),
)
LOADS = (0.2, 0.25, 0.25)
SQUARES = (2 * 0.5**2, 1.0**2, 1.5**2 * (1 + 0.5**2))
MEANS = (0.5, 1.0, 1.5)
RATES = [load / mean for load, mean in zip(LOADS, MEANS, strict=True)]


def classes(step_ms: float | None) -> Workload:
    costs: tuple[Cost, ...] = COSTS
    return Workload(
        tuple(
            Stream(
                name=priority,
                arrivals=Poisson(rate * 1e3),
                cost=cost,
                priority=priority,
                step_ms=step_ms,
            )
            for priority, rate, cost in zip(PRIORITIES, RATES, costs, strict=True)
        )
    )


def residual_ms(count: int) -> float:
    """The mean work left of a request of the first classes that a new one finds in service."""
    return (
        sum(rate * square for rate, square in zip(RATES[:count], SQUARES[:count], strict=True)) / 2
    )


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("policy", [None, "fixed-priority"])
def test_priorities_without_preemption(policy: str | None, count: int) -> None:
    """Cobham 1954."""
    found = runs(classes(None), count, policy)
    for number in range(3):
        above, up_to = sum(LOADS[:number]), sum(LOADS[: number + 1])
        wait_ms = residual_ms(3) / ((1 - above) * (1 - up_to))
        assert_mean(latencies(found, number), wait_ms + MEANS[number])


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("policy", [None, "fixed-priority-preemptive"])
def test_priorities_with_preemption_and_resumption(policy: str | None, count: int) -> None:
    found = runs(classes(0.0), count, policy)
    for number in range(3):
        above, up_to = sum(LOADS[:number]), sum(LOADS[: number + 1])
        wait_ms = residual_ms(number + 1) / ((1 - above) * (1 - up_to))
        assert_mean(latencies(found, number), wait_ms + MEANS[number] / (1 - above))


# -- real-time analysis

TASK_SETS = [40, pytest.param(1_000, marks=pytest.mark.slow)]


def task_set(rng: random.Random, count: int, load: float) -> list[tuple[int, int]]:
    """Periods and costs in microseconds with this load at most (UUniFast, Bini & Buttazzo 2005)."""
    tasks, left = [], load
    for number in range(count, 0, -1):
        rest = left * rng.random() ** (1 / (number - 1)) if number > 1 else 0.0
        period_us = rng.randrange(1_000, 20_000)
        tasks.append((period_us, max(1, int(period_us * (left - rest)))))
        left = rest
    return tasks


def periodic(name: str, period_us: int, cost_us: int, phase_us: int = 0, **changes: Any) -> Stream:
    given: dict[str, Any] = {
        "deadline_ms": period_us / 1e3,
        "step_ms": 0.0,
        "arrivals": Periodic(period_us / 1e3, phase_ms=phase_us / 1e3),
        "cost": Constant(cost_us / 1e3),
    }
    return Stream(name=name, **(given | changes))


@pytest.mark.parametrize("count", TASK_SETS)
def test_earliest_deadline_first_misses_nothing_up_to_a_whole_core(count: int) -> None:
    rng = random.Random(7)
    for number in range(count):
        load = 1.0 if number % 2 else rng.uniform(0.8, 1.0)
        tasks = task_set(rng, rng.randrange(2, 7), load)
        streams = [
            periodic(str(place), period_us, cost_us, rng.randrange(2) * rng.randrange(20_000))
            for place, (period_us, cost_us) in enumerate(tasks)
        ]
        found = simulate(Workload(tuple(streams)), policy="edf", duration_ns=200_000_000)
        lost = [stream.missed + stream.refused for stream in found.streams]
        assert lost == [0] * len(tasks), tasks
        assert min(stream.met for stream in found.streams) > 5


def test_more_than_a_whole_core_is_missed_by_earliest_deadline_first_too() -> None:
    rng = random.Random(8)
    for _ in range(10):
        tasks = enumerate(task_set(rng, 3, 1.1))
        streams = tuple(periodic(str(place), *task) for place, task in tasks)
        found = simulate(Workload(streams), policy="edf", duration_ns=2_000_000_000)
        assert sum(stream.missed for stream in found.streams) > 0


def responses_us(tasks: Sequence[tuple[int, int]]) -> list[int | None]:
    """Response-time analysis (Joseph & Pandya 1986); None for a task that misses its deadline."""
    found: list[int | None] = []
    for number, (period_us, cost_us) in enumerate(tasks):
        before, response = 0, cost_us
        while before != response <= period_us:
            before = response
            response = cost_us + sum(-(-before // period) * cost for period, cost in tasks[:number])
        found.append(response if response <= period_us else None)
    return found


@pytest.mark.parametrize("count", TASK_SETS)
@pytest.mark.parametrize("policy", [None, "fixed-priority-preemptive"])
def test_fixed_priorities_miss_what_the_analysis_says(policy: str | None, count: int) -> None:
    rng = random.Random(9)
    schedulable = 0
    for _ in range(count):
        tasks = sorted(task_set(rng, 3, rng.uniform(0.7, 1.05)))
        streams = [
            periodic(priority, *task, priority=priority, late="finish")
            for priority, task in zip(PRIORITIES, tasks, strict=True)
        ]
        found = simulate(
            Workload(tuple(streams)),
            policy=policy,
            duration_ns=20 * tasks[-1][0] * 1000,
            aging_ns=NEVER_NS,
        )
        for stream, response_us in zip(found.streams, responses_us(tasks), strict=True):
            unanswered = stream.pending > 1
            assert (stream.late > 0 or unanswered) == (response_us is None), tasks
            if response_us is not None:
                # All come at once at the beginning, which is the worst that can be.
                assert stream.latency.most_ns == response_us * 1000
                schedulable += 1
    assert 0.3 * 3 * count < schedulable < 3 * count


@pytest.mark.parametrize("count", TASK_SETS)
def test_steps_delay_by_no_more_than_the_longest_of_them(count: int) -> None:
    """The analysis with blocking: who comes waits for the end of one step at most."""
    rng = random.Random(10)
    for _ in range(count):
        tasks = sorted(task_set(rng, 3, rng.uniform(0.5, 0.8)))
        streams = []
        for priority, (period_us, cost_us) in zip(PRIORITIES, tasks, strict=True):
            steps_ms = tuple(cost_us * share / 1e3 for share in (0.2, 0.5, 0.3))
            phase_us = rng.randrange(period_us)
            streams.append(
                periodic(
                    priority,
                    period_us,
                    cost_us,
                    phase_us,
                    priority=priority,
                    step_ms=None,
                    late="finish",
                    cost=Steps(steps_ms),
                )
            )
        found = simulate(
            Workload(tuple(streams)), duration_ns=20 * tasks[-1][0] * 1000, aging_ns=NEVER_NS
        )
        for number, stream in enumerate(found.streams):
            longest_us = max((cost for _, cost in tasks[number + 1 :]), default=0) * 0.5
            bound_us = bounded_us(tasks[: number + 1], longest_us)
            if bound_us is not None:
                assert stream.latency.most_ns <= bound_us * 1000 + 10, (tasks, number)


def bounded_us(tasks: Sequence[tuple[int, int]], blocking_us: float) -> float | None:
    """The response of the last task with blocking; None if that is beyond its period."""
    period_us, cost_us = tasks[-1]
    before, response = 0.0, cost_us + blocking_us
    while before != response <= period_us:
        before = response
        above = sum(math.ceil(before / period) * cost for period, cost in tasks[:-1])
        response = cost_us + blocking_us + above
    return response if response <= period_us else None
