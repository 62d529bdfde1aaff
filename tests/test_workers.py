"""Workers keep the core budget, give every task one answer, and serve on whatever a device does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nnasync.clock import Alarm, Watchdog, now_ns
from nnasync.errors import (
    Cancelled,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence
from nnasync.hal import Priority
from nnasync.scheduler import NEVER_NS, Estimate
from nnasync.tracing import Instrument, Tracer
from nnasync.workers import ABORT, GO, StopFlag, Task, Workers
from tests.rigs import ManualWatchdog

pytestmark = pytest.mark.usefixtures("no_leaks")

LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH
PATIENCE_S = 60
MS = 1_000_000


class Steps:
    """A call that counts to `steps`, each step behind a permit, and notes what happens to it."""

    def __init__(self, steps: int = 1, *, permits: int = 0, deaf: bool = False) -> None:
        self.steps = steps
        self.at = 0
        self.results: list[int] = []
        self.rewinds = 0
        self.runs = 0
        self.threads: list[str] = []
        self.error: BaseException | None = None
        self.lies = False
        self._deaf = deaf
        self._permits = threading.Semaphore(permits)
        self._reached = [Fence() for _ in range(steps)]
        self.stop: StopFlag | None = None

    def reached(self, step: int = 0) -> None:
        """Wait until the call is before this step, on a worker."""
        self._reached[step].wait_blocking(PATIENCE_S)

    def permit(self, steps: int = 1) -> None:
        self._permits.release(steps)

    def run(self, stop: StopFlag) -> bool:
        self.stop = stop
        self.runs += 1
        self.threads.append(threading.current_thread().name)
        while self.at < self.steps:
            if stop.raised and not self._deaf:
                return False
            self._reached[self.at].signal()
            self._permits.acquire()
            self.at += 1
        if self.error is not None:
            raise self.error
        if self.lies:
            return False
        self.results.append(self.at)
        self.at = 0
        return True

    def rewind(self) -> None:
        self.rewinds += 1
        self.at = 0


class Rig:
    """Workers, and what they are given; all of it is let go at the end."""

    def __init__(self, cores: int, queue_limit: int, watchdog: Watchdog) -> None:
        self.watchdog = watchdog
        self.tracer = Tracer()
        self.workers = Workers(
            cores=cores,
            inline_budget_ns=MS,
            stall_budget_ns=2 * MS,
            queue_limit=queue_limit,
            watchdog=watchdog,
            tracer=self.tracer,
        )
        self.calls: list[Steps] = []

    def task(
        self, call: Any, priority: Priority = MEDIUM, deadline_ns: int = NEVER_NS, name: str = "it"
    ) -> Task:
        if isinstance(call, Steps):
            self.calls.append(call)
        return Task(call, priority, Estimate(), deadline_ns, name)

    def submit(
        self, call: Any, priority: Priority = MEDIUM, deadline_ns: int = NEVER_NS, name: str = "it"
    ) -> Task:
        task = self.task(call, priority, deadline_ns, name)
        self.workers.submit(task)
        return task

    def close(self) -> None:
        for call in self.calls:
            call.permit(10 * call.steps)
        self.workers.close()
        assert self.workers.join(PATIENCE_S) == 0
        self.watchdog.close()


@pytest.fixture
def rigs() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(cores: int = 1, *, queue_limit: int = 1000, watchdog: Watchdog | None = None) -> Rig:
        made.append(Rig(cores, queue_limit, watchdog or Watchdog()))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def released(task: Task) -> Fence:
    """A fence that is signaled when the task's memory is free again."""
    fence = Fence()
    task.when_released(fence.signal)
    return fence


def wait(task: Task) -> None:
    """Wait for a task to succeed and to be let go."""
    task.fence.wait_blocking(PATIENCE_S)
    released(task).wait_blocking(PATIENCE_S)


def failure(task: Task) -> Exception:
    """Wait for a task to fail, and return its error."""
    with pytest.raises(NNError):
        task.fence.wait_blocking(PATIENCE_S)
    assert task.fence.error is not None
    return task.fence.error


def settles(task: Task) -> list[Fence]:
    """Every settling of a task, as it happens."""
    found: list[Fence] = []
    task.fence.add_callback(found.append)
    return found


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


