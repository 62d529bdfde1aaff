"""A plan with a limit of runs at once, whoever runs them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from nnasync._core.plans.limited import limited
from nnasync.engine import BoundCall, Given, Plan, StopFlag, Target
from nnasync.errors import GeneralFailure
from nnasync.hal import Array
from tests.rigs import GUARD_S

GIVEN = [np.zeros(2, np.float32)]


class Inner(Plan, BoundCall):
    """A plan that is its only call; a run waits until it is `permitted`."""

    def __init__(self) -> None:
        self.runs = self.inside = self.most = self.trims = self.rewinds = 0
        self.lock = threading.Lock()
        self.permitted = threading.Event()
        self.permitted.set()
        self.running = threading.Event()
        self.fault: Exception | None = None
        self.stops = False
        self.given: Given = None
        self.reads_given = True

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        return self

    def reads_in_place(self, array: Array) -> bool:
        return array.ndim == 2

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        with self.lock:
            self.runs, self.inside = self.runs + 1, self.inside + 1
            self.most = max(self.most, self.inside)
        self.given = given
        self.running.set()
        self.permitted.wait(GUARD_S)
        with self.lock:
            self.inside -= 1
        if self.fault is not None:
            raise self.fault
        return not self.stops

    def rewind(self) -> None:
        self.rewinds += 1

    def trim(self) -> None:
        self.trims += 1


def test_without_a_limit_a_plan_stays_as_it_is() -> None:
    inner = Inner()
    assert limited(inner, 0) is inner


@pytest.mark.parametrize("limit", [1, 2])
def test_no_more_run_at_once(limit: int) -> None:
    inner = Inner()
    inner.permitted.clear()
    plan, done = limited(inner, limit), list[bool]()

    def work() -> None:
        call = plan.bind([], [])
        done.extend(call.run(StopFlag()) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    inner.running.wait(GUARD_S)
    inner.permitted.set()
    for thread in threads:
        thread.join(GUARD_S)
    assert done == [True] * 20
    assert inner.most <= limit


def test_one_that_waits_can_be_stopped() -> None:
    inner = Inner()
    inner.permitted.clear()
    plan = limited(inner, 1)
    first = threading.Thread(target=plan.bind([], []).run, args=(StopFlag(),))
    first.start()
    inner.running.wait(GUARD_S)
    stop, call = StopFlag(), plan.bind([], [])
    stop.abort()
    assert not call.run(stop)
    inner.permitted.set()
    first.join(GUARD_S)
    assert inner.runs == 1
    assert call.run(StopFlag())


def test_a_place_is_given_back_by_what_fails_or_is_stopped() -> None:
    inner = Inner()
    call = limited(inner, 1).bind([], [])
    inner.stops = True
    assert not call.run(StopFlag())
    inner.stops, inner.fault = False, GeneralFailure("it broke")
    with pytest.raises(GeneralFailure):
        call.run(StopFlag())
    call.rewind()
    assert inner.rewinds == 1
    inner.fault = None
    assert call.run(StopFlag())


def test_it_does_what_the_plan_does() -> None:
    inner = Inner()
    plan = limited(inner, 1)
    call = plan.bind([], [])
    assert call.reads_given
    assert call.run(StopFlag(), GIVEN)
    assert inner.given is GIVEN
    rows = np.zeros((4, 8), np.float32)[:, ::2]
    assert plan.reads_in_place(rows)
    assert not plan.reads_in_place(rows[0])
    plan.trim()
    assert inner.trims == 1
