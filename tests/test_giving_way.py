"""Workers in real time: when they give way, and what they may run without."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnasync as nn
from nnasync._core import giving_way as module
from nnasync._core.drivers.null import NullEngine
from nnasync._core.giving_way import Allowance, UrgentWorker, giving_way
from nnasync._core.real_time import REAL_TIME, Policy
from tests.rigs import double, doubler, runtime
from tests.system_policies import USUAL, System

WAIT_S = 30
MS = 1_000_000
SAVED_NS = 50 * MS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the policies are those of Linux")


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    return System().stand_in(monkeypatch)


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REAL_TIME, "is_wanted", True)


def is_ahead(policy: Policy) -> bool:
    return policy.is_real_time and policy.priority == 2


def is_a_step_down(policy: Policy) -> bool:
    return policy.is_real_time and policy.priority == 1


class Clock:
    """A clock that is set by hand, and one of what the thread has used."""

    def __init__(self) -> None:
        self.now_ns = self.used_ns = 0

    def pass_ns(self, duration_ns: int, *, used: bool = True) -> None:
        self.now_ns += duration_ns
        self.used_ns += duration_ns * used


def in_thread(work: Callable[[UrgentWorker, Clock], None]) -> None:
    """Does something as a worker in real time, on a thread that ends with it."""
    clock = Clock()

    def begin() -> None:
        work(UrgentWorker(lambda: clock.now_ns, lambda: clock.used_ns), clock)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(begin).result(WAIT_S)


@given(st.lists(st.tuples(st.integers(0, 200 * MS), st.integers(0, 300 * MS))))
def test_no_more_is_used_than_its_share_and_what_was_saved(runs: list[tuple[int, int]]) -> None:
    allowance, now, used, longest = Allowance(0), 0, 0, 0
    for pause_ns, duration_ns in runs:
        now += pause_ns
        if allowance.left_ns(now) > 0:
            allowance.take(duration_ns)
            used, longest = used + duration_ns, max(longest, duration_ns)
        now += duration_ns
    assert used <= now / 2 + SAVED_NS + longest


@given(st.lists(st.integers(1, SAVED_NS), min_size=1))
def test_whoever_uses_less_than_half_never_waits(durations_ns: list[int]) -> None:
    allowance, now = Allowance(0), 0
    for duration_ns in durations_ns:
        assert allowance.left_ns(now) > 0
        allowance.take(duration_ns)
        now += 2 * duration_ns + 1


def test_a_worker_is_ahead_of_others_and_behind_the_loop(system: System) -> None:
    def work(worker: UrgentWorker, clock: Clock) -> None:
        assert is_ahead(system.here())
        assert system.here().priority < USUAL.in_real_time().priority

    in_thread(work)


@pytest.mark.usefixtures("wanted")
@pytest.mark.parametrize("is_high", [True, False])
def test_computing_steps_down_and_what_is_not_high_gives_way(system: System, is_high: bool) -> None:
    """Whoever waits for the interpreter lock goes ahead of what computes without it."""
    seen: list[Policy] = []
    engine = giving_way(lambda: seen.append(system.here()))

    def execution() -> None:
        seen.append(system.here())
        engine()
        seen.append(system.here())

    in_thread(lambda worker, clock: worker.run(execution, is_high=is_high))
    assert is_ahead(seen[0])
    assert is_ahead(seen[2])
    assert is_a_step_down(seen[1]) if is_high else seen[1] == USUAL


@pytest.mark.usefixtures("wanted")
@pytest.mark.parametrize("is_high", [True, False])
def test_computing_within_computing_changes_nothing(system: System, is_high: bool) -> None:
    seen: list[Policy] = []
    inner = giving_way(lambda: seen.append(system.here()))

    def computing() -> None:
        inner()
        seen.append(system.here())

    in_thread(lambda worker, clock: worker.run(giving_way(computing), is_high=is_high))
    assert seen[0] == seen[1]
    assert is_a_step_down(seen[0]) if is_high else seen[0] == USUAL


@pytest.mark.usefixtures("wanted", "system")
def test_what_computes_apart_does_so_for_whom_gives_way() -> None:
    seen: list[str] = []
    engine = giving_way(lambda: seen.append("here"), lambda: seen.append("apart"))
    in_thread(lambda worker, clock: worker.run(engine, is_high=True))
    in_thread(lambda worker, clock: worker.run(engine, is_high=False))
    engine()
    assert seen == ["here", "apart", "here"]


@pytest.mark.usefixtures("wanted")
def test_a_failure_leaves_the_worker_in_real_time(system: System) -> None:
    def fails() -> None:
        raise ValueError("it fails")

    def work(worker: UrgentWorker, clock: Clock) -> None:
        with pytest.raises(ValueError, match="it fails"):
            worker.run(giving_way(fails), is_high=False)
        assert is_ahead(system.here())
        assert not worker.gives_way

    in_thread(work)


@pytest.mark.usefixtures("wanted")
@pytest.mark.parametrize(("times", "gives_way_whole"), [(1.5, False), (3, True)])
def test_high_work_without_an_end_gives_way(
    system: System, times: float, gives_way_whole: bool
) -> None:
    """Its computing, and where the engine does not say when that is, the whole run."""

    def work(worker: UrgentWorker, clock: Clock) -> None:
        seen: list[Policy] = []
        engine = giving_way(lambda: seen.append(system.here()))

        def execution() -> None:
            seen.append(system.here())
            engine()

        worker.run(lambda: clock.pass_ns(int(times * SAVED_NS), used=True), is_high=True)
        clock.now_ns = 0
        worker.run(execution, is_high=True)
        assert is_ahead(system.here())
        assert is_ahead(seen[0]) is not gives_way_whole
        assert seen[1] == USUAL
        clock.now_ns = int(2 * times * SAVED_NS)
        seen.clear()
        worker.run(execution, is_high=True)
        assert is_ahead(seen[0])
        assert is_a_step_down(seen[1])

    in_thread(work)


@pytest.mark.usefixtures("wanted")
def test_waiting_and_giving_way_cost_nothing(system: System) -> None:
    def work(worker: UrgentWorker, clock: Clock) -> None:
        computes = giving_way(lambda: clock.pass_ns(4 * SAVED_NS))
        worker.run(computes, is_high=False)
        worker.run(lambda: clock.pass_ns(4 * SAVED_NS, used=False), is_high=True)
        seen: list[Policy] = []
        worker.run(lambda: seen.append(system.here()), is_high=True)
        assert is_ahead(seen[0])

    in_thread(work)


def test_where_nobody_wants_it_the_call_stays_what_it_is() -> None:
    assert not REAL_TIME.is_wanted
    assert giving_way(double) is double


@pytest.mark.anyio
@pytest.mark.parametrize("priority", list(nn.Priority))
async def test_executions_of_a_runtime_are_run_ahead_of_others(
    system: System, priority: nn.Priority
) -> None:
    """Such an engine does not say when it computes, so that it does not give way either."""
    seen: dict[int, Policy] = {}

    def compute(inputs: Any) -> list[Any]:
        seen[threading.get_ident()] = system.here()
        return double(inputs)

    options = nn.Options(real_time=True, inline_budget_us=0, cores=1)
    engine = NullEngine(compute=compute)
    async with runtime(engine, options=options) as opened:
        net = await opened.compile(doubler(), priority=priority)
        seen.clear()
        await net(np.ones((1, 4), np.float32))
    assert set(map(is_ahead, seen.values())) == {True}
    assert threading.get_ident() not in seen


def test_the_system_lets_a_worker_give_way() -> None:
    """With the real calls, where this process may."""
    seen: list[Policy] = []

    def work(worker: UrgentWorker, clock: Clock) -> None:
        worker.run(lambda: worker.compute(lambda: seen.append(Policy.here())), is_high=False)
        seen.append(Policy.here())

    try:
        in_thread(work)
    except PermissionError:
        pytest.skip("this process may not have real-time threads")
    holds_lock = ctypes.PyDLL._func_flags_ & ~ctypes.CDLL._func_flags_
    assert not module._set_scheduler()._flags_ & holds_lock
    if seen[0].number & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER:
        assert is_ahead(seen[1])
    assert module._HERE.worker is None
