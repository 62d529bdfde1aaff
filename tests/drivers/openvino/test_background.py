"""Runs that give way: when they do, on which thread, and what happens where nobody gives a core."""

from __future__ import annotations

import gc
import os
import sys
import time
import weakref
from collections import deque
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

import nnasync as nn
from nnasync._core import os_threads
from nnasync._core.drivers.openvino import OpenVinoEngine
from nnasync._core.drivers.openvino import background as module
from nnasync._core.drivers.openvino.background import Background, Network, Quiet
from nnasync._core.drivers.openvino.infer_requests import run_interruptibly
from nnasync._core.model.graph import Value
from nnasync._core.workers import ABORT, StopFlag
from nnasync.engine import BoundCall
from nnasync.errors import GeneralFailure
from nnasync.hal import Array, OperationType
from tests.drivers.openvino.rig import F32, FAST, PRECISE, given, model_of

MS = 1_000_000
PROOF = 4
SEARCHES = 300


@pytest.fixture(autouse=True)
def nothing_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of later tests are not to be careful for what these lower."""
    monkeypatch.setattr(module, "_RETIRED", deque())
    monkeypatch.setattr(module, "_LEFT_OVER", set())


def proven(quiet: Quiet, run_ns: int = 5 * MS) -> Quiet:
    for _ in range(PROOF):
        quiet.note(run_ns, run_ns)
    return quiet


# -- whether the cores are quiet


def test_quiet_takes_runs_in_a_row_to_believe() -> None:
    quiet = Quiet()
    for _ in range(PROOF - 1):
        quiet.note(MS, MS)
    quiet.note(3 * MS, MS)
    for _ in range(PROOF - 1):
        quiet.note(MS, MS)
    assert not quiet.is_quiet
    quiet.note(MS, MS)
    assert quiet.is_quiet


def test_one_slow_run_is_no_doubt_but_three_are() -> None:
    quiet = proven(Quiet())
    for _ in range(5):
        quiet.note(3 * MS, MS)
        quiet.note(3 * MS, MS)
        quiet.note(MS, MS)
    assert quiet.is_quiet
    for _ in range(3):
        quiet.note(3 * MS, MS)
    assert not quiet.is_quiet


def test_after_a_disappointment_it_takes_longer() -> None:
    quiet = proven(Quiet())
    quiet.disappoint()
    assert not proven(quiet).is_quiet
    assert proven(quiet).is_quiet


def test_who_has_been_right_for_long_is_believed_as_before() -> None:
    quiet = Quiet()
    for _ in range(10):
        quiet.disappoint()
    while not quiet.is_quiet:
        quiet.note(MS, MS)
    for _ in range(10_000):
        quiet.note(MS, MS)
    quiet.disappoint()
    assert proven(proven(quiet)).is_quiet


@hypothesis_given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**10)), max_size=60))
def test_any_figures_leave_a_state_that_can_be_left(figures: list[tuple[int, int]]) -> None:
    quiet = Quiet()
    for took_ns, ran_ns in figures:
        quiet.note(took_ns, ran_ns)
    assert quiet.patience_ns >= 10 * MS
    for _ in range(2000):
        quiet.note(MS, MS)
    assert quiet.is_quiet
    for _ in range(3):
        quiet.note(10 * MS, MS)
    assert not quiet.is_quiet


# -- where a run goes


class Fake:
    """A request whose runs on the engine's thread end or do not."""

    def __init__(self, *, ends: bool = True) -> None:
        self.ends = ends
        self.done: list[str] = []
        self.stop: StopFlag | None = None

    def infer(self) -> None:
        self.done.append("here")

    def start(self) -> None:
        self.done.append("started")

    def wait_for(self, _: int) -> bool:
        if self.stop is not None:
            self.stop.abort()
        return self.ends

    def wait(self) -> None:
        if not self.ends:
            raise RuntimeError("the request was cancelled")

    def cancel(self) -> None:
        self.done.append("cancelled")


def goes(background: Background, request: Fake, stop: StopFlag) -> bool:
    """Run on a network whose thread is known and lowered."""
    network = Network(None)
    network.demoted = network.may_be_demoted = True
    return background.run(network, cast(Any, request), stop, is_long=False)


def test_while_it_is_not_quiet_runs_stay_on_the_calling_thread() -> None:
    background, request = Background(), Fake()
    assert goes(background, request, StopFlag())
    assert request.done == ["here"]


