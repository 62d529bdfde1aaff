"""The executions that run on the threads, and the cores that they take; its users hold the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from nnasync._core.workers.task import GO, YIELD, Task
from nnasync._core.workers.worker_thread import Worker
from nnasync.errors import ResourceExhaustedTransient, because
from nnasync.hal import NEVER_NS, Priority
from nnasync.scheduler import Scheduler

ALL = tuple(Priority)
REGULAR = (Priority.HIGH, Priority.MEDIUM)
LOW = (Priority.LOW,)
"""Of which priorities the threads of a set take work."""

_LOOK_AGAIN_NS = 50_000_000
_POLICY_AGAIN_NS = 100_000

HANGS_AFTER_NS = 100_000_000
"""After this time, a settled execution that still runs counts for no thread and no core."""

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

    `counts` has how many run of each priority. `busy`, the number of cores, is read without the
    lock too; `begun` is how many have begun so far. `spread` counts what is spread on the threads
    for MEDIUM and HIGH: those for LOW do not go on with what is held back for a core.
    """

    def __init__(self) -> None:
        self._workers: dict[Task, Worker] = {}
        self.counts = [0, 0, 0]
        self.busy = self.begun = 0
        self.spread = 0
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

    def has_low(self) -> bool:
        """Whether a thread runs an execution of LOW priority, one that is lost too."""
        return any(task.priority is Priority.LOW for task in self._workers)

    def begin(self, task: Task, worker: Worker) -> None:
        """Note that a thread runs an execution."""
        self._workers[task] = worker
        self.counts[task.priority] += 1
        self.busy += 1
        self.begun += 1
        self.spread += task.is_spread and worker.priorities is REGULAR

    def end(self, task: Task) -> Worker:
        """Note that it does no more; which one it was. One that was lost stays so."""
        worker = self._workers.pop(task)
        self.counts[task.priority] -= 1
        if worker.lost:
            self.lost -= 1
        else:
            self.busy -= 1
            self.spread -= task.is_spread and worker.priorities is REGULAR
        return worker

    def lose(self, task: Task) -> bool:
        """Count no longer on the thread of an execution; False if none runs it."""
        worker = self._workers.get(task)
        if worker is None or worker.lost:
            return False
        worker.lost = True
        self.lost += 1
        self.busy -= 1
        self.spread -= task.is_spread and worker.priorities is REGULAR
        return True

    def left_ns(self, now: int) -> list[float]:
        """How long workers for MEDIUM and HIGH still run what they run, as far as one can tell."""
        return [
            abs((task.started_ns or now) + task.estimate.ns - now)
            for task, worker in self._workers.items()
            if worker.priorities is REGULAR and not worker.lost
        ]

    def load(self, priority: Priority, scheduler: Scheduler, now: int, loop_ns: float) -> Load:
        """What the threads have to do of a priority and above, running and queued.

        `loop_ns` is how long an execution may take on the thread of a loop.
        """
        left_ns: list[float] = []
        queued, queued_ns, is_company = 0, 0.0, False
        for task, worker in self._workers.items():
            if worker.lost or task.priority < priority:
                continue
            estimate = task.estimate
            # What is late by so long is taken to need as long again.
            left_ns.append(abs((task.started_ns or now) + estimate.ns - now))
            if estimate.holds_loop and 0 < estimate.best_ns <= loop_ns:
                is_company = True
        if any(scheduler.totals):
            queued = sum(scheduler.totals[priority:])
            queued_ns = scheduler.backlog_ns(priority)
            is_company = is_company or 0 < queued_ns <= queued * loop_ns
        return Load(len(left_ns) + queued, left_ns, queued_ns + sum(left_ns), is_company)

    def check_hanging(self, task: Task) -> None:
        """Raise ResourceExhaustedTransient where the device holds too many threads already.

        Where any are `lost`; else nothing hangs.
        """
        mine = (worker.lost for each, worker in self.pairs() if each.owner is task.owner)
        if sum(mine) >= MOST_HANGING:
            text = (
                f"{MOST_HANGING} executions of {task.name} hang on the device already; retry when "
                "it has let go of some"
            )
            raise because("hanging", ResourceExhaustedTransient(text))

    def low_is_due(self, scheduler: Scheduler, now: int) -> bool:
        """Whether LOW may overdraw the budget for its age: one execution at a time."""
        if self.counts[Priority.LOW] > self.lost:
            return False  # One runs, on a thread that is not lost.
        is_due = scheduler.due_ns(Priority.LOW) <= now
        return is_due and not any(each.priority is Priority.LOW for each in self.held())

    def look_again_ns(self, scheduler: Scheduler, now: int) -> int:
        """When LOW is due, running work loses its shield, or a policy wants to be asked again."""
        shields = (task.shielded_until_ns for task in self._workers)
        return min(
            max(scheduler.due_ns(Priority.LOW), now + _LOOK_AGAIN_NS),
            min((shield for shield in shields if shield > now), default=NEVER_NS),
            max(scheduler.look_again_ns(now), now + _POLICY_AGAIN_NS),
        )

    def make_room(
        self, priority: Priority, scheduler: Scheduler, cores: int, now: Callable[[], int]
    ) -> None:
        """Ask one execution to yield if cores are missing for those of this priority and above."""
        victim = self._in_the_way(priority, scheduler, cores, now)
        if victim is not None:
            victim.stop.raised = YIELD

    def _in_the_way(
        self, priority: Priority, scheduler: Scheduler, cores: int, now: Callable[[], int]
    ) -> Task | None:
        """Which execution is to yield, where cores are missing for queued ones of this priority.

        And of those above it; under a policy the priority does not matter.
        """
        if scheduler.is_governed:
            return self._stopped_by_policy(scheduler, cores, now())
        low, medium, _ = self.counts
        if not (low or (medium and priority is Priority.HIGH)):
            return None  # Nothing of a lower priority runs.
        _, medium, waiting = scheduler.totals
        if priority is Priority.MEDIUM:
            waiting += medium
        if len(self._workers) + waiting <= cores:
            return None
        now_ns = now()
        for task in self._workers:
            if task.stop.raised == GO and not _overdraws(task, now_ns):
                waiting += 1
        return None if waiting <= cores else self._victim(priority, scheduler, now_ns)

    def _victim(self, priority: Priority, scheduler: Scheduler, now: int) -> Task | None:
        """The execution of the least priority below this one, of those that may be stopped."""
        victim: Task | None = None
        for task, worker in self._workers.items():
            if task.priority >= priority or task.stop.raised or task.shielded_until_ns > now:
                continue
            # What runs on a thread of the other set has it as its client's share.
            may_stop = worker.priorities is not REGULAR or scheduler.displaces(task, priority)
            if may_stop and (victim is None or task.priority < victim.priority):
                victim = task
        return victim

    def _stopped_by_policy(self, scheduler: Scheduler, cores: int, now: int) -> Task | None:
        """The execution that a policy stops, if all cores are taken by such as go on."""
        staying = [task for task in self.held() if task.stop.raised == GO]
        if len(staying) < cores:
            return None
        stopped = scheduler.preempted(staying, now)
        return stopped if isinstance(stopped, Task) else None


def _overdraws(task: Task, now: int) -> bool:
    """Whether a task may exceed the core budget because of its age."""
    return task.priority is Priority.LOW and task.shielded_until_ns > now
