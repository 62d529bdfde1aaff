"""The contract of a policy: who goes next, who is refused, and who gives way.

A policy is pure: it has no clock, thread or lock; `now_ns` is an argument, and calls are
serialized. So the same object is driven in virtual time and by the live runtime. It sees jobs and
what becomes of them, and answers four questions. Places (`room`), expiry and counts stay with the
`Scheduler`, which asks it, and which believes no answer: a policy that raises, hands out what is
not queued, or keeps jobs back is replaced by the default rule, and no job is lost.

*Order.* The scheduler asks `next` for one job at a time. It may be any that was pushed and has
neither been handed out nor removed since. A job whose deadline has passed is not run; the next one
is asked for.

*Refusal.* `needed_ns` predicts when a job would end. What would be later than its deadline is
refused before it has a place. A policy may have one call more, `gives_up(now_ns)`: a list of queued
jobs for which there is no hope any more, though their deadlines are still to come. It is asked
before each `next`, and who waits for them hears at once that they will not be met.

*Giving way.* Where all cores are taken, `preempted` names the running job that is asked to stop at
its next border of operations. It is pushed again then, and has `active_ns` by that time.

*Time.* A policy whose answers change by time alone says in `due_ns` when to ask again.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Protocol

from nnasync.errors import CallerError
from nnasync.hal import NEVER_NS
from nnasync.scheduler.job import Job

DEFAULT = "default"
"""The name of the default rule: shares of clients, then priority, deadline, arrival, with aging."""


class PolicyError(CallerError):
    """Raised where a policy raised or broke its contract.

    The message says in which call and how.
    """


class Policy(Protocol):
    """Decides who goes next, who is refused and who gives way; `name` is for reports.

    A policy that is not `is_work_conserving` may leave jobs queued while a core is idle. One object
    serves one scheduler at a time.
    """

    name: str
    is_work_conserving: bool

    def reset(self, servers: int) -> None:
        """Forgets everything; so many executions run at once from now on."""

    def needed_ns(self, job: Job, now_ns: int) -> float:
        """Returns how long it takes until the job has ended; asked only of jobs with deadlines."""

    def push(self, job: Job, now_ns: int) -> None:
        """Takes a job in that was submitted, or that has stopped and is queued again."""

    def next(self, now_ns: int) -> Job | None:
        """Hands out one of the queued jobs; returns None where all are to wait."""

    def remove(self, job: Job) -> None:
        """Forgets a queued job that was withdrawn, is too late, or lost its place."""

    def ran(self, job: Job, duration_ns: int) -> None:
        """Note that a job that was handed out ran for so long; if it stopped, it was pushed before.

        It is 0 for one that was too late to run.
        """

    def preempted(self, running: Sequence[Job], now_ns: int) -> Job | None:
        """Returns which of the running jobs gives way to a queued one, if any.

        The running jobs take all cores.
        """

    def due_ns(self, now_ns: int) -> int:
        """Returns when to ask again though nothing happens; NEVER_NS if time changes no answer."""


def remaining_ns(job: Job, now_ns: int) -> float:
    """Returns how long a job still takes by its estimate, be it queued or running."""
    ran_ns = job.active_ns + (now_ns - job.resumed_ns if job.resumed_ns >= 0 else 0)
    return max(0.0, job.estimate.ns - ran_ns)


class Ordered:
    """A policy that hands out the job of the lowest `key` first, then by arrival.

    The key is taken when a job is queued. With `preempts`, a running job gives way to a queued one
    with a lower key than its own of that moment; of several, that with the highest. It refuses only
    what is too late already.
    """

    name = ""
    is_work_conserving = True
    preempts = False

    def __init__(self, *, preempts: bool | None = None) -> None:
        if preempts is not None and preempts != self.preempts:
            self.preempts = preempts
            self.name += "-preemptive" if preempts else "-non-preemptive"
        self.reset(1)

    def __len__(self) -> int:
        return len(self._entries)

    def key(self, job: Job, now_ns: int) -> float:
        """Returns the value by which jobs are ordered, the lowest first."""
        raise NotImplementedError(f"{type(self).__name__} does not say how jobs are ordered")

    def reset(self, servers: int) -> None:
        """Forgets everything."""
        self.servers = servers
        self._heap: list[_Entry] = []
        self._entries: dict[Job, _Entry] = {}
        self._numbers = itertools.count()

    def needed_ns(self, job: Job, now_ns: int) -> float:
        """Returns 0, so that nothing is refused."""
        return 0.0

    def push(self, job: Job, now_ns: int) -> None:
        """Queue a job by its key."""
        entry = (self.key(job, now_ns), job.sequence, next(self._numbers), job)
        self._entries[job] = entry
        heapq.heappush(self._heap, entry)

    def next(self, now_ns: int) -> Job | None:
        """Hands out the job with the lowest key."""
        first = self._first()
        if first is None:
            return None
        heapq.heappop(self._heap)
        job = first[-1]
        del self._entries[job]
        return job

    def remove(self, job: Job) -> None:
        """Forgets a job; its entry goes when it is met, or when too many are dead."""
        self._entries.pop(job, None)
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def ran(self, job: Job, duration_ns: int) -> None:
        """Does nothing: what ran does not matter for an order."""

    def preempted(self, running: Sequence[Job], now_ns: int) -> Job | None:
        """Returns the running job with the highest key, if the first queued one's key is lower."""
        first = self._first() if self.preempts else None
        if first is None or not running:
            return None
        key, _, last = max((self.key(job, now_ns), job.sequence, job) for job in running)
        return last if first[0] < key else None

    def due_ns(self, now_ns: int) -> int:
        """Returns NEVER_NS, since the keys of queued jobs do not change."""
        return NEVER_NS

    def queued_before(self, job: Job, now_ns: int) -> list[Job]:
        """Returns the queued jobs that would go before this one; looks at all of them."""
        key = self.key(job, now_ns)
        return [entry[-1] for entry in self._entries.values() if entry[0] <= key]

    def in_order(self) -> list[Job]:
        """Returns the queued jobs, the next one first; looks at all of them."""
        return [entry[-1] for entry in sorted(self._entries.values())]

    def _first(self) -> _Entry | None:
        heap, entries = self._heap, self._entries
        while heap:
            if entries.get(heap[0][-1]) is heap[0]:
                return heap[0]
            heapq.heappop(heap)
        return None


_Entry = tuple[float, int, int, Job]


def by_deadline(job: Job) -> float:
    """Returns the deadline as a key; jobs without one come last."""
    return math.inf if job.deadline_ns == NEVER_NS else job.deadline_ns
