"""Executions of one prepared model by their priorities: which runs first, and which has room."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.clock import Watchdog
from nnasync._core.drivers.null import Gate, NullEngine
from nnasync._core.engine_device import EngineDevice
from nnasync._core.workers import Workers
from nnasync.errors import ResourceExhaustedTransient
from nnasync.hal import ExecutionConfig, ExecutionPreference, Priority
from nnasync.tracing import Tracer
from tests.engine_device.rig import Row
from tests.rigs import doubler

PATIENCE_S = 60
wanted = st.lists(st.none() | st.sampled_from(Priority), max_size=8)


class House:
    """A device of one core, a prepared model of MEDIUM priority, and the order of its runs."""

    def __init__(self, places: int = 64) -> None:
        self.seen: list[float] = []
        self.engine = NullEngine(compute=self._noted, gate=Gate())
        self.watchdog = Watchdog()
        self.workers = Workers(
            cores=1,
            inline_budget_ns=0,
            stall_budget_ns=0,
            queue_limit=places,
            watchdog=self.watchdog,
            tracer=Tracer(),
            aging_ns=1 << 60,
        )
        self.device = EngineDevice(self.engine, self.workers)
        model = doubler()
        plan = self.engine.compile(model, ExecutionPreference.FAST_SINGLE_ANSWER)
        self.prepared = self.device.adopt(model, plan, Priority.MEDIUM)

    def _noted(self, inputs: Any) -> Any:
        self.seen.append(float(inputs[0].flat[0]))
        return [inputs[0] * 2]

    def launch(self, number: int, priority: Priority | None) -> Any:
        request = Row(*[number] * 4).request
        return self.prepared.launch_on_worker(request, (), ExecutionConfig(priority=priority))

    def begin(self) -> Any:
        """Have number 0 take the only core."""
        first = self.launch(0, Priority.HIGH)
        self.engine.when(lambda c: c.waiting == 1).wait_blocking(PATIENCE_S)
        return first

    def open_wide(self) -> None:
        assert self.engine.gate is not None
        self.engine.gate.open_wide()

    def close(self) -> None:
        self.open_wide()
        self.workers.close()
        assert self.workers.join(PATIENCE_S) == 0
        self.watchdog.close()


@given(wanted)
def test_the_more_urgent_goes_first_and_then_who_came_first(
    priorities: list[Priority | None],
) -> None:
    house = House()
    try:
        launched = [house.begin()]
        launched += [house.launch(n, each) for n, each in enumerate(priorities, 1)]
        house.open_wide()
        for each in launched:
            each.fence.wait_blocking(PATIENCE_S)
    finally:
        house.close()
    numbers = range(1, len(priorities) + 1)
    urgency = [Priority.MEDIUM if each is None else each for each in priorities]
    assert house.seen == [0, *sorted(numbers, key=lambda n: (-urgency[n - 1], n))]


@given(wanted, st.integers(1, 4))
def test_work_is_refused_or_displaced_only_by_what_is_not_less_urgent(
    priorities: list[Priority | None], places: int
) -> None:
    house = House(places)
    kept: list[tuple[Priority, Any]] = []
    try:
        first = house.begin()
        for number, each in enumerate(priorities, 1):
            urgency = Priority.MEDIUM if each is None else each
            waiting = [other for other, launched in kept if not launched.fence.done]
            try:
                house.prepared.check_room(each)
                kept.append((urgency, house.launch(number, each)))
            except ResourceExhaustedTransient:
                assert len(waiting) >= places
                assert all(other >= urgency for other in waiting)
        lost = [urgency for urgency, launched in kept if launched.fence.done]
        left = [urgency for urgency, launched in kept if not launched.fence.done]
        assert len(left) <= places
        assert not lost or max(lost) <= min(left)
        house.open_wide()
        first.fence.wait_blocking(PATIENCE_S)
    finally:
        house.close()


@pytest.mark.parametrize("most", list(Priority))
def test_no_execution_is_more_urgent_than_its_model_may_be(most: Priority) -> None:
    house = House()
    try:
        house.prepared.limit(most)
        assert house.prepared.priority is min(Priority.MEDIUM, most)
        found = {house.prepared._level(each).priority for each in Priority}
        assert found == {each for each in Priority if each <= most}
    finally:
        house.close()
