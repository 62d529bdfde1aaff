"""The executions that run on the threads, and the cores that they take; its users hold the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from nnasync._core.workers.task import GO, Task
from nnasync._core.workers.worker_thread import Worker
from nnasync.errors import ResourceExhaustedTransient, because
from nnasync.hal import Priority
from nnasync.scheduler import Scheduler

MOST_HANGING = 16
"""Executions of one prepared model that may hang on their threads before more are refused."""


class Load(NamedTuple):
    """What workers have to do of one priority and above.

    `busy` of them have such executions, which still take `left_ns` where they run; `backlog_ns` is
    what they and those that are queued take in all. It is company where some of it might as well
    run on the thread of a loop.
    """

    busy: int
    left_ns: list[float]
    backlog_ns: float
    is_company: bool


class Running:
    """Which thread runs which execution; threads that are lost count for no core.

    `busy`, the number of cores, is read without the lock too.
    """

    def __init__(self) -> None:
        self._workers: dict[Task, Worker] = {}
        self.busy = 0
        self.lost = 0

    def __len__(self) -> int:
        return len(self._workers)

    def __contains__(self, task: Task) -> bool:
        return task in self._workers

    def __iter__(self) -> Iterator[Task]:
        return iter(self._workers)

    def pairs(self) -> list[tuple[Task, Worker]]:
        """The executions with their threads."""
        return list(self._workers.items())

    def held(self) -> list[Task]:
        """The executions whose threads are not lost."""
        return [task for task, worker in self._workers.items() if not worker.lost]

    def begin(self, task: Task, worker: Worker) -> None:
        """Note that a thread runs an execution."""
        self._workers[task] = worker
        self.busy += 1

    def end(self, task: Task) -> Worker:
        """Note that it does no more; which one it was. One that was lost stays so."""
        worker = self._workers.pop(task)
        if worker.lost:
            self.lost -= 1
        else:
            self.busy -= 1
        return worker

    def lose(self, task: Task) -> bool:
        """Count no longer on the thread of an execution; False if none runs it."""
        worker = self._workers.get(task)
        if worker is None or worker.lost:
            return False
        worker.lost = True
        self.lost += 1
        self.busy -= 1
        return True

    def load(self, priority: Priority, scheduler: Scheduler, now: int, loop_ns: float) -> Load:
        """What the threads have to do of a priority and above, running and queued.

        `loop_ns` is how long an execution may take on the thread of a loop.
        """
        mine = [task for task in self.held() if task.priority >= priority]
        left_ns = [max(0.0, (task.started_ns or now) + task.estimate.ns - now) for task in mine]
        queued = sum(scheduler.totals[priority:])
        queued_ns = scheduler.backlog_ns(priority)
        is_company = 0 < queued_ns <= queued * loop_ns or any(
            task.estimate.holds_loop and 0 < task.estimate.best_ns <= loop_ns for task in mine
        )
        backlog_ns = queued_ns + sum(left_ns)
        return Load(len(mine) + queued, left_ns, backlog_ns, is_company)

    def check_hanging(self, task: Task) -> None:
        """Raise ResourceExhaustedTransient where the device holds too many threads already."""
        if not self.lost:
            return
        mine = (worker.lost for each, worker in self.pairs() if each.owner is task.owner)
        if sum(mine) >= MOST_HANGING:
            text = (
                f"{MOST_HANGING} executions of {task.name} hang on the device already; retry when "
                "it has let go of some"
            )
            raise because("hanging", ResourceExhaustedTransient(text))

    def staying(self, now: int) -> int:
        """How many executions go on, within the budget of cores."""
        return sum(task.stop.raised == GO and not _overdraws(task, now) for task in self._workers)

    def victim(
        self, priority: Priority, now: int, may_stop: Callable[[Task, Worker], bool]
    ) -> Task | None:
        """The execution of the least priority below this one, of those that may be stopped."""
        victim: Task | None = None
        for task, worker in self._workers.items():
            if task.priority >= priority or task.stop.raised or task.shielded_until_ns > now:
                continue
            if may_stop(task, worker) and (victim is None or task.priority < victim.priority):
                victim = task
        return victim


def _overdraws(task: Task, now: int) -> bool:
    """Whether a task may exceed the core budget because of its age."""
    return task.priority is Priority.LOW and task.shielded_until_ns > now
