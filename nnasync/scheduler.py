"""Which execution runs next: priority, then earliest deadline, then arrival.

Pure: there is no clock, thread or lock inside; `now_ns` is an argument, and the caller serialises
the calls. The live runtime and a discrete-event simulation drive the same object.

*Order.* One heap per priority, ordered by (deadline, arrival). A preempted job goes back with its
old arrival number, so it is the next of its kind.

*Estimates.* Every prepared model has an `Estimate`, fed with measured durations. `ns` follows the
durations with steps that are larger downwards than upwards, so it settles at a low expectile: what
the work costs here and now. `best_ns` is a slowly forgotten minimum: what it costs when nothing
disturbs it. `floor_ns` is the same, less what refusals have taken off it. `overruns` counts runs
that held the loop up far beyond the estimate, fading with every run: one may be the operating
system's doing, several are the model's.

*Admission.* A job is refused when even the optimistic sum cannot meet its deadline: the floors of
all queued jobs of higher priorities, shared by the servers, plus its own floor. A refusal lowers
the floor by a twentieth, so a model whose only measurement was unlucky is tried again after a few
refusals.

*Expiry.* A queued job whose deadline passes is not handed out; `take_expired` returns it once.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import msgspec

from nnasync.errors import MissedDeadlinePersistent, ResourceExhaustedTransient
from nnasync.hal import Priority

__all__ = ["NEVER_NS", "Estimate", "Job", "Scheduler", "SchedulerStatistics"]

NEVER_NS = 2**63 - 1
"""A deadline that never comes."""

_UP = 0.1
_DOWN = 0.3
_FORGET = 0.02
_REFUSED = 0.95
_FORGIVEN = 0.98


class Estimate:
    """How long one execution of a prepared model takes, learnt from measured durations."""

    __slots__ = ("best_ns", "floor_ns", "ns", "overruns", "samples")

    def __init__(self) -> None:
        self.ns = 0.0
        self.best_ns = 0.0
        self.floor_ns = 0.0
        self.samples = 0
        self.overruns = 0.0

    def observe(self, duration_ns: int) -> None:
        """Take a measured duration in."""
        self.samples += 1
        self.overruns *= _FORGIVEN
        if self.samples == 1:
            self.ns = self.best_ns = self.floor_ns = float(duration_ns)
            return
        difference = duration_ns - self.ns
        self.ns += difference * _DOWN if difference < 0 else min(difference, self.ns) * _UP
        if duration_ns < self.best_ns:
            self.best_ns = float(duration_ns)
        elif self.ns > self.best_ns:
            self.best_ns += (self.ns - self.best_ns) * _FORGET
        self.floor_ns = self.best_ns

    def overran(self, duration_ns: int) -> None:
        """Take in a duration that held the loop up far beyond the estimate."""
        self.observe(duration_ns)
        self.overruns += 1

    def refused(self) -> None:
        """Note that a job was refused on the strength of the floor."""
        self.floor_ns *= _REFUSED


class Job:
    """What the scheduler knows of one execution."""

    __slots__ = ("deadline_ns", "entry", "estimate", "floor_ns", "priority", "queued", "sequence")

    def __init__(self, priority: Priority, estimate: Estimate, deadline_ns: int = NEVER_NS) -> None:
        self.priority = priority
        self.estimate = estimate
        self.deadline_ns = deadline_ns
        self.floor_ns = 0.0
        self.sequence = -1
        self.entry = -1
        self.queued = False


class SchedulerStatistics(msgspec.Struct, frozen=True):
    """Counts since the start; `queued` is now, by priority."""

    queued: tuple[int, int, int]
    submitted: int
    dispatched: int
    requeued: int
    withdrawn: int
    expired: int
    refused: int


class Scheduler:
    """A queue of jobs; `servers` is the number of executions that run at once."""

    def __init__(self, *, servers: int, queue_limit: int) -> None:
        self._servers = servers
        self._queue_limit = queue_limit
        self._heaps: tuple[list[tuple[int, int, int, Job]], ...] = ([], [], [])
        self._queued = [0, 0, 0]
        self._backlog_ns = [0.0, 0.0, 0.0]
        self._expired: list[Job] = []
        self._sequence = self._entries = 0
        self._submitted = self._dispatched = self._requeued = 0
        self._withdrawn = self._expired_count = self._refused = 0

    def admit(self, job: Job, now_ns: int) -> None:
        """Raise MissedDeadlinePersistent or ResourceExhaustedTransient to refuse the job."""
        if sum(self._queued) >= self._queue_limit:
            self._refused += 1
            raise ResourceExhaustedTransient(
                f"{self._queue_limit} executions are queued already; retry when some have finished"
            )
        if job.deadline_ns == NEVER_NS:
            return
        remaining_ns = job.deadline_ns - now_ns
        if remaining_ns <= 0:
            self._refused += 1
            raise MissedDeadlinePersistent(
                f"the deadline had passed {-remaining_ns / 1e6:.3f} ms before the execution started"
            )
        ahead_ns = sum(self._backlog_ns[job.priority + 1 :]) / self._servers
        needed_ns = ahead_ns + job.estimate.floor_ns
        if needed_ns > remaining_ns:
            self._refused += 1
            job.estimate.refused()
            raise MissedDeadlinePersistent(
                f"the deadline is {remaining_ns / 1e6:.3f} ms away and the execution needs at "
                f"least {needed_ns / 1e6:.3f} ms ({ahead_ns / 1e6:.3f} ms behind higher priorities)"
            )

    def submit(self, job: Job, now_ns: int) -> None:
        """Queue a job; raises what `admit` raises."""
        self.admit(job, now_ns)
        job.sequence = self._sequence
        self._sequence += 1
        self._submitted += 1
        self._push(job)

    def requeue(self, job: Job) -> None:
        """Queue a preempted job again, with its old place in the order of arrival."""
        self._requeued += 1
        self._push(job)

    def withdraw(self, job: Job) -> bool:
        """Take a job out of the queue; False if it was not in it."""
        if not job.queued:
            return False
        self._withdrawn += 1
        self._leave(job)
        return True

    def next(self, now_ns: int, priorities: Sequence[Priority]) -> Job | None:
        """Hand out the best job of the given priorities (highest first), or None."""
        for priority in priorities:
            heap = self._heaps[priority]
            while heap:
                _, _, entry, job = heapq.heappop(heap)
                if job.entry != entry:
                    continue
                self._leave(job)
                if job.deadline_ns > now_ns:
                    self._dispatched += 1
                    return job
                self._expired_count += 1
                self._expired.append(job)
        return None

    def take_expired(self) -> list[Job]:
        """The jobs whose deadlines passed in the queue, each of them once."""
        expired, self._expired = self._expired, []
        return expired

    def waits_above(self, priority: Priority) -> bool:
        """Whether a job of a higher priority is queued."""
        queued = self._queued
        return priority < 2 and (queued[2] > 0 or (priority < 1 and queued[1] > 0))

    def queued(self, priorities: Sequence[Priority]) -> int:
        """Number of queued jobs of the given priorities."""
        return sum(self._queued[priority] for priority in priorities)

    def statistics(self) -> SchedulerStatistics:
        """Counts so far."""
        low, medium, high = self._queued
        return SchedulerStatistics(
            queued=(low, medium, high),
            submitted=self._submitted,
            dispatched=self._dispatched,
            requeued=self._requeued,
            withdrawn=self._withdrawn,
            expired=self._expired_count,
            refused=self._refused,
        )

    def _push(self, job: Job) -> None:
        job.queued = True
        job.entry = self._entries
        self._entries += 1
        job.floor_ns = job.estimate.floor_ns
        self._queued[job.priority] += 1
        self._backlog_ns[job.priority] += job.floor_ns
        entry = (job.deadline_ns, job.sequence, job.entry, job)
        heapq.heappush(self._heaps[job.priority], entry)

    def _leave(self, job: Job) -> None:
        """Take a job off the counts; its entry goes when it is met, or when too many are dead."""
        job.queued = False
        job.entry = -1
        priority = job.priority
        self._queued[priority] -= 1
        self._backlog_ns[priority] = (
            self._backlog_ns[priority] - job.floor_ns if self._queued[priority] else 0.0
        )
        heap = self._heaps[priority]
        if len(heap) > 2 * self._queued[priority] + 64:
            heap[:] = [entry for entry in heap if entry[3].entry == entry[2]]
            heapq.heapify(heap)
