"""What a task waits for before it may run: fences, and room among the executions of its plan."""

from __future__ import annotations

import threading
from collections import deque

from nnasync.clock import now_ns
from nnasync.errors import GeneralFailure
from nnasync.fences import Fence
from nnasync.workers import Task, Workers

__all__ = ["Dependencies", "Gate"]


class Gate:
    """Lets at most `limit` tasks of one plan be with the workers; 0 lets all of them through."""

    def __init__(self, workers: Workers, limit: int) -> None:
        self._workers = workers
        self._limit = limit
        self._lock = threading.Lock()
        self._inside = 0
        self._waiting: deque[Task] = deque()

    @property
    def is_free(self) -> bool:
        """Whether another task would go straight to the workers."""
        return self._limit == 0 or self._inside < self._limit

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
            failure = GeneralFailure(f"{task.name} waited for a fence that failed: {fence.error}")
            failure.__cause__ = fence.error
            self._workers.settle(task, failure)
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
