"""The queue where a policy is in force: it asks, and looks at every answer before it is believed.

All jobs are in one line, whatever their priorities and clients, so they count as of the highest
priority in `totals`: nothing that comes later goes before them without being asked for. What a
policy does wrong ends its reign: `broken` says what it was, and the jobs are still here.

*Starving.* A policy that is work-conserving hands out something whenever it is asked while jobs are
queued. One that is not may keep them back while a core is idle, but for no longer than
`patience_ns`; and where nothing runs, whose end would have it asked, it must say when to ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from nnasync.hal import NEVER_NS
from nnasync.scheduler.job import Job
from nnasync.scheduler.policy import Policy, PolicyError

T = TypeVar("T")

_HIGHEST = 2


class GovernedQueue:
    """What is queued under a policy; `broken` is the error of a policy that broke its contract.

    `backlog_ns` is what the queued jobs take at least.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        servers: int,
        totals: list[int],
        expired: list[Job],
        patience_ns: int,
    ) -> None:
        """`totals` and `expired` are those of all queues."""
        self.policy = policy
        self.name = policy.name
        self.broken: PolicyError | None = None
        self.queued = [0, 0, 0]
        self.backlog_ns = 0.0
        self._is_work_conserving = policy.is_work_conserving
        self._gives_up: Callable[[int], object] | None = getattr(policy, "gives_up", None)
        self._totals = totals
        self._expired = expired
        self._patience_ns = patience_ns
        self._jobs: dict[Job, None] = {}
        self._running: dict[Job, None] = {}
        self._kept_since_ns = NEVER_NS
        self._ask("reset", lambda: policy.reset(servers))

    def __len__(self) -> int:
        return len(self._jobs)

    def jobs(self) -> list[Job]:
        """Returns the queued jobs, by arrival."""
        return sorted(self._jobs, key=lambda job: job.sequence)

    def queued_of(self, client: int) -> int:
        """Returns how many jobs of a client are queued; looks at all of them."""
        return sum(job.client == client for job in self._jobs)

    def needed_ns(self, job: Job, now_ns: int) -> float:
        """Returns how long from now the job would end, by the policy's prediction."""
        needed_ns = self._ask("needed_ns", lambda: self.policy.needed_ns(job, now_ns))
        if needed_ns is None or (isinstance(needed_ns, (int, float)) and needed_ns >= 0):
            return needed_ns or 0.0
        self._break("needed_ns", f"it gave {needed_ns!r}, not a number of nanoseconds")
        return 0.0

    def push(self, job: Job, now_ns: int) -> None:
        """Queue a job."""
        job.queued = True
        job.resumed_ns = -1
        job.floor_ns = job.estimate.floor_ns
        self._jobs[job] = None
        self._running.pop(job, None)
        self.queued[job.priority] += 1
        self._totals[_HIGHEST] += 1
        self.backlog_ns += job.floor_ns
        self._ask("push", lambda: self.policy.push(job, now_ns))

    def leave(self, job: Job) -> None:
        """Takes a job out that the policy did not hand out."""
        self._forget(job)
        self._ask("remove", lambda: self.policy.remove(job))

    def next(self, now_ns: int) -> Job | None:
        """Returns the job that the policy hands out.

        Puts those that are too late among the expired.
        """
        if self._gives_up is not None and self._jobs:
            self._give_up(self._gives_up, now_ns)
        while self._jobs:
            job = self._ask("next", lambda: self.policy.next(now_ns))
            if job is None:
                self._check_patience(now_ns)
                return None
            if not isinstance(job, Job) or job not in self._jobs:
                self._break("next", f"it gave {_told(job)}, which is not queued")
                return None
            self._forget(job)
            if job.deadline_ns > now_ns:
                self._kept_since_ns = NEVER_NS
                self._running[job] = None
                job.resumed_ns = now_ns
                return job
            self._expired.append(job)
            self._tell_ran(job, 0)
        return None

    def ran(self, job: Job, duration_ns: int) -> None:
        """Tells the policy that a job has left its core."""
        if job in self._running or job.queued:
            self._running.pop(job, None)
            self._tell_ran(job, duration_ns)

    def preempted(self, running: Sequence[Job], now_ns: int) -> Job | None:
        """Returns the running job that the policy stops, if any."""
        if not self._jobs or not running:
            return None
        job = self._ask("preempted", lambda: self.policy.preempted(running, now_ns))
        if job is None or any(job is each for each in running):
            return job
        self._break("preempted", f"it gave {_told(job)}, which is not among those that run")
        return None

    def due_ns(self, now_ns: int) -> int:
        """Returns when to ask the policy again, if only because it kept jobs back for too long."""
        if self._kept_since_ns == NEVER_NS:
            return self._policys_due_ns(now_ns)
        return min(self._policys_due_ns(now_ns), self._kept_since_ns + self._patience_ns + 1)

    def _give_up(self, gives_up: Callable[[int], object], now_ns: int) -> None:
        """Takes out the jobs that the policy gives up before their deadlines."""
        hopeless: object = self._ask("gives_up", lambda: gives_up(now_ns))
        if not isinstance(hopeless, list | tuple):
            if self.broken is None:
                self._break("gives_up", f"it gave {hopeless!r}, not a list of jobs")
            return
        for job in hopeless:
            if not isinstance(job, Job) or job not in self._jobs or job.deadline_ns == NEVER_NS:
                self._break("gives_up", f"it gave {_told(job)}, which is not queued, or not due")
                return
            self.leave(job)
            self._expired.append(job)
            if job.estimate.ns > job.deadline_ns - now_ns:
                job.estimate.refused()

    def _policys_due_ns(self, now_ns: int) -> int:
        due_ns: object = self._ask("due_ns", lambda: self.policy.due_ns(now_ns))
        if due_ns is None or isinstance(due_ns, int):
            return NEVER_NS if due_ns is None else due_ns
        self._break("due_ns", f"it gave {due_ns!r}, not a time in nanoseconds")
        return NEVER_NS

    def _tell_ran(self, job: Job, duration_ns: int) -> None:
        self._ask("ran", lambda: self.policy.ran(job, duration_ns))

    def _forget(self, job: Job) -> None:
        job.queued = False
        del self._jobs[job]
        self.queued[job.priority] -= 1
        self._totals[_HIGHEST] -= 1
        self.backlog_ns = self.backlog_ns - job.floor_ns if self._jobs else 0.0

    def _check_patience(self, now_ns: int) -> None:
        """Checks that a policy that keeps jobs back may do so."""
        if self._is_work_conserving:
            self._break("next", f"it gave None while {len(self)} jobs were queued")
            return
        self._kept_since_ns = min(self._kept_since_ns, now_ns)
        kept_ns = now_ns - self._kept_since_ns
        if kept_ns > self._patience_ns:
            self._break("next", f"it kept {len(self)} jobs back for {kept_ns / 1e6:.0f} ms")
        elif not (self._running or now_ns < self._policys_due_ns(now_ns) < NEVER_NS):
            text = f"it gave None while {len(self)} jobs were queued, and no time to ask again"
            self._break("due_ns", text)

    def _ask(self, call: str, question: Callable[[], T]) -> T | None:
        """Returns the policy's answer; None if it raises, or has broken its contract before."""
        if self.broken is not None:
            return None
        try:
            return question()
        except (Exception, SystemExit) as error:
            self._break(call, f"it raised {type(error).__name__}: {error}", error)
            return None

    def _break(self, call: str, what: str, cause: BaseException | None = None) -> None:
        if self.broken is None:
            self.broken = PolicyError(f"policy {self.name!r}, {call}: {what}")
            self.broken.__cause__ = cause


def _told(job: object) -> str:
    if not isinstance(job, Job):
        return f"a {type(job).__name__}"
    return "a job that was handed out already" if job.sequence >= 0 else "a job of nobody"
