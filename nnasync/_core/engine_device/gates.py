"""The conditions for running a task: its fences, and the concurrency limit of its plan."""

from __future__ import annotations

import threading

from nnasync._core.clock import now_ns
from nnasync._core.wakeup import Wakeup
from nnasync._core.workers import Task, Workers
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    MissedDeadlinePersistent,
    Refused,
)
from nnasync.fences import Fence
from nnasync.scheduler import NEVER_NS, Job


class DependencyFailed(GeneralFailure):
    """Raised where a fence that the execution waited for failed; its first error is the cause."""

    reason = "dependency"


class ConcurrencyGate:
    """Lets at most `limit` tasks of one plan be with the workers; 0 lets all through (`is_open`).

    The others wait in front of it, have their places with the workers as if they were queued, and
    go in by priority, then by deadline, then by arrival.
    """

    def __init__(self, workers: Workers, limit: int) -> None:
        self._workers = workers
        self._limit = limit
        self.is_open = limit == 0
        self._lock = threading.Lock()
        self._inside = 0
        self._waiting: dict[Task, None] = {}
        self._letting_in = False

    def limit_to(self, limit: int) -> None:
        """Lets at most this many through from now on.

        Who went through while there was no limit does not count.
        """
        with self._lock:
            self._limit = limit
            self.is_open = limit == 0
        self._let_in()

    def try_enter(self) -> bool:
        """Takes a place for a run on the calling thread, if there is one; `leave` gives it back."""
        if self._limit == 0:
            return True
        with self._lock:
            if self._inside >= self._limit:
                return False
            self._inside += 1
            return True

    def leave(self) -> None:
        """Give the place back, to a task that waits."""
        if self._limit:
            self._leave()

    def submit(self, task: Task, *, held: bool) -> None:
        """Lets a task through, now or when there is room; a refusal of a held task settles it."""
        try:
            if not self._limit or self._enters(task):
                self._workers.submit(task)
        except (Refused, DeviceUnavailable) as error:
            if held:
                self._workers.settle(task, error)
                return
            task.release()
            raise

    def submit_for_loop(self, task: Task) -> None:
        """Lets a task through that the loop of this thread awaits.

        It must end before the loop's lag.
        """
        if task.deadline_ns == NEVER_NS:
            self.submit(task, held=False)
            return
        wakeup = Wakeup.current()
        task.heard_after_ns = wakeup.lag.estimate_ns(now_ns())
        try:
            self.submit(task, held=False)
        except MissedDeadlinePersistent:
            if task.heard_after_ns:
                wakeup.measure_lag()
            raise

    def _enters(self, task: Task) -> bool:
        """Returns whether there is room now; if not, the task waits."""
        giver: Job | None = None
        with self._lock:
            enters = self._inside < self._limit and not self._waiting
            if enters:
                self._inside += 1
            else:
                # Before another thread can let it in, and have it run to its end.
                giver = self._workers.take_in(task)
                self._waiting[task] = None
        task.when_released(lambda: self._left(task))
        # Not before: it may be one that waits here too, and leaves.
        self._workers.displace(giver)
        return enters

    def _left(self, task: Task) -> None:
        with self._lock:
            if task in self._waiting:
                del self._waiting[task]
                return
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            if self._inside:  # Else it went through when there was no limit.
                self._inside -= 1
        self._let_in()

    def _let_in(self) -> None:
        """Lets waiting tasks in while there is room; refused ones leave at once."""
        with self._lock:
            if self._letting_in:
                return
            self._letting_in = True
        while (task := self._next()) is not None:
            self._workers.submit_held(task)

    def _next(self) -> Task | None:
        with self._lock:
            if self._waiting and (self.is_open or self._inside < self._limit):
                task = min(self._waiting, key=lambda each: (-each.priority, each.deadline_ns))
                del self._waiting[task]
                self._inside += 1
                return task
            self._letting_in = False
            return None


class Dependencies:
    """Counts the fences that a task waits for; the last one hands it to the gate."""

    __slots__ = ("_duration_ns", "_gate", "_left", "_lock", "_task", "_workers")

    def __init__(
        self,
        task: Task,
        count: int,
        gate: ConcurrencyGate,
        workers: Workers,
        duration_ns: int | None,
    ) -> None:
        self._task: Task | None = task
        self._left = count
        self._gate = gate
        self._workers = workers
        self._duration_ns = duration_ns
        self._lock = threading.Lock()

    def met(self, fence: Fence) -> None:
        """Counts one dependency as met; one that failed settles the task."""
        task = self._task
        if task is None:
            return
        if fence.error is not None:
            self._workers.settle(task, _failed_dependency(task, fence.error))
            return
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._ready(task)

    def forget(self) -> None:
        """Drops a task that is over, since fences may keep this object for long."""
        self._task = None

    def _ready(self, task: Task) -> None:
        if self._duration_ns is not None:
            limit_ns = now_ns() + self._duration_ns
            if limit_ns < task.deadline_ns:
                task.deadline_ns = limit_ns
                if task.alarm is not None:
                    task.alarm.disarm()
                    task.alarm = None
        if not task.fence.done:
            self._gate.submit(task, held=True)


def _failed_dependency(task: Task, error: BaseException) -> DependencyFailed:
    if isinstance(error, DependencyFailed) and error.__cause__ is not None:
        error = error.__cause__
    failure = DependencyFailed(f"{task.name} waited for a fence that failed: {error}")
    failure.__cause__ = error
    return failure
