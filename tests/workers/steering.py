"""Workers under test, and calls that a test steers step by step."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import pytest

from nnasync._core.clock import Watchdog, now_ns
from nnasync._core.workers import Given, StopFlag, Task, Workers
from nnasync._core.workers.demotion import LowOsPriority
from nnasync._core.workers.turns import Turns
from nnasync.errors import MissedDeadlinePersistent, NNError
from nnasync.fences import Fence
from nnasync.hal import Priority
from nnasync.scheduler import AGING_NS, NEVER_NS, Estimate, Policy
from nnasync.tracing import Tracer

T = TypeVar("T")

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

    def run(self, stop: StopFlag, given: Given = None) -> bool:
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

    def __init__(
        self,
        cores: int,
        queue_limit: int,
        watchdog: Watchdog,
        policy: Policy | None = None,
        aging_ns: int = AGING_NS,
        low_os_priority: LowOsPriority = False,
        *,
        nicer: bool = False,
    ) -> None:
        self.watchdog = watchdog
        self.tracer = Tracer()
        self.workers = Workers(
            cores=cores,
            inline_budget_ns=MS,
            stall_budget_ns=2 * MS,
            queue_limit=queue_limit,
            watchdog=watchdog,
            tracer=self.tracer,
            policy=policy,
            aging_ns=aging_ns,
            low_os_priority=low_os_priority,
            nicer=nicer,
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


def in_time(ask: Callable[[int], T]) -> T:
    """What comes of asking with a near deadline; where that is past already, with a later one."""
    for patience_ms in (5, 25, 125, 625, 3125):
        with contextlib.suppress(MissedDeadlinePersistent):
            return ask(now_ns() + patience_ms * MS)
    raise AssertionError("each deadline had passed when it was given")


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


def until(reached: Callable[[], bool]) -> None:
    """Look again and again until it is so; each look lets other threads go on."""
    end_ns = now_ns() + PATIENCE_S * 1_000_000_000
    turn = threading.Event()
    while not reached():
        assert now_ns() < end_ns, "it never came to that"
        turn.wait(0.0005)


others: set[threading.Thread] = set()
"""Threads that were there before the test, of a device that lives as long as the process."""


def threads_of(kind: str) -> int:
    """Number of living threads of a set of workers."""
    mine = set(threading.enumerate()) - others
    return sum(each.name.startswith(f"nnasync-{kind}-") for each in mine)


def submit_after(rig: Rig, task: Task, _: Fence) -> None:
    """A callback of a fence: submit a dependant."""
    rig.workers.submit(task)


class Held(Turns):
    """Turns of a loop that turns when it is told to."""

    def __init__(self, budget_ns: float) -> None:
        super().__init__(budget_ns)
        self.asked, self.told = anyio.Event(), anyio.Event()

    async def next(self) -> None:
        self.asked.set()
        await self.told.wait()
        self.here.turned(self.here.number)
