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

*Ageing.* Priorities below HIGH are not starved for ever. The job of a priority that has waited
longest is due when it has waited for `ageing_ns`, and as long has passed since the priority last
gave up its longest-waiting job. What is due is handed out next, before all others that are asked
for, and is not to be preempted for a twentieth of that time (`shielded_until_ns`). So a job is
handed out at the latest `(1 + n) * ageing_ns` after its submission, and two dispatches for each of
these bounds, if n jobs of its priority wait longer, whatever is queued above it; and what is above
it is put off once in each `ageing_ns`. A preempted job keeps its age, and counts again among the n.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from nnasync.errors import MissedDeadlinePersistent, ResourceExhaustedTransient
from nnasync.hal import Priority
from nnasync.tracing import Count, labelled

__all__ = ["AGEING_NS", "NEVER_NS", "Estimate", "Job", "Scheduler", "SchedulerStatistics"]

NEVER_NS = 2**63 - 1
"""A deadline that never comes."""

AGEING_NS = 2_000_000_000
"""How long LOW or MEDIUM work waits before it goes first for once."""

_SHIELD = 20

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

    __slots__ = (
        "deadline_ns",
        "entry",
        "estimate",
        "floor_ns",
        "priority",
        "queued",
        "sequence",
        "shielded_until_ns",
        "since_ns",
    )

    def __init__(self, priority: Priority, estimate: Estimate, deadline_ns: int = NEVER_NS) -> None:
        self.priority = priority
        self.estimate = estimate
        self.deadline_ns = deadline_ns
        self.floor_ns = 0.0
        self.sequence = -1
        self.entry = -1
        self.queued = False
        self.since_ns = self.shielded_until_ns = 0


class SchedulerStatistics(msgspec.Struct, frozen=True):
    """Counts since the start, `queued` is now; `aged` jobs were handed out for their age."""

    queued: Annotated[tuple[int, int, int], labelled("priority", "low", "medium", "high")]
    submitted: Count
    dispatched: Count
    requeued: Count
    withdrawn: Count
    expired: Count
    refused: Count
    aged: Count


class Scheduler:
    """A queue of jobs; `servers` is the number of executions that run at once.

    With `ageing_ns` of NEVER_NS nothing is ever due for its age.
    """

    def __init__(self, *, servers: int, queue_limit: int, ageing_ns: int = AGEING_NS) -> None:
        self._servers = servers
        self._queue_limit = queue_limit
        self._ageing_ns = ageing_ns
        # Heaps name jobs by their entry, so that what left the queue is not kept alive by them.
        self._jobs: dict[int, Job] = {}
        self._heaps: tuple[list[tuple[int, int, int]], ...] = ([], [], [])
        self._ages: tuple[list[tuple[int, int]], ...] = ([], [])
        self._eldest_left_ns = [-NEVER_NS, -NEVER_NS]
        self._due_from_ns = NEVER_NS
        self._queued = [0, 0, 0]
        self._backlog_ns = [0.0, 0.0, 0.0]
        self._expired: list[Job] = []
        self._sequence = self._entries = 0
        self._submitted = self._dispatched = self._requeued = 0
        self._withdrawn = self._expired_count = self._refused = self._aged = 0

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
        job.since_ns = now_ns
        self._sequence += 1
        self._submitted += 1
        self._push(job)

    def requeue(self, job: Job, now_ns: int) -> None:
        """Queue a preempted job again, with its old place in the order of arrival and of age."""
        self._requeued += 1
        self._push(job)
        if self._eldest(job.priority) is job:
            self._eldest_left_ns[job.priority] = now_ns

    def withdraw(self, job: Job) -> bool:
        """Take a job out of the queue; False if it was not in it."""
        if not job.queued:
            return False
        self._withdrawn += 1
        self._leave(job)
        return True

    def next(self, now_ns: int, priorities: Sequence[Priority]) -> Job | None:
        """Hand out the best job of the given priorities (highest first), or None.

        That is one which is due for its age, if there is any.
        """
        if self._due_from_ns <= now_ns:
            while (eldest := self._due(now_ns, priorities)) is not None:
                if self._hand_out(eldest, now_ns):
                    self._aged += 1
                    eldest.shielded_until_ns = now_ns + self._ageing_ns // _SHIELD
                    return eldest
            self._due_from_ns = min(self.due_ns(Priority.LOW), self.due_ns(Priority.MEDIUM))
        for priority in priorities:
            heap = self._heaps[priority]
            while heap:
                job = self._jobs.get(heapq.heappop(heap)[-1])
                if job is not None and self._hand_out(job, now_ns):
                    job.shielded_until_ns = 0
                    return job
        return None

    def due_ns(self, priority: Priority) -> int:
        """When a queued job of this priority is due for its age; NEVER_NS if none will be."""
        eldest = self._eldest(priority)
        if eldest is None:
            return NEVER_NS
        return max(eldest.since_ns, self._eldest_left_ns[priority]) + self._ageing_ns

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
            aged=self._aged,
        )

    def _due(self, now_ns: int, priorities: Sequence[Priority]) -> Job | None:
        """Of the jobs that are due for their age, the one that is for the longest time."""
        priority = min(priorities, key=self.due_ns)
        return self._eldest(priority) if self.due_ns(priority) <= now_ns else None

    def _hand_out(self, job: Job, now_ns: int) -> bool:
        """Take a job out of the queue; False, and it is among the expired, if it is too late."""
        was_eldest = job.priority < 2 and self._eldest(job.priority) is job
        self._leave(job)
        if job.deadline_ns <= now_ns:
            self._expired_count += 1
            self._expired.append(job)
            return False
        self._dispatched += 1
        if was_eldest:
            self._eldest_left_ns[job.priority] = now_ns
        return True

    def _eldest(self, priority: Priority) -> Job | None:
        """The job of a priority below HIGH that has waited longest."""
        if priority == 2:
            return None
        ages = self._ages[priority]
        while ages:
            job = self._jobs.get(ages[0][-1])
            if job is not None:
                return job
            heapq.heappop(ages)
        return None

    def _push(self, job: Job) -> None:
        job.queued = True
        job.entry = self._entries
        self._entries += 1
        job.floor_ns = job.estimate.floor_ns
        self._queued[job.priority] += 1
        self._backlog_ns[job.priority] += job.floor_ns
        self._jobs[job.entry] = job
        entry = (job.deadline_ns, job.sequence, job.entry)
        heapq.heappush(self._heaps[job.priority], entry)
        if job.priority < 2:
            heapq.heappush(self._ages[job.priority], (job.sequence, job.entry))
            self._due_from_ns = min(self._due_from_ns, job.since_ns + self._ageing_ns)

    def _leave(self, job: Job) -> None:
        """Take a job off the counts; its entry goes when it is met, or when too many are dead."""
        job.queued = False
        del self._jobs[job.entry]
        job.entry = -1
        priority = job.priority
        self._queued[priority] -= 1
        self._backlog_ns[priority] = (
            self._backlog_ns[priority] - job.floor_ns if self._queued[priority] else 0.0
        )
        self._compact(self._heaps[priority], self._queued[priority])
        if priority < 2:
            self._compact(self._ages[priority], self._queued[priority])

    def _compact(self, heap: list[Any], living: int) -> None:
        if len(heap) > 2 * living + 64:
            heap[:] = [entry for entry in heap if entry[-1] in self._jobs]
            heapq.heapify(heap)
