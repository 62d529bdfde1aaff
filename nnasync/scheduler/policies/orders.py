"""Policies that are an order: each says by what."""

from __future__ import annotations

import math

from nnasync.hal import NEVER_NS
from nnasync.scheduler.job import Job
from nnasync.scheduler.policy import Ordered, by_deadline, remaining_ns


class FirstComeFirstServed(Ordered):
    """Orders jobs by arrival alone."""

    name = "fifo"

    def key(self, job: Job, now_ns: int) -> float:
        """Returns the same key for all jobs, so that the arrival decides."""
        return 0.0


class FixedPriority(Ordered):
    """Orders jobs by priority, then by arrival; nobody ages."""

    name = "fixed-priority"

    def key(self, job: Job, now_ns: int) -> float:
        """Returns a lower key for a higher priority."""
        return -job.priority


class DeadlineMonotonic(Ordered):
    """Orders jobs by the time between submission and deadline, the shortest first.

    With deadlines as long as periods these are rate-monotonic priorities (Liu & Layland 1973).
    """

    name = "deadline-monotonic"
    preempts = True

    def key(self, job: Job, now_ns: int) -> float:
        """Returns the time that the job was given."""
        return by_deadline(job) - job.since_ns


class EarliestDeadlineFirst(Ordered):
    """Orders jobs by deadline; those without one come last (Liu & Layland 1973)."""

    name = "edf"
    preempts = True

    def key(self, job: Job, now_ns: int) -> float:
        """Returns the deadline."""
        return by_deadline(job)


class LeastLaxity(Ordered):
    """Orders jobs by deadline less what they still take by their estimates (Dertouzos & Mok 1989).

    All queued jobs lose laxity alike, so their order stays. Running ones keep theirs; they are
    looked at when jobs come and begin, not in between.
    """

    name = "least-laxity"
    preempts = True

    def key(self, job: Job, now_ns: int) -> float:
        """Returns when the job has to begin at the latest."""
        if job.deadline_ns == NEVER_NS:
            return math.inf
        return job.deadline_ns - remaining_ns(job, now_ns)


class ShortestJobFirst(Ordered):
    """Orders jobs by what they still take by their estimates.

    With `preempts` that is the shortest remaining time.
    """

    name = "shortest-job"

    def key(self, job: Job, now_ns: int) -> float:
        """Returns what the job still takes."""
        return remaining_ns(job, now_ns)
