"""Every task gets one answer, whatever the device, the clock and its owner do."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from nnasync._core.clock import Alarm, Deadline, Watchdog, now_ns
from nnasync._core.workers import ABORT, Given, StopFlag, Task
from nnasync._core.workers.running import MOST_HANGING
from nnasync.errors import (
    BadState,
    Cancelled,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence
from nnasync.hal import Priority
from nnasync.scheduler import NEVER_NS
from tests.rigs import ManualWatchdog
from tests.workers.steering import (
    HIGH,
    LOW,
    MEDIUM,
    MS,
    PATIENCE_S,
    Rig,
    Steps,
    failure,
    in_time,
    released,
    settles,
    until,
    wait,
)

pytestmark = pytest.mark.usefixtures("no_leaks")


# -- one answer: deadlines


def begun(rig: Rig, make: Callable[[], Steps]) -> tuple[Steps, Task, list[Fence]]:
    """A call that has begun before its deadline, which is near; its task, and its answers.

    On a busy machine a worker may come too late for the first deadlines.
    """

    def begin(deadline_ns: int) -> tuple[Steps, Task, list[Fence]]:
        call = make()
        task = rig.task(call, deadline_ns=deadline_ns)
        answers = settles(task)
        rig.workers.submit(task)
        until(lambda: call.runs > 0 or task.fence.done)
        if not call.runs:
            raise failure(task)
        return call, task, answers

    return in_time(begin)


def test_deadline_is_answered_while_the_device_hangs(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    hung, task, answers = begun(rig, lambda: Steps(2, deaf=True))
    release = released(task)
    error = failure(task)
    assert isinstance(error, MissedDeadlineTransient)
    assert "during" in str(error)
    assert task.fence.signaled_at_ns >= task.deadline_ns
    assert not release.done
    assert rig.workers.statistics().quarantined == 1
    assert task.stop.raised == ABORT
    hung.permit(2)
    release.wait_blocking(PATIENCE_S)
    assert hung.results == [2]
    assert task.fence.error is error
    assert len(answers) == 1
    assert rig.workers.statistics().quarantined == 0


def test_deadline_aborts_at_the_next_operation(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1, watchdog=ManualWatchdog())
    call = Steps(3)
    task = rig.submit(call, deadline_ns=now_ns() + 3600 * 10**9)
    call.reached(0)
    watchdog = rig.watchdog
    assert isinstance(watchdog, ManualWatchdog)
    watchdog.alarms[0]._callback()  # type: ignore[misc]
    assert isinstance(failure(task), MissedDeadlineTransient)
    call.permit()
    released(task).wait_blocking(PATIENCE_S)
    assert call.rewinds == 1
    assert call.results == []
    assert rig.workers.statistics().live == 0


def test_late_end_is_a_miss_even_if_the_alarm_is_later(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1, watchdog=ManualWatchdog())
    call, task, _ = begun(rig, Steps)
    until(lambda: now_ns() > task.deadline_ns)
    call.permit()
    assert isinstance(failure(task), MissedDeadlineTransient)
    released(task).wait_blocking(PATIENCE_S)
    assert call.rewinds == 0


def test_deadline_passed_in_the_queue(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    first, second = Steps(), Steps()
    rig.submit(first)
    first.reached()
    task = in_time(lambda deadline_ns: rig.submit(second, deadline_ns=deadline_ns))
    error = failure(task)
    assert isinstance(error, MissedDeadlinePersistent)
    assert "before" in str(error)
    released(task).wait_blocking(PATIENCE_S)
    assert second.runs == second.rewinds == 0
    assert rig.workers.statistics().scheduler.expired == 1
    assert rig.workers.statistics().scheduler.withdrawn == 0


def test_held_task_has_a_deadline_too(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    call = Steps()

    def hold(deadline_ns: int) -> Task:
        task = rig.task(call, deadline_ns=deadline_ns)
        rig.workers.hold(task)
        return task

    task = in_time(hold)
    assert isinstance(failure(task), MissedDeadlinePersistent)
    rig.workers.submit_held(task)
    assert rig.workers.statistics().live == 0
    assert call.runs == 0


def test_refused_task_is_not_kept(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1, queue_limit=1)
    first, second, third = Steps(), Steps(), Steps()
    rig.submit(first)
    first.reached()
    rig.submit(second)
    with pytest.raises(ResourceExhaustedTransient):
        rig.submit(third)
    held = rig.task(third)
    with pytest.raises(ResourceExhaustedTransient):
        rig.workers.hold(held)
    rig.workers.submit_held(held)
    assert isinstance(failure(held), ResourceExhaustedTransient)
    assert rig.workers.statistics().live == 2
    with pytest.raises(MissedDeadlinePersistent):
        rigs(1).submit(Steps(), deadline_ns=now_ns() - 1)


def test_alarm_of_a_task_that_ended_first_is_disarmed(rigs: Callable[..., Rig]) -> None:
    """Arming comes after queueing; by then the task may be over."""

    class Slow(ManualWatchdog):
        def arm(self, at_ns: int, callback: Callable[[], object]) -> Alarm:
            wait(task)
            return super().arm(at_ns, callback)

    watchdog = Slow()
    rig = rigs(1, watchdog=watchdog)
    busy = Steps()
    rig.submit(busy)
    busy.reached()
    task = rig.task(Steps(permits=1), deadline_ns=now_ns() + 3600 * 10**9)
    submitter = threading.Thread(target=rig.workers.submit, args=(task,))
    submitter.start()
    until(lambda: rig.workers._scheduler.queued((MEDIUM,)) == 1)
    busy.permit()
    submitter.join(PATIENCE_S)
    assert [alarm._callback for alarm in watchdog.alarms] == [None]


# -- one answer: cancelling


def test_cancelling_a_queued_task(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    first, second = Steps(), Steps()
    rig.submit(first)
    first.reached()
    task = rig.submit(second)
    release = released(task)
    rig.workers.abandon(task)
    assert release.done
    assert isinstance(failure(task), Cancelled)
    assert second.runs == second.rewinds == 0
    assert rig.workers.statistics().live == 1


def test_cancelling_a_running_task_frees_the_device_at_the_next_operation(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(1)
    call = Steps(3)
    task = rig.submit(call)
    call.reached(0)
    release = released(task)
    rig.workers.abandon(task)
    assert isinstance(failure(task), Cancelled)
    assert not release.done
    call.permit()
    release.wait_blocking(PATIENCE_S)
    assert call.at == 0
    assert call.rewinds == 1
    wait(rig.submit(Steps(permits=1)))


def test_cancelling_a_preempted_task(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    low, urgent = Steps(2), Steps()
    task = rig.submit(low, LOW)
    low.reached(0)
    rig.submit(urgent, HIGH)
    urgent.reached()
    low.permit()
    until(lambda: rig.workers.statistics().preemptions == 1)
    release = released(task)
    rig.workers.abandon(task)
    assert release.done
    assert isinstance(failure(task), Cancelled)
    assert low.rewinds == 1
    assert rig.workers.statistics().live == 1


def test_cancelling_a_task_that_was_asked_to_yield(rigs: Callable[..., Rig]) -> None:
    """An abort beats a yield: the task is not queued again."""
    rig = rigs(1)
    low, urgent = Steps(2), Steps(permits=1)
    task = rig.submit(low, LOW)
    low.reached(0)
    rig.submit(urgent, HIGH)
    rig.workers.abandon(task)
    low.permit()
    released(task).wait_blocking(PATIENCE_S)
    statistics = rig.workers.statistics()
    assert low.rewinds == 1
    assert statistics.preemptions == statistics.scheduler.requeued == 0


def test_cancelling_a_finished_task_changes_nothing(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    call = Steps(permits=1)
    task = rig.submit(call)
    wait(task)
    rig.workers.abandon(task)
    assert task.fence.error is None
    assert call.rewinds == 0


# -- one answer: races


def test_task_is_settled_and_released_once_under_races(rigs: Callable[..., Rig]) -> None:
    rig = rigs(2)
    for number in range(60):
        call = Steps(3, permits=3)
        soon_ns = now_ns() + (number % 6) * MS // 10
        task = rig.task(call, Priority(number % 3), soon_ns if number % 2 else NEVER_NS)
        answers = settles(task)
        releases: list[int] = []
        task.when_released(functools.partial(releases.append, 1))
        rig.workers.hold(task)
        everyone = threading.Barrier(4)

        def submit(task: Task = task, everyone: Any = everyone) -> None:
            everyone.wait()
            rig.workers.submit_held(task)

        def abandon(task: Task = task, everyone: Any = everyone) -> None:
            everyone.wait()
            rig.workers.abandon(task)

        def expire(task: Task = task, everyone: Any = everyone) -> None:
            everyone.wait()
            rig.workers._expire(task)

        threads = [threading.Thread(target=each) for each in (submit, abandon, expire)]
        for thread in threads:
            thread.start()
        everyone.wait()
        for thread in threads:
            thread.join(PATIENCE_S)
        released(task).wait_blocking(PATIENCE_S)
        assert task.fence.done
        assert (len(answers), len(releases)) == (1, 1)
    until(lambda: rig.workers.statistics().running == 0)
    statistics = rig.workers.statistics()
    assert statistics.live == 0
    assert statistics.scheduler.queued == (0, 0, 0)


def test_end_and_cancelling_at_once(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    outcomes = set()
    for _ in range(60):
        call = Steps(1)
        task = rig.submit(call)
        answers = settles(task)
        call.reached()
        canceller = threading.Thread(target=rig.workers.abandon, args=(task,))
        canceller.start()
        call.permit()
        canceller.join(PATIENCE_S)
        released(task).wait_blocking(PATIENCE_S)
        assert len(answers) == 1
        outcomes.add(type(task.fence.error))
        assert call.rewinds == 0 or call.results == []
    assert outcomes <= {type(None), Cancelled}
    assert rig.workers.statistics().live == 0


# -- drivers that misbehave


@pytest.mark.parametrize(
    "error", [KeyError("layer"), SystemExit(3), KeyboardInterrupt(), StopIteration(), MemoryError()]
)
def test_whatever_a_driver_raises_is_contained(
    rigs: Callable[..., Rig], error: BaseException
) -> None:
    rig = rigs(1)
    call = Steps(permits=1)
    call.error = error
    task = rig.submit(call)
    found = failure(task)
    assert isinstance(found, GeneralFailure)
    assert type(error).__name__ in str(found)
    assert found.__cause__ is error
    released(task).wait_blocking(PATIENCE_S)
    assert call.rewinds == 1
    wait(rig.submit(Steps(permits=1)))


def test_typed_error_of_a_driver_stays_itself(rigs: Callable[..., Rig]) -> None:
    call = Steps(permits=1)
    call.error = InvalidArgument("index 7 is out of range")
    assert failure(rigs(1).submit(call)) is call.error


def test_driver_that_stops_unasked(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    call = Steps(permits=1)
    call.lies = True
    task = rig.submit(call)
    found = failure(task)
    assert isinstance(found, GeneralFailure)
    assert "without having been asked" in str(found)
    released(task).wait_blocking(PATIENCE_S)
    assert call.rewinds == 1


def test_driver_that_fails_to_rewind(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs(1)
    seen: list[type[BaseException]] = []
    monkeypatch.setattr("sys.excepthook", lambda kind, error, trace: seen.append(kind))

    class Stuck(Steps):
        def rewind(self) -> None:
            raise OSError("no")

    call = Stuck(permits=1)
    call.error = ValueError("broken")
    task = rig.submit(call)
    assert isinstance(failure(task), GeneralFailure)
    released(task).wait_blocking(PATIENCE_S)
    assert seen == [OSError]
    wait(rig.submit(Steps(permits=1)))


def test_callback_that_raises_at_release_harms_nobody(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    call = Steps()
    task = rig.submit(call)
    call.reached()
    task.when_released(lambda: 1 // 0)
    release = released(task)
    call.permit()
    release.wait_blocking(PATIENCE_S)
    wait(rig.submit(Steps(permits=1)))


# -- closing


def test_close_answers_everything_once(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    running, hung, queued, held = Steps(2), Steps(deaf=True), Steps(), Steps()
    tasks = [rig.submit(hung, LOW)]
    hung.reached()
    tasks.append(rig.submit(running, HIGH))
    running.reached(0)
    tasks.append(rig.submit(queued, HIGH))
    waiting = rig.task(held, deadline_ns=now_ns() + 3600 * 10**9)
    rig.workers.hold(waiting)
    tasks.append(waiting)
    answers = [settles(task) for task in tasks]
    rig.workers.close()
    for task in tasks:
        assert isinstance(failure(task), DeviceUnavailable)
    assert [len(each) for each in answers] == [1, 1, 1, 1]
    assert rig.workers.join(0) >= 1
    running.permit()
    released(tasks[1]).wait_blocking(PATIENCE_S)
    hung.permit()
    assert rig.workers.join(PATIENCE_S) == 0
    assert [len(each) for each in answers] == [1, 1, 1, 1]
    assert queued.runs == held.runs == 0
    assert rig.watchdog.pending() == 0
    assert rig.workers.statistics().live == 0


def test_nothing_begins_while_the_workers_close(rigs: Callable[..., Rig]) -> None:
    """The device lets go of one execution while others are told of the closing."""
    rig = rigs(1)
    running, queued = Steps(), Steps(permits=1)
    first = rig.submit(running)
    running.reached()
    second = rig.submit(queued)
    newest = rig.task(Steps())
    rig.workers.hold(newest)

    def let_go(_: Fence) -> None:
        running.permit()
        first.fence.wait_blocking(PATIENCE_S)
        until(lambda: rig.workers.join(0.0) == 0 or queued.runs > 0)

    newest.fence.add_callback(let_go)
    rig.workers.close()
    assert isinstance(failure(second), DeviceUnavailable)
    assert queued.runs == 0


def test_closed_workers_take_nothing(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    wait(rig.submit(Steps(permits=1)))
    held = rig.task(Steps())
    rig.workers.close()
    with pytest.raises(DeviceUnavailable):
        rig.submit(Steps())
    with pytest.raises(DeviceUnavailable):
        rig.workers.hold(held)
    rig.workers.submit_held(held)
    assert isinstance(failure(held), DeviceUnavailable)
    rig.workers.enter_fast_state()
    assert rig.workers.join(PATIENCE_S) == 0


def test_dismissing_one_model_leaves_the_others(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    running, queued, other = Steps(2), Steps(), Steps(permits=1)
    tasks = [rig.task(call) for call in (running, queued, Steps())]
    for task in tasks:
        task.owner = tasks[0].owner
    rig.workers.submit(tasks[0])
    running.reached(0)
    rig.workers.submit(tasks[1])
    rig.workers.hold(tasks[2])
    kept = rig.submit(other)
    rig.workers.dismiss(tasks[0].owner, DeviceUnavailable("the model is closed"))
    for task in tasks:
        assert isinstance(failure(task), DeviceUnavailable)
    running.permit()
    wait(kept)


def test_task_is_refused_where_no_thread_can_be_started(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    rig = rigs(1)
    call = Steps(permits=1)
    for priority in Priority:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(ResourceExhaustedTransient, match="thread"):
                rig.submit(call, priority)
            rig.workers.enter_fast_state()
        statistics = rig.workers.statistics()
        assert (statistics.threads, statistics.live, sum(statistics.scheduler.queued)) == (0, 0, 0)
    wait(rig.submit(call))
    assert call.runs == 1


# -- a device that takes one thread after the other


def test_model_of_which_many_executions_hang_is_refused(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1, watchdog=(watchdog := ManualWatchdog()))
    hung: list[Steps] = []
    tasks: list[Task] = []
    while len(hung) < MOST_HANGING:
        hung.append(Steps(deaf=True))
        task = rig.task(hung[-1])
        task.owner = tasks[0].owner if tasks else task.owner
        tasks.append(task)
        rig.workers.submit(task)
        hung[-1].reached()
        rig.workers.abandon(task)
        alarm = task.alarm
        assert alarm is not None
        watchdog.ring(Deadline(alarm.at_ns))
    more = rig.task(Steps(permits=1))
    more.owner = tasks[0].owner
    with pytest.raises(ResourceExhaustedTransient, match="hang on the device"):
        rig.workers.submit(more)
    wait(rig.submit(Steps(permits=1)))
    for call in hung:
        call.permit()
    for task in tasks:
        released(task).wait_blocking(PATIENCE_S)
    again = rig.task(Steps(permits=1))
    again.owner = tasks[0].owner
    rig.workers.submit(again)
    wait(again)


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        (RuntimeError("can't start new thread"), ResourceExhaustedTransient),
        (BadState("closed"), DeviceUnavailable),
    ],
)
def test_deadline_that_nobody_can_watch(
    rigs: Callable[..., Rig],
    monkeypatch: pytest.MonkeyPatch,
    trouble: Exception,
    error: type[Exception],
) -> None:
    rig = rigs(1)
    busy = Steps()
    rig.submit(busy)
    busy.reached()

    def arm(*_: object) -> Alarm:
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(Watchdog, "arm", arm)
        task = rig.submit(Steps(), deadline_ns=now_ns() + 3600 * 10**9)
    assert isinstance(failure(task), error)
    assert released(task).done
    assert rig.workers.statistics().live == 1


def test_interrupt_that_hangs_takes_neither_the_lock_nor_the_watchdog(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(2)
    let_go = threading.Event()

    class Stubborn(Steps):
        def run(self, stop: StopFlag, given: Given = None) -> bool:
            stop.arm(let_go.wait)
            try:
                return super().run(stop)
            finally:
                stop.disarm()

    stubborn = Stubborn(deaf=True)
    lost = rig.submit(stubborn)
    stubborn.reached()
    rig.workers.abandon(lost)
    other, second, _ = begun(rig, lambda: Steps(deaf=True))
    assert isinstance(failure(second), MissedDeadlineTransient)
    wait(rig.submit(Steps(permits=1)))
    let_go.set()
    stubborn.permit()
    other.permit()
    released(lost).wait_blocking(PATIENCE_S)
