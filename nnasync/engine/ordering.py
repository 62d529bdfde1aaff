"""What a task waits for before it may run: fences, and room among the executions of its plan."""

from __future__ import annotations

import threading
from collections import deque

from nnasync.clock import now_ns
from nnasync.errors import GeneralFailure
from nnasync.fences import Fence
from nnasync.workers import Task, Workers

__all__ = ["Dependencies", "DependencyFailed", "Gate"]


class DependencyFailed(GeneralFailure):
    """A fence that the execution waited for failed; the first error of the chain is the cause."""


class Gate:
    """Lets at most `limit` tasks of one plan be with the workers; 0 lets all of them through."""

    def __init__(self, workers: Workers, limit: int) -> None:
        self._workers = workers
        self._limit = limit
        self._lock = threading.Lock()
        self._inside = 0
        self._waiting: deque[Task] = deque()

    def try_enter(self) -> bool:
        """Take a place for a run on the calling thread, if there is one; `leave` gives it back."""
        if self._limit == 0:
            return True
        with self._lock:
            if self._inside >= self._limit:
                return False
            self._inside += 1
            return True

    def leave(self) -> None:
        """Give the place back, to the task that waits longest."""
        if self._limit:
            self._leave()

    def submit(self, task: Task, *, held: bool) -> None:
        """Let a task through, now or when there is room; a refusal of a held task settles it."""
        if self._limit:
            with self._lock:
                if self._inside >= self._limit:
                    self._waiting.append(task)
                    self._workers.hold(task)
                    return
                self._inside += 1
            task.when_released(self._leave)
        if held:
            self._workers.submit_held(task)
            return
        try:
            self._workers.submit(task)
        except BaseException:
            task.release()
            raise

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            task = None
            while self._waiting and (task is None or task.fence.done):
                task = self._waiting.popleft()
        if task is not None and not task.fence.done:
            self.submit(task, held=True)


class Dependencies:
    """Counts the fences that a task waits for; the last one hands it to the gate."""

    __slots__ = ("_duration_ns", "_gate", "_left", "_lock", "_task", "_workers")

    def __init__(
        self, task: Task, count: int, gate: Gate, workers: Workers, duration_ns: int | None
    ) -> None:
        self._task = task
        self._left = count
        self._gate = gate
        self._workers = workers
        self._duration_ns = duration_ns
        self._lock = threading.Lock()

    def met(self, fence: Fence) -> None:
        """Count one dependency as met; one that failed settles the task."""
        task = self._task
        if fence.error is not None:
            self._workers.settle(task, _failed_dependency(task, fence.error))
            return
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._ready()

    def _ready(self) -> None:
        task = self._task
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
