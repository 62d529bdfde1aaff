"""The gate in front of an engine with a limit, and the fences in front of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from nnasync._core.clock import now_ns
from nnasync._core.engine_device.gates import ConcurrencyGate, Dependencies
from nnasync._core.workers import StopFlag, Task, Workers
from nnasync.engine import Given
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    MissedDeadlinePersistent,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence
from nnasync.hal import Priority
from nnasync.scheduler import NEVER_NS, Estimate, Job
from tests.engine_device.rig import PATIENCE_S, Rig, null


class Call:
    """Runs when it is permitted."""

    def __init__(self, order: list[str], name: str) -> None:
        self.permit = Fence()
        self.running = Fence()
        self._order = order
        self._name = name

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        self._order.append(self._name)
        self.running.signal()
        self.permit.wait_blocking(PATIENCE_S)
        return True

    def rewind(self) -> None:
        raise AssertionError("nothing is stopped here")


class Plan:
    """Tasks of one plan behind a gate."""

    def __init__(self, workers: Workers, limit: int) -> None:
        self.workers = workers
        self.gate = ConcurrencyGate(workers, limit)
        self.estimate = Estimate()
        self.order: list[str] = []
        self.calls: list[Call] = []

    def task(self, name: str, deadline_ns: int = NEVER_NS) -> Task:
        call = Call(self.order, name)
        self.calls.append(call)
        return Task(call, Priority.MEDIUM, self.estimate, deadline_ns, name)

    def submit(self, name: str, deadline_ns: int = NEVER_NS) -> Task:
        task = self.task(name, deadline_ns)
        self.gate.submit(task, held=False)
        return task

    def permit(self) -> None:
        for call in self.calls:
            call.permit.signal()


@pytest.fixture
def plans(no_leaks: None) -> Iterator[Callable[..., Plan]]:
    rigs: list[Rig] = []
    made: list[Plan] = []

    def make(limit: int = 1, *, cores: int = 4, queue_limit: int = 1000) -> Plan:
        rigs.append(Rig(null(), cores=cores, queue_limit=queue_limit))
        made.append(Plan(rigs[-1].workers, limit))
        return made[-1]

    yield make
    for plan in made:
        plan.permit()
    for rig in rigs:
        rig.close()


def wait(*tasks: Task) -> None:
    for task in tasks:
        task.fence.wait_blocking(PATIENCE_S)


def released(task: Task) -> None:
    fence = Fence()
    task.when_released(fence.signal)
    fence.wait_blocking(PATIENCE_S)


def failure(task: Task) -> Exception:
    with pytest.raises(NNError):
        task.fence.wait_blocking(PATIENCE_S)
    assert task.fence.error is not None
    return task.fence.error


def test_by_deadline_then_by_arrival(plans: Callable[..., Plan]) -> None:
    plan = plans()
    tasks = [plan.submit("first")]
    plan.calls[0].running.wait_blocking(PATIENCE_S)
    far = now_ns() + 3600 * 10**9
    for name, deadline_ns in (("a", NEVER_NS), ("b", NEVER_NS), ("late", far + 1), ("soon", far)):
        tasks.append(plan.submit(name, deadline_ns))
    plan.permit()
    wait(*tasks)
    assert plan.order == ["first", "soon", "late", "a", "b"]


def test_inline_run_takes_a_place(plans: Callable[..., Plan]) -> None:
    plan = plans(limit=2)
    assert plan.gate.try_enter()
    assert plan.gate.try_enter()
    assert not plan.gate.try_enter()
    task = plan.submit("waits")
    plan.permit()
    assert not task.fence.done
    assert plan.order == []
    plan.gate.leave()
    wait(task)
    released(task)
    assert plan.gate.try_enter()
    assert not plan.gate.try_enter()


def test_no_limit(plans: Callable[..., Plan]) -> None:
    plan = plans(limit=0)
    assert all(plan.gate.try_enter() for _ in range(100))
    plan.gate.leave()
    tasks = [plan.submit(str(number)) for number in range(4)]
    for call in plan.calls:
        call.running.wait_blocking(PATIENCE_S)
    plan.permit()
    wait(*tasks)


def test_place_is_given_back_at_release_not_at_the_answer(plans: Callable[..., Plan]) -> None:
    plan = plans()
    hung = plan.submit("hung")
    plan.calls[0].running.wait_blocking(PATIENCE_S)
    second = plan.submit("second")
    plan.workers.abandon(hung)
    assert hung.fence.done
    plan.calls[1].permit.signal()
    assert plan.order == ["hung"]
    assert not plan.gate.try_enter()
    plan.calls[0].permit.signal()
    wait(second)


def test_what_is_cancelled_while_it_waits_is_forgotten(plans: Callable[..., Plan]) -> None:
    """A device that hangs must not collect what has given up on it."""
    plan = plans()
    plan.submit("hung")
    plan.calls[0].running.wait_blocking(PATIENCE_S)
    for _ in range(50):
        task = plan.submit("impatient")
        plan.workers.abandon(task)
        released(task)
    assert len(plan.gate._waiting) == 0
    assert plan.workers.statistics().live == 1
    last = plan.submit("last")
    plan.permit()
    wait(last)
    assert plan.order == ["hung", "last"]


def test_as_many_may_wait_as_the_queue_holds(plans: Callable[..., Plan]) -> None:
    plan = plans(queue_limit=2)
    tasks = [plan.submit("first")]
    plan.calls[0].running.wait_blocking(PATIENCE_S)
    tasks += [plan.submit("second"), plan.submit("third")]
    with pytest.raises(ResourceExhaustedTransient):
        plan.submit("fourth")
    held = plan.task("fifth")
    with pytest.raises(ResourceExhaustedTransient):
        plan.workers.hold(held)
    plan.gate.submit(held, held=True)
    assert isinstance(failure(held), ResourceExhaustedTransient)
    plan.permit()
    wait(*tasks)
    released(tasks[-1])
    assert plan.workers.statistics().live == 0


def test_many_that_wait_are_all_refused(plans: Callable[..., Plan]) -> None:
    """Each refusal lets the next one in; a thousand of them are no deep recursion."""
    plan = plans()
    plan.submit("first")
    plan.calls[0].running.wait_blocking(PATIENCE_S)
    soon = now_ns() + 1800 * 10**9
    plan.estimate = Estimate()
    plan.estimate.observe(10**40)  # each refusal takes a twentieth off
    tasks = [plan.submit("hopeless", soon) for _ in range(900)]
    plan.permit()
    for task in tasks:
        assert isinstance(failure(task), MissedDeadlinePersistent)
    released(tasks[-1])
    assert plan.order == ["first"]
    assert plan.gate.try_enter()


def test_closing_with_many_that_wait(plans: Callable[..., Plan]) -> None:
    plan = plans()
    plan.submit("first")
    plan.calls[0].running.wait_blocking(PATIENCE_S)
    tasks = [plan.submit("queued") for _ in range(900)]
    plan.workers.close()
    for task in tasks:
        assert isinstance(failure(task), DeviceUnavailable)
    with pytest.raises(DeviceUnavailable):
        plan.submit("late")
    assert len(plan.gate._waiting) == 0


def test_task_is_held_before_another_thread_can_let_it_in(
    plans: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plans()
    take_in, held = plan.workers.take_in, []

    def watched(task: Task) -> Job | None:
        assert task not in plan.gate._waiting
        held.append(task)
        return take_in(task)

    monkeypatch.setattr(plan.workers, "take_in", watched)
    tasks = [plan.submit("first"), plan.submit("second")]
    assert held == tasks[1:]
    plan.permit()
    wait(*tasks)


def test_task_that_is_over_stays_over(plans: Callable[..., Plan]) -> None:
    plan = plans()
    plan.submit("first")
    plan.calls[0].running.wait_blocking(PATIENCE_S)
    task = plan.task("second")
    plan.workers.hold(task)
    plan.workers.abandon(task)
    plan.gate.submit(task, held=True)
    assert plan.workers.statistics().live == 1
    assert len(plan.gate._waiting) == 0


def dependencies(plan: Plan, task: Task, count: int, duration_ns: int | None = None) -> list[Fence]:
    fences = [Fence() for _ in range(count)]
    plan.workers.hold(task)
    waits = Dependencies(task, count, plan.gate, plan.workers, duration_ns)
    for fence in fences:
        fence.add_callback(waits.met)
    return fences


def test_last_fence_lets_the_task_go(plans: Callable[..., Plan]) -> None:
    plan = plans(limit=0)
    task = plan.task("it")
    fences = dependencies(plan, task, 3)
    plan.permit()
    for fence in fences:
        assert not task.fence.done
        assert plan.order == []
        fence.signal()
    wait(task)


def test_first_failure_settles_the_task(plans: Callable[..., Plan]) -> None:
    plan = plans(limit=0)
    task = plan.task("it")
    fences = dependencies(plan, task, 3)
    fences[1].fail(OSError("first"))
    fences[0].fail(OSError("second"))
    fences[2].signal()
    error = failure(task)
    assert isinstance(error, GeneralFailure)
    assert "first" in str(error)
    assert error.__cause__ is fences[1].error
    assert plan.order == []
    assert plan.workers.statistics().live == 0


def test_duration_behind_fences_moves_the_alarm(plans: Callable[..., Plan]) -> None:
    plan = plans(limit=0)
    deadline_ns = now_ns() + 3600 * 10**9
    task = plan.task("it", deadline_ns)
    (fence,) = dependencies(plan, task, 1, duration_ns=10**12)
    assert task.alarm is not None
    assert task.alarm.at_ns == deadline_ns
    fence.signal()
    assert task.deadline_ns < deadline_ns
    assert task.alarm is not None
    assert task.alarm.at_ns == task.deadline_ns
    plan.permit()
    wait(task)


def test_a_limit_that_comes_later_holds_for_what_comes_after_it(plans: Callable[..., Plan]) -> None:
    plan = plans(0)
    before = [plan.submit("before"), plan.submit("before")]
    plan.gate.limit_to(1)
    assert not plan.gate.is_open
    after = [plan.submit("first"), plan.submit("second")]
    plan.calls[2].running.wait_blocking(PATIENCE_S)
    assert not plan.gate.try_enter()
    plan.permit()
    wait(*before, *after)
    for task in after:
        released(task)
    assert plan.order.index("first") < plan.order.index("second")
    assert plan.gate.try_enter()
    assert not plan.gate.try_enter()


def test_who_entered_before_there_was_a_limit_gives_no_place_back(
    plans: Callable[..., Plan],
) -> None:
    plan = plans(0)
    assert plan.gate.try_enter()
    plan.gate.limit_to(1)
    plan.gate.leave()
    assert plan.gate.try_enter()
    assert not plan.gate.try_enter()


def test_a_limit_that_ends_lets_all_in(plans: Callable[..., Plan]) -> None:
    plan = plans(1)
    tasks = [plan.submit("first"), plan.submit("second"), plan.submit("third")]
    plan.calls[0].running.wait_blocking(PATIENCE_S)
    plan.gate.limit_to(0)
    for call in plan.calls:
        call.running.wait_blocking(PATIENCE_S)
    plan.permit()
    wait(*tasks)
    assert plan.gate.is_open
    assert plan.gate.try_enter()