def until(reached: Callable[[], bool]) -> None:
    """Look again and again until it is so; each look lets other threads go on."""
    end_ns = now_ns() + PATIENCE_S * 1_000_000_000
    turn = threading.Event()
    while not reached():
        assert now_ns() < end_ns, "it never came to that"
        turn.wait(0.0005)


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
    until(lambda: bool(rig.workers._idle[(HIGH, MEDIUM)]))
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
    deadline_ns = now_ns() + 5 * MS
    expiring_task = rig.submit(expiring, HIGH, deadline_ns)
    low_task = rig.submit(low, LOW)
    until(lambda: now_ns() > deadline_ns)
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
        task.fence.add_callback(lambda _, name=name: order.append(name))
        rig.workers.submit(task)
        tasks.append(task)
    first.permit()
    for task in tasks:
        wait(task)
    assert order == ["high", "soon", "later", "patient"]


# -- one answer: deadlines


def test_deadline_is_answered_while_the_device_hangs(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    hung = Steps(2, deaf=True)
    task = rig.task(hung, deadline_ns=now_ns() + 20 * MS)
    answers, release = settles(task), released(task)
    rig.workers.submit(task)
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
    call.reached(1 - 1)
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
    call = Steps()
    task = rig.submit(call, deadline_ns=now_ns() + 20 * MS)
    call.reached()
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
    task = rig.submit(second, deadline_ns=now_ns() + 5 * MS)
    error = failure(task)
    assert isinstance(error, MissedDeadlinePersistent)
    assert "before" in str(error)
    released(task).wait_blocking(PATIENCE_S)
    assert second.runs == second.rewinds == 0
    assert rig.workers.statistics().scheduler.withdrawn == 1


def test_held_task_has_a_deadline_too(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    call = Steps()
    task = rig.task(call, deadline_ns=now_ns() + 5 * MS)
    rig.workers.hold(task)
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
    wait(rig.submit(Steps(permits=1)))
    until(lambda: bool(rig.workers._idle[(HIGH, MEDIUM)]))
    until(lambda: rig.workers.statistics().running == 0)
    first = Steps(permits=1)
    task = rig.task(first, deadline_ns=now_ns() + 3600 * 10**9)
    submitter = threading.Thread(target=rig.workers.submit, args=(task,))
    submitter.start()
    until(lambda: rig.workers._scheduler.queued((MEDIUM,)) == 1 or task.fence.done)
    wait(rig.submit(Steps(permits=1)))
    submitter.join(PATIENCE_S)
    assert [alarm._callback for alarm in watchdog.alarms] == [None]


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
    until(lambda: rig.workers.statistics().threads <= 3)
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
        answers, releases = settles(task), []
        task.when_released(lambda releases=releases: releases.append(1))
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
    rig.workers.heat()
    assert rig.workers.join(PATIENCE_S) == 0


def test_dismissing_one_model_leaves_the_others(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    running, queued, other = Steps(2), Steps(), Steps(permits=1)
    tasks = [rig.task(call) for call in (running, queued, Steps())]
    for task in tasks:
        task.estimate = tasks[0].estimate
    rig.workers.submit(tasks[0])
    running.reached(0)
    rig.workers.submit(tasks[1])
    rig.workers.hold(tasks[2])
    kept = rig.submit(other)
    rig.workers.dismiss(tasks[0].estimate, DeviceUnavailable("the model is closed"))
    for task in tasks:
        assert isinstance(failure(task), DeviceUnavailable)
    running.permit()
    wait(kept)


# -- the inline lane


def inline(rig: Rig, estimate: Estimate, call: Any, deadline_ns: int = NEVER_NS) -> int:
    return rig.workers.run_inline(call, estimate, deadline_ns, "it")


def known(duration_ns: float) -> Estimate:
    estimate = Estimate()
    estimate.observe(int(duration_ns))
    return estimate


def test_only_what_is_known_to_be_cheap_may_run_inline(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    may = rig.workers.may_inline
    assert not may(HIGH, Estimate(), NEVER_NS)
    assert may(HIGH, known(MS), NEVER_NS)
    assert not may(HIGH, known(MS + 1), NEVER_NS)
    assert not may(HIGH, known(MS // 2), MS // 4)
    unlucky = known(MS // 2)
    for _ in range(10):
        unlucky.overran(MS // 2)
    assert not may(HIGH, unlucky, NEVER_NS)
    rig.workers.close()
    assert not may(HIGH, known(MS), NEVER_NS)


def test_inline_gives_way_to_queued_work_of_higher_priority(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    running, queued = Steps(), Steps()
    rig.submit(running, HIGH)
    running.reached()
    rig.submit(queued, MEDIUM)
    assert not rig.workers.may_inline(LOW, known(1), NEVER_NS)
    assert rig.workers.may_inline(MEDIUM, known(1), NEVER_NS)


def test_inline_work_is_accounted_to_the_turn(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    workers = rig.workers

    class Lasting:
        def run(self, stop: StopFlag) -> bool:
            begun_ns = now_ns()
            until(lambda: now_ns() - begun_ns > 3 * MS)
            return True

        def rewind(self) -> None:
            raise AssertionError("it ended")

    assert not workers.turn_is_spent(known(10 * MS))  # something must run in each turn
    assert not workers.turn_is_half_spent()
    duration_ns = inline(rig, Estimate(), Lasting())
    assert duration_ns > 3 * MS
    assert workers.turn_is_spent(known(1))
    assert workers.turn_is_half_spent()
    turn = workers.turn
    seen_elsewhere: list[bool] = []
    thread = threading.Thread(target=lambda: seen_elsewhere.append(workers.turn_is_half_spent()))
    thread.start()
    thread.join(PATIENCE_S)
    assert seen_elsewhere == [False]
    workers.turned(turn)
    assert not workers.turn_is_spent(known(1))
    inline(rig, Estimate(), Lasting())
    workers.turned(turn)  # another waiter of the same turn
    assert workers.turn_is_half_spent()
    statistics = workers.statistics()
    assert statistics.inline_runs == 2
    assert statistics.inline_ns > 6 * MS


def test_inline_run_teaches_the_estimate(rigs: Callable[..., Rig]) -> None:
    estimate = Estimate()
    call = Steps(2, permits=2)
    duration_ns = inline(rigs(1), estimate, call)
    assert call.results == [2]
    assert call.threads == [threading.current_thread().name]
    assert estimate.samples == 1
    assert estimate.ns == duration_ns


def test_inline_run_is_refused_when_the_deadline_is_too_near(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    call = Steps(permits=1)
    estimate = known(3600 * 10**9)
    with pytest.raises(MissedDeadlinePersistent):
        inline(rig, estimate, call, now_ns() + 60 * 10**9)
    assert call.runs == 0
    assert estimate.floor_ns < 3600 * 10**9
    with pytest.raises(MissedDeadlinePersistent):
        inline(rig, Estimate(), call, now_ns() - 1)


def test_inline_run_is_judged_at_its_end(rigs: Callable[..., Rig]) -> None:
    deadline_ns = now_ns() + 20 * MS

    class Late:
        def run(self, stop: StopFlag) -> bool:
            until(lambda: now_ns() > deadline_ns)
            return True

        def rewind(self) -> None:
            raise AssertionError("it ended")

    with pytest.raises(MissedDeadlineTransient):
        inline(rigs(1), Estimate(), Late(), deadline_ns)


@pytest.mark.parametrize("error", [KeyError("layer"), StopIteration(), InvalidArgument("index")])
def test_inline_run_that_raises(rigs: Callable[..., Rig], error: Exception) -> None:
    rig = rigs(1)
    call = Steps(permits=1)
    call.error = error
    expected = type(error) if isinstance(error, NNError) else GeneralFailure
    with pytest.raises(expected):
        inline(rig, Estimate(), call)
    assert call.rewinds == 1
    assert rig.workers.statistics().inline_runs == 0


def test_inline_run_that_stops_unasked(rigs: Callable[..., Rig]) -> None:
    call = Steps(permits=1)
    call.lies = True
    with pytest.raises(GeneralFailure, match="without having been asked"):
        inline(rigs(1), Estimate(), call)
    assert call.rewinds == 1


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
    until(lambda: len(rig.workers._idle[(HIGH, MEDIUM)]) == 2)
    calls = [Steps(permits=0 if number == 0 else 1) for number in range(8)]
    tasks = [rig.task(call) for call in calls]
    for task, following in zip(tasks, tasks[1:], strict=False):
        task.fence.add_callback(lambda _, following=following: rig.workers.submit(following))
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
    rig.workers.heat()
    assert rig.workers.statistics().threads == 1
    assert rig.workers.statistics().hot == 1
    rig.workers.cool()
    assert rig.workers.statistics().hot == 0


def test_heat_starts_no_more_threads_than_cores(rigs: Callable[..., Rig]) -> None:
    rig = rigs(2)
    busy = [Steps() for _ in range(2)]
    for call in busy:
        rig.submit(call)
        call.reached()
    for _ in range(5):
        rig.workers.heat()
    assert rig.workers.statistics().threads == 2
    third = Steps(permits=1)
    rig.submit(third, HIGH)
    assert third.runs == 0


def test_low_threads_are_prepared_before_their_first_task(rigs: Callable[..., Rig]) -> None:
    prepared: list[str] = []
    rig = rigs(1)
    rig.workers._before_low = lambda: prepared.append(threading.current_thread().name)
    wait(rig.submit(Steps(permits=1), HIGH))
    assert prepared == []
    low = Steps(permits=1)
    wait(rig.submit(low, LOW))
    assert prepared == low.threads


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
