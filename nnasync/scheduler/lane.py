"""The queue of one client: heaps by priority, ages, and the tag that its share is reckoned by."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from nnasync.hal import NEVER_NS, Priority
from nnasync.scheduler.job import Job

_SHIELD = 20


class ClientQueue:
    """The queue of one client: `queued` by priority, `size` in all, `running` handed out.

    `used_ns`, `runs` and `missed` are for its statistics, and are counted by the scheduler.

    `totals` counts what is queued by priority in all lanes together, and `expired` is where all of
    them put what they find too late.
    """

    __slots__ = (
        "_ages",
        "_aging_ns",
        "_backlog_ns",
        "_due_from_ns",
        "_eldest_left_ns",
        "_entries",
        "_expired",
        "_heaps",
        "_jobs",
        "_latest_ns",
        "_totals",
        "missed",
        "name",
        "queued",
        "running",
        "runs",
        "size",
        "tag_ns",
        "used_ns",
    )

    def __init__(
        self,
        *,
        aging_ns: int,
        totals: list[int],
        expired: list[Job],
        tag_ns: float = 0.0,
        name: str = "",
    ) -> None:
        self.tag_ns = tag_ns
        self.name = name
        self.used_ns = self.runs = self.missed = 0
        self.queued = [0, 0, 0]
        self.size = self.running = 0
        self._aging_ns = aging_ns
        self._totals = totals
        self._expired = expired
        # Heaps name jobs by their entry, so that what left the queue is not kept alive by them.
        self._jobs: dict[int, Job] = {}
        self._heaps: tuple[list[tuple[int, int, int]], ...] = ([], [], [])
        self._ages: tuple[list[tuple[int, int]], ...] = ([], [])
        self._eldest_left_ns = [-NEVER_NS, -NEVER_NS]
        self._due_from_ns = NEVER_NS
        self._backlog_ns = [0.0, 0.0, 0.0]
        self._latest_ns = [0, 0, 0]
        self._entries = 0

    @property
    def heap_entries(self) -> int:
        """Returns how many entries the heaps by priority hold, dead ones included."""
        return sum(len(heap) for heap in self._heaps)

    @property
    def age_entries(self) -> int:
        """Returns how many entries the heaps by age hold, dead ones included."""
        return sum(len(ages) for ages in self._ages)

    def has(self, priorities: Sequence[Priority]) -> bool:
        """Returns whether a job of one of the priorities is queued."""
        queued = self.queued
        return any(queued[priority] for priority in priorities)

    def backlog_ns(self, least: int) -> float:
        """Returns the sum of the floors of queued jobs of this priority and above."""
        return sum(self._backlog_ns[least:])

    def equals_ns(self, job: Job) -> float:
        """Returns the sum of the floors of equally urgent queued jobs, if all go before this job.

        That is 0 where it would go before one of them, as its deadline is earlier.
        """
        priority = job.priority
        return self._backlog_ns[priority] if job.deadline_ns >= self._latest_ns[priority] else 0.0

    def push(self, job: Job) -> None:
        """Queue a job."""
        job.queued = True
        job.entry = entry = self._entries
        self._entries = entry + 1
        job.floor_ns = floor_ns = job.estimate.floor_ns
        priority, deadline_ns, sequence = job.priority, job.deadline_ns, job.sequence
        self.size += 1
        self.queued[priority] += 1
        self._totals[priority] += 1
        self._backlog_ns[priority] += floor_ns
        if deadline_ns > self._latest_ns[priority]:
            self._latest_ns[priority] = deadline_ns
        self._jobs[entry] = job
        heappush(self._heaps[priority], (deadline_ns, sequence, entry))
        if priority < 2:
            heappush(self._ages[priority], (sequence, entry))
            due_ns = job.since_ns + self._aging_ns
            if due_ns < self._due_from_ns:
                self._due_from_ns = due_ns

    def put_back(self, job: Job, now_ns: int) -> None:
        """Queue a preempted job again."""
        self.push(job)
        if self._eldest(job.priority) is job:
            self._eldest_left_ns[job.priority] = now_ns

    def leave(self, job: Job) -> None:
        """Subtracts a job from the counts.

        Its entry goes when it is met, or when too many are dead.
        """
        job.queued = False
        del self._jobs[job.entry]
        job.entry = -1
        priority = job.priority
        self.size -= 1
        self.queued[priority] = queued = self.queued[priority] - 1
        self._totals[priority] -= 1
        if queued:
            self._backlog_ns[priority] -= job.floor_ns
        else:
            self._backlog_ns[priority], self._latest_ns[priority] = 0.0, 0
        most = 2 * queued + 64
        if len(self._heaps[priority]) > most:
            self._compact(self._heaps[priority])
        if priority < 2 and len(self._ages[priority]) > most:
            self._compact(self._ages[priority])

    def next(self, now_ns: int, priorities: Sequence[Priority]) -> Job | None:
        """Hands out the best job of the given priorities (highest first); None if there is none."""
        if self._due_from_ns <= now_ns:
            while (eldest := self._due(now_ns, priorities)) is not None:
                if self._hand_out(eldest, now_ns):
                    eldest.shielded_until_ns = now_ns + self._aging_ns // _SHIELD
                    return eldest
            self._due_from_ns = min(self.due_ns(Priority.LOW), self.due_ns(Priority.MEDIUM))
        for priority in priorities:
            heap = self._heaps[priority]
            while heap:
                job = self._jobs.get(heappop(heap)[-1])
                if job is not None and self._hand_out(job, now_ns):
                    job.shielded_until_ns = 0
                    return job
        return None

    def first(self, priorities: Sequence[Priority]) -> Job | None:
        """Returns the best job of the given priorities (highest first), without regard to age."""
        for priority in priorities:
            heap = self._heaps[priority]
            while heap:
                job = self._jobs.get(heap[0][-1])
                if job is not None:
                    return job
                heappop(heap)
        return None

    def is_due(self, now_ns: int, priorities: Sequence[Priority]) -> bool:
        """Returns whether a job of one of the priorities is due for its age."""
        return self._due_from_ns <= now_ns and self._due(now_ns, priorities) is not None

    def due_ns(self, priority: Priority) -> int:
        """Returns when a job of this priority is due for its age; NEVER_NS if none will be."""
        eldest = self._eldest(priority)
        if eldest is None:
            return NEVER_NS
        return max(eldest.since_ns, self._eldest_left_ns[priority]) + self._aging_ns

    def _due(self, now_ns: int, priorities: Sequence[Priority]) -> Job | None:
        """Returns the job that has been due for its age for the longest time."""
        priority = min(priorities, key=self.due_ns)
        return self._eldest(priority) if self.due_ns(priority) <= now_ns else None

    def _hand_out(self, job: Job, now_ns: int) -> bool:
        """Takes a job out of the queue; returns False and expires the job if it is too late."""
        priority, was_eldest = job.priority, False
        if priority < 2:
            ages, jobs = self._ages[priority], self._jobs
            while ages[0][-1] not in jobs:
                heappop(ages)
            was_eldest = ages[0][-1] == job.entry
            if was_eldest:
                heappop(ages)
        self.leave(job)
        if job.deadline_ns <= now_ns:
            self._expired.append(job)
            return False
        if was_eldest:
            self._eldest_left_ns[priority] = now_ns
        return True

    def _eldest(self, priority: Priority) -> Job | None:
        """Returns the job of a priority below HIGH that has waited longest."""
        if priority == 2:
            return None
        ages = self._ages[priority]
        while ages:
            job = self._jobs.get(ages[0][-1])
            if job is not None:
                return job
            heappop(ages)
        return None

    def _compact(self, heap: list[Any]) -> None:
        """Drops the dead entries of a heap."""
        heap[:] = [entry for entry in heap if entry[-1] in self._jobs]
        heapify(heap)
