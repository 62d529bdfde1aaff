"""Policies that are an order: each says by what."""

from __future__ import annotations

import math

from nnasync.hal import NEVER_NS
from nnasync.scheduler.job import Job
from nnasync.scheduler.policy import Ordered, by_deadline, remaining_ns


class FirstComeFirstServed(Ordered):
    """By arrival alone."""

    name = "fifo"

    def key(self, job: Job, now_ns: int) -> float:
        """All are alike: the arrival decides."""
        return 0.0


class FixedPriority(Ordered):
    """By priority, then by arrival; nobody ages."""

    name = "fixed-priority"

    def key(self, job: Job, now_ns: int) -> float:
        """The higher the priority, the sooner."""
        return -job.priority


class DeadlineMonotonic(Ordered):
    """By the time between submission and deadline: what is urgent by its nature goes first.

    With deadlines as long as periods these are rate-monotonic priorities (Liu & Layland 1973).
    """

    name = "deadline-monotonic"
    preempts = True

    def key(self, job: Job, now_ns: int) -> float:
        """The shorter the time that the job was given, the sooner."""
        return by_deadline(job) - job.since_ns


class EarliestDeadlineFirst(Ordered):
    """By deadline, what has none last (Liu & Layland 1973)."""

    name = "edf"
    preempts = True

    def key(self, job: Job, now_ns: int) -> float:
        """The deadline."""
        return by_deadline(job)


class LeastLaxity(Ordered):
    """By deadline less what the job still takes by its estimate (Dertouzos & Mok 1989).

    All queued jobs lose laxity alike, so their order stays. Running ones keep theirs; they are
    looked at when jobs come and begin, not in between.
    """

    name = "least-laxity"
    preempts = True

    def key(self, job: Job, now_ns: int) -> float:
        """When the job has to begin at the latest."""
        if job.deadline_ns == NEVER_NS:
            return math.inf
        return job.deadline_ns - remaining_ns(job, now_ns)


class ShortestJobFirst(Ordered):
    """By what the job still takes by its estimate; with `preempts` the shortest remaining time."""

    name = "shortest-job"

    def key(self, job: Job, now_ns: int) -> float:
        """What it still takes."""
        return remaining_ns(job, now_ns)
