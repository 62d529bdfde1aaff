"""Workers keep the core budget: who runs at once, who yields, who is handed what."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnasync._core.clock import Watchdog, now_ns
from nnasync._core.workers import GO
from nnasync.errors import (
    MissedDeadlinePersistent,
)
from nnasync.fences import Fence
from nnasync.hal import Priority
from nnasync.scheduler import NEVER_NS
from nnasync.tracing import Instrument
from tests.rigs import ManualWatchdog
from tests.workers.steering import (
    HIGH,
    LOW,
    MEDIUM,
    PATIENCE_S,
    Rig,
    Steps,
    failure,
    in_time,
    released,
    submit_after,
    threads_of,
    until,
    wait,
)

pytestmark = pytest.mark.usefixtures("no_leaks")


# -- running, and the core budget


def test_task_runs_to_its_end_on_a_worker(rigs: Callable[..., Rig]) -> None:
    call = Steps(3, permits=3)
    task = rigs().submit(call)
    wait(task)
    assert call.results == [3]
    assert call.threads[0].startswith("nnasync-worker")
    assert task.launched_ns <= task.ready_ns <= task.started_ns <= task.finished_ns
    assert task.estimate.samples == 1
    assert 0 < task.active_ns <= task.finished_ns - task.started_ns


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_low_never_uses_more_than_the_cores(rigs: Callable[..., Rig], cores: int) -> None:
    rig = rigs(cores)
    calls = [Steps() for _ in range(3 * cores)]
    tasks = [rig.submit(call, LOW) for call in calls]
    for number, call in enumerate(calls):
        call.reached()
        running = min(cores, len(calls) - number)
        for begun in calls[number : number + running]:
            begun.reached()
        assert not any(each.runs for each in calls[number + running :])
        assert rig.workers.statistics().running == running
        call.permit()
        wait(tasks[number])
    assert rig.workers.statistics().threads == cores


@pytest.mark.parametrize("priority", [MEDIUM, HIGH])
def test_low_yields_to_higher_work_and_finishes_later(
    rigs: Callable[..., Rig], priority: Priority
) -> None:
    rig = rigs(1)
    low, urgent = Steps(3), Steps()
    low_task = rig.submit(low, LOW)
    low.reached(0)
    urgent_task = rig.submit(urgent, priority)
    urgent.reached()  # at once, while LOW is inside its first step
    assert low.at == 0
    low.permit()
    urgent_running = rig.workers.statistics()
    assert urgent_running.running <= 2
    urgent.permit()
    wait(urgent_task)
    low.permit(2)
    wait(low_task)
    assert low.results == [3]
    assert low.runs == 2
    assert low.rewinds == 0
    assert rig.workers.statistics().preemptions == 1


def test_preempted_low_does_not_run_while_the_core_is_taken(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    low, urgent = Steps(2), Steps()
    task = rig.submit(low, LOW)
    low.reached(0)
    urgent_task = rig.submit(urgent, HIGH)
    urgent.reached()
    low.permit(2)
    until(lambda: rig.workers.statistics().preemptions == 1)
    assert rig.workers.statistics().running == 1
    assert low.at == 1
    urgent.permit()
    wait(urgent_task)
    wait(task)


def test_high_preempts_medium_only_when_all_are_busy(rigs: Callable[..., Rig]) -> None:
    rig = rigs(2)
    first, second, early, late = Steps(2), Steps(2), Steps(), Steps()
    tasks = [rig.submit(first, MEDIUM)]
    first.reached(0)
    tasks.append(rig.submit(early, HIGH))
    early.reached()
    assert first.stop is not None
    assert first.stop.raised == GO
    early.permit()
    wait(tasks[1])
    tasks.append(rig.submit(second, MEDIUM))
    second.reached(0)
    tasks.append(rig.submit(late, HIGH))
    first.permit()
    second.permit()
    late.reached()
    assert rig.workers.statistics().preemptions == 1
    first.permit()
    second.permit()
    late.permit()
    for task in tasks:
        wait(task)
    assert first.results == second.results == [2]


def test_medium_does_not_preempt_medium(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    first, second = Steps(2, permits=0), Steps(permits=1)
    tasks = [rig.submit(first), rig.submit(second)]
    first.reached(0)
    first.permit(2)
    for task in tasks:
        wait(task)
    assert rig.workers.statistics().preemptions == 0
    assert first.runs == 1


def test_higher_work_that_comes_as_low_takes_the_core_still_gets_it(
    rigs: Callable[..., Rig],
) -> None:
    """LOW is handed out between the submission of HIGH work and its start: it must yield."""
    rig = rigs(1)
    warm = Steps(permits=1)
    wait(rig.submit(warm, HIGH))
    until(lambda: bool(rig.workers._crew._idle[(HIGH, MEDIUM)]))
    low, urgent = Steps(2), Steps()

    class Between(Instrument):
        def task_submitted(self, task: Any) -> None:
            if task.call is urgent:
                rig.submit(low, LOW)
                low.reached(0)

    rig.tracer.add(Between())
    urgent_task = rig.submit(urgent, HIGH)
    urgent.reached()
    low.permit()
    until(lambda: rig.workers.statistics().preemptions == 1)
    assert low.at == 1
    urgent.permit()
    wait(urgent_task)


def test_low_gets_the_core_when_queued_higher_work_expires(rigs: Callable[..., Rig]) -> None:
    """The worker that finds only expired work gives its core back, however it comes to that."""
    rig = rigs(1, watchdog=ManualWatchdog())
    first, expiring, low = Steps(), Steps(permits=1), Steps(permits=1)
    first_task = rig.submit(first, HIGH)
    first.reached()
    expiring_task = in_time(lambda deadline_ns: rig.submit(expiring, HIGH, deadline_ns))
    low_task = rig.submit(low, LOW)
    until(lambda: now_ns() > expiring_task.deadline_ns)
    first.permit()
    wait(first_task)
    assert isinstance(failure(expiring_task), MissedDeadlinePersistent)
    wait(low_task)
    assert expiring.runs == 0


def test_low_gets_the_core_of_each_worker_that_goes_idle(rigs: Callable[..., Rig]) -> None:
    rig = rigs(2)
    urgent = [Steps(), Steps()]
    low = [Steps(), Steps()]
    urgent_tasks = [rig.submit(call, HIGH) for call in urgent]
    for call in urgent:
        call.reached()
    low_tasks = [rig.submit(call, LOW) for call in low]
    for high, waiting in zip(urgent, low, strict=True):
        assert waiting.runs == 0
        high.permit()
        waiting.reached()
    for call in low:
        call.permit()
    for task in (*urgent_tasks, *low_tasks):
        wait(task)


def test_order_on_one_worker(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    first = Steps()
    order: list[str] = []
    tasks = [rig.submit(first, HIGH)]
    first.reached()
    soon = now_ns() + 3600 * 10**9
    for name, priority, deadline_ns in (
        ("patient", MEDIUM, NEVER_NS),
        ("later", MEDIUM, soon + 1),
        ("soon", MEDIUM, soon),
        ("high", HIGH, NEVER_NS),
    ):
        task = rig.task(Steps(permits=1), priority, deadline_ns, name)
        task.fence.add_callback(functools.partial(lambda name, _: order.append(name), name))
        rig.workers.submit(task)
        tasks.append(task)
    first.permit()
    for task in tasks:
        wait(task)
    assert order == ["high", "soon", "later", "patient"]


# -- a hung device and the others


def test_hung_executions_do_not_take_the_workers_from_others(rigs: Callable[..., Rig]) -> None:
    rig = rigs(2)
    hung = [Steps(deaf=True) for _ in range(2)]
    lost = [rig.submit(call) for call in hung]
    for call, task in zip(hung, lost, strict=True):
        call.reached()
        rig.workers.abandon(task)
    others = [rig.submit(Steps(permits=1), priority) for priority in (HIGH, MEDIUM, LOW)]
    for task in others:
        wait(task)
    assert rig.workers.statistics().quarantined == 2
    for call in hung:
        call.permit()
    for task in lost:
        released(task).wait_blocking(PATIENCE_S)
    again = [Steps() for _ in range(3)]
    tasks = [rig.submit(call) for call in again]
    again[0].reached()
    again[1].reached()
    until(lambda: threads_of("worker") <= 2)
    assert again[2].runs == 0
    for call in again:
        call.permit()
    for task in tasks:
        wait(task)


def test_hung_low_executions_do_not_take_the_cores_from_others(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    hung = Steps(deaf=True)
    lost = rig.submit(hung, LOW)
    hung.reached()
    waiting = rig.submit(Steps(permits=1), LOW)
    rig.workers.abandon(lost)
    wait(waiting)
    wait(rig.submit(Steps(permits=1), LOW))
    hung.permit()
    released(lost).wait_blocking(PATIENCE_S)
    wait(rig.submit(Steps(permits=1), LOW))


# -- handing over, heat, statistics


def test_dependant_runs_on_the_thread_that_settled(rigs: Callable[..., Rig]) -> None:
    """Also with another worker idle: a chain wakes no other thread."""
    rig = rigs(2)
    warm = [Steps(), Steps()]
    for call in warm:
        rig.submit(call)
    for call in warm:
        call.reached()
        call.permit()
    until(lambda: len(rig.workers._crew._idle[(HIGH, MEDIUM)]) == 2)
    calls = [Steps(permits=0 if number == 0 else 1) for number in range(8)]
    tasks = [rig.task(call) for call in calls]
    for task, following in itertools.pairwise(tasks):
        task.fence.add_callback(functools.partial(submit_after, rig, following))
    rig.workers.submit(tasks[0])
    calls[0].reached()
    calls[0].permit()
    for task in tasks:
        wait(task)
    assert len({thread for call in calls for thread in call.threads}) == 1


def test_only_one_dependant_is_handed_over(rigs: Callable[..., Rig]) -> None:
    rig = rigs(2)
    first, left, right = Steps(), Steps(), Steps()
    task = rig.submit(first)
    first.reached()

    def split(_: Fence) -> None:
        rig.submit(left)
        rig.submit(right)

    task.fence.add_callback(split)
    first.permit()
    left.reached()
    right.reached()
    assert left.threads != right.threads


def test_dependant_of_another_set_is_not_handed_over(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    first, low = Steps(), Steps(permits=1)
    task, low_task = rig.submit(first), rig.task(low, LOW)
    first.reached()
    task.fence.add_callback(lambda _: rig.workers.submit(low_task))
    first.permit()
    wait(low_task)
    assert low.threads[0].startswith("nnasync-low")


def test_heat_keeps_a_thread_ready(rigs: Callable[..., Rig]) -> None:
    rig = rigs(2)
    assert rig.workers.statistics().threads == 0
    rig.workers.enter_fast_state()
    assert rig.workers.statistics().threads == 1
    assert rig.workers.statistics().hot == 1
    rig.workers.leave_fast_state()
    assert rig.workers.statistics().hot == 0


def test_heat_starts_no_more_threads_than_cores(rigs: Callable[..., Rig]) -> None:
    rig = rigs(2)
    busy = [Steps() for _ in range(2)]
    for call in busy:
        rig.submit(call)
        call.reached()
    for _ in range(5):
        rig.workers.enter_fast_state()
    assert rig.workers.statistics().threads == 2
    third = Steps(permits=1)
    rig.submit(third, HIGH)
    assert third.runs == 0


def test_threads_are_prepared_before_their_first_task(rigs: Callable[..., Rig]) -> None:
    prepared: list[tuple[str, bool]] = []
    rig = rigs(1)
    rig.workers._on_start = lambda worker: prepared.append(
        (threading.current_thread().name, LOW in worker.priorities)
    )
    high, low = Steps(permits=1), Steps(permits=1)
    wait(rig.submit(high, HIGH))
    assert prepared == [(high.threads[0], False)]
    wait(rig.submit(low, LOW))
    assert prepared[1:] == [(low.threads[0], True)]


def test_statistics(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    for _ in range(3):
        wait(rig.submit(Steps(permits=1)))
    until(lambda: rig.workers.statistics().running == 0)
    found = rig.workers.statistics()
    assert found.worker_runs == 3
    assert found.worker_ns > 0
    assert (found.live, found.quarantined, found.preemptions, found.inline_runs) == (0, 0, 0, 0)
    assert (found.scheduler.submitted, found.scheduler.dispatched) == (3, 3)


def test_instruments_see_every_piece_of_a_run(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    seen: list[object] = []

    class Watching(Instrument):
        def task_submitted(self, task: Any) -> None:
            seen.append((task.name, "submitted"))

        def task_started(self, task: Any, begun_ns: int) -> None:
            seen.append((task.name, "started"))

        def task_ran(self, task: Any, begun_ns: int, ended_ns: int, finished: bool) -> None:
            seen.append((task.name, finished, begun_ns <= ended_ns))

    rig.tracer.add(Watching())
    low, urgent = Steps(2), Steps()
    low_task = rig.submit(low, LOW, name="low")
    low.reached(0)
    task = rig.submit(urgent, HIGH, name="high")
    urgent.reached()
    low.permit()
    until(lambda: rig.workers.statistics().preemptions == 1)
    urgent.permit()
    low.permit()
    wait(task)
    wait(low_task)
    by_name = {name: [each[1:] for each in seen if each[0] == name] for name in ("low", "high")}  # type: ignore[index]
    assert by_name == {
        "low": [("submitted",), ("started",), (False, True), ("started",), (True, True)],
        "high": [("submitted",), ("started",), (True, True)],
    }


# -- what shares the cores with the thread of a loop


def spread(rig: Rig, call: Steps) -> Any:
    task = rig.task(call)
    task.is_spread = True
    rig.workers.submit(task)
    return task


def test_what_was_spread_leaves_a_core_to_the_thread_of_the_loop(rigs: Callable[..., Rig]) -> None:
    rig = rigs(2)
    first, second = Steps(), Steps()
    spread(rig, first)
    first.reached()
    later = spread(rig, second)
    assert threads_of("worker") == 1
    assert second.runs == 0
    first.permit()
    second.permit()
    wait(later)
    assert first.threads == second.threads


def test_what_waits_behind_a_spread_one_gets_a_thread_if_that_has_other_work(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(2)
    first, urgent, second = Steps(), Steps(), Steps(permits=1)
    spread(rig, first)
    first.reached()
    rig.submit(Steps(permits=1), MEDIUM)
    until(lambda: threads_of("worker") == 2 and rig.workers.is_at_rest)
    later = spread(rig, second)
    rig.submit(urgent, HIGH)
    first.permit()
    urgent.reached()
    wait(later)
    assert second.threads != urgent.threads
    urgent.permit()


def test_nothing_is_kept_for_a_loop_that_takes_nothing_beside_other_clients(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(2)
    rig.workers.open_client(queue_limit=10)
    first, second = Steps(), Steps(permits=1)
    spread(rig, first)
    first.reached()
    wait(spread(rig, second))
    first.permit()


def test_a_spread_one_that_hangs_is_no_bar_once_its_thread_is_given_up(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(2, watchdog=ManualWatchdog())
    stuck = Steps(deaf=True)
    task = spread(rig, stuck)
    stuck.reached()
    rig.workers.abandon(task)
    behind = Steps(permits=1)
    later = spread(rig, behind)
    assert isinstance(rig.watchdog, ManualWatchdog)
    rig.workers._write_off(task)
    wait(later)
    assert behind.threads != stuck.threads
    stuck.permit()


def test_what_is_spread_does_not_wait_for_low_work_whose_thread_would_not_take_it(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(2)
    low, medium = Steps(), Steps(permits=1)
    task = rig.task(low, LOW)
    task.is_spread = True
    rig.workers.submit(task)
    low.reached()
    wait(spread(rig, medium))
    low.permit()
    wait(task)


@given(st.integers(2, 4), st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
@settings(max_examples=30, deadline=None)
def test_nobody_waits_for_ever_whatever_comes_beside_what_was_spread(
    cores: int, tasks: list[tuple[bool, bool]]
) -> None:
    """Each is spread or not, and HIGH or not; all are answered."""
    rig = Rig(cores, 1000, Watchdog())
    try:
        waited = []
        for is_spread, is_urgent in tasks:
            task = rig.task(Steps(permits=1), HIGH if is_urgent else MEDIUM)
            task.is_spread = is_spread
            rig.workers.submit(task)
            waited.append(task)
        for task in waited:
            wait(task)
        assert threads_of("worker") <= cores
    finally:
        rig.close()