def test_while_it_is_quiet_they_go_to_the_engine_s_thread() -> None:
    background, request = Background(), Fake()
    proven(background.quiet)
    assert goes(background, request, StopFlag())
    assert request.done == ["started"]


def test_short_ones_never_do() -> None:
    background, request = Background(), Fake()
    proven(background.quiet, MS // 2)
    assert goes(background, request, StopFlag())
    assert request.done == ["here"]


def test_one_that_gets_no_core_is_taken_back_and_repeated() -> None:
    background, request = Background(), Fake(ends=False)
    proven(background.quiet)
    assert goes(background, request, StopFlag())
    assert request.done == ["started", "cancelled", "here"]
    assert not background.quiet.is_quiet
    assert goes(background, request, StopFlag())
    assert request.done[-1] == "here"


def test_one_that_is_aborted_meanwhile_is_not_repeated() -> None:
    background, request = Background(), Fake(ends=False)
    proven(background.quiet)
    request.stop = StopFlag()
    assert not goes(background, request, request.stop)
    assert "here" not in request.done
    assert request.stop.raised == ABORT


def test_what_fails_for_another_reason_is_no_late_run() -> None:
    request = Fake(ends=False)
    with pytest.raises(RuntimeError):
        run_interruptibly(cast(Any, request), StopFlag())


# -- which thread is lowered


def test_a_thread_is_lowered_only_where_it_is_clear_which(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {1: 0, 2: 0, 3: 0}
    lowered: list[int] = []
    now = [0]

    def demote(thread: int) -> bool:
        lowered.append(thread)
        return True

    monkeypatch.setattr(module, "ran_ns", times.get)
    monkeypatch.setattr(module, "threads_of_others", lambda: frozenset(times))
    monkeypatch.setattr(module, "demote", demote)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    network = Network(None, frozenset(times))

    def run(*busy: int) -> None:
        now[0] += 10 * MS
        for each in busy:
            times[each] += 9 * MS

    for busy in ((), (1, 2)):
        network.lower_thread_that_runs(partial(run, *busy))
        assert (lowered, network.demoted) == ([], False)
    network.lower_thread_that_runs(lambda: run(2))
    assert (set(lowered), network.demoted) == ({2}, True)
    assert network.ran_ns() == 18 * MS


def test_who_had_a_little_to_do_is_lowered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {1: 5, 2: 0, 3: 0}
    lowered: set[int] = set()
    monkeypatch.setattr(module, "ran_ns", times.get)
    monkeypatch.setattr(module, "threads_of_others", lambda: frozenset(times))
    now = [0]

    def demote(thread: int) -> bool:
        lowered.add(thread)
        return True

    monkeypatch.setattr(module, "demote", demote)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])

    def run() -> None:
        now[0] += 10 * MS
        times[2] += 9 * MS
        times[3] += MS // 10

    Network(None, frozenset(times)).lower_thread_that_runs(run)
    assert lowered == {2, 3}
    lowered.clear()
    times[4] = 0
    Network(None, frozenset(times)).lower_thread_that_runs(run)
    assert lowered == {2}  # Of so many one may be somebody else's.


def test_threads_that_began_with_two_networks_are_nobody_s() -> None:
    first, second = Network(None, frozenset({1, 2, 3})), Network(None, frozenset({3, 4}))
    third = Network(None, frozenset({5}))
    assert [first.threads, second.threads, third.threads] == [{1, 2}, {4}, {5}]


def test_threads_of_python_are_never_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number may be that of another thread by now."""
    times = {1: 0}
    lowered: list[int] = []
    monkeypatch.setattr(module, "ran_ns", times.get)
    monkeypatch.setattr(module, "demote", lowered.append)
    monkeypatch.setattr(module, "threads_of_others", frozenset[int])

    def run() -> None:
        times[1] += 10**12

    network = Network(None, frozenset(times))
    network.lower_thread_that_runs(run)
    assert (lowered, network.demoted) == ([], False)


def test_without_threads_of_its_own_it_is_not_even_tried() -> None:
    assert Network(None).searches_left == 0
    assert Network(None, frozenset({1})).searches_left > 0


def chain(m: nn.ModelBuilder) -> Value:
    x = given(m, F32, 512, 512)
    weights = m.constant(np.full((512, 512), 1 / 512, np.float32))
    zeros = m.constant(np.zeros(512, np.float32))
    for _ in range(8):
        x = m.operation(OperationType.FULLY_CONNECTED, x, weights, zeros, 0)
    return x


def policies() -> dict[int, int]:
    return {int(each): os.sched_getscheduler(int(each)) for each in os.listdir("/proc/self/task")}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which thread runs")
def test_a_network_finds_its_thread_and_computes_the_same_there() -> None:
    engine = OpenVinoEngine()
    engine.cores = 1
    plans = [engine.compile(model_of(chain), FAST, PRECISE)]
    while not plans[-1].networks.all[0].threads:  # It was handed those of a network that is gone.
        plans.append(engine.compile(model_of(chain), FAST, PRECISE))
    plan = plans[-1]
    assert plan.background is not None
    x, y = np.random.default_rng(1).random((512, 512), np.float32), np.zeros((512, 512), np.float32)
    call = plan.bind([x], [y])
    stop = StopFlag()
    assert call.run(stop)
    expected: Array = y.copy()
    stop.demoted = True
    network = plan.networks.all[0]
    before = policies()
    # Beside other work a thread may stand out only after many runs.
    for _ in range(10):
        network.searches_left = SEARCHES
        while network.searches_left and not network.demoted:
            proven(plan.background.quiet)
            assert call.run(stop)
    assert network.demoted
    changed = {each for each, policy in policies().items() if policy != before.get(each, policy)}
    assert changed
    assert changed <= os_threads.threads_of_others()
    assert {policies()[each] for each in changed} == {os.SCHED_IDLE}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    for demoted in (True, False, True):
        y[...] = -1
        stop.demoted = demoted
        assert call.run(stop)
        assert (y == expected).all()


def test_networks_after_a_lowered_one_that_is_gone_run_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine has its threads until it is gone for good; so it is kept."""
    compiled = Compiled()
    kept = weakref.ref(compiled)
    network = lowered_by_its_run(monkeypatch, compiled)
    assert network.may_be_demoted
    del network, compiled
    gc.collect()
    assert kept() is not None
    assert not Network(None).may_be_demoted


def test_only_a_few_are_kept_and_threads_of_others_may_be_handed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = Compiled()
    kept = weakref.ref(compiled)
    lowered_by_its_run(monkeypatch, compiled)
    del compiled
    for _ in range(4):
        lowered_by_its_run(monkeypatch)
    gc.collect()
    assert kept() is None
    assert Network(None).may_be_demoted
    monkeypatch.setattr(module, "threads_of_others", frozenset[int])  # They have ended.
    assert not Network(None).may_be_demoted
    assert (len(module._RETIRED), module._LEFT_OVER) == (4, set())


class Compiled:
    """Stands for what the engine compiled."""


def lowered_by_its_run(monkeypatch: pytest.MonkeyPatch, compiled: object = None) -> Network:
    times = {1: 0}
    monkeypatch.setattr(module, "ran_ns", times.get)
    monkeypatch.setattr(module, "threads_of_others", lambda: frozenset(times))
    monkeypatch.setattr(module, "demote", lambda _: True)

    def run() -> None:
        times[1] += 10**12

    network = Network(compiled, frozenset(times))
    network.lower_thread_that_runs(run)
    return network


def demotion() -> tuple[BoundCall, StopFlag]:
    """A call whose next run goes to the engine's thread, and the flag to run it with."""
    plan = OpenVinoEngine().compile(model_of(chain), FAST, PRECISE)
    assert plan.background is not None
    proven(plan.background.quiet)
    plan.networks.all[0].demoted = True
    x, y = (np.zeros((512, 512), np.float32) for _ in range(2))
    stop = StopFlag()
    stop.demoted = True
    return plan.bind([x], [y]), stop


def test_an_abort_ends_a_run_that_gave_way(monkeypatch: pytest.MonkeyPatch) -> None:
    call, stop = demotion()

    def aborted(request: Any, stop: StopFlag, patience_ns: float) -> bool:
        start = request.start

        def start_and_abort() -> None:
            start()
            stop.abort()

        request.start = start_and_abort
        return run_interruptibly(request, stop, patience_ns)

    monkeypatch.setattr(module, "run_interruptibly", aborted)
    assert not call.run(stop)
    assert call.run(StopFlag())


def test_a_fault_on_the_engine_s_thread_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    call, stop = demotion()

    def fails(*_: object) -> bool:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(module, "run_interruptibly", fails)
    with pytest.raises(GeneralFailure, match="out of luck"):
        call.run(stop)
