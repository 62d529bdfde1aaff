"""Admission by predicted finish: what cannot be met is refused at once, and nothing is begun late.

As Clockwork does (OSDI 2020): the end of a job is predicted from what runs, what is queued before
it, and its own estimate; where that is beyond the deadline, the caller hears of it while he can
still do something else. Where a run takes longer than was predicted, the predictions for what waits
are made again, and what would be late now is given up (`gives_up`). The order is another policy's,
earliest deadline first by default.

The estimates are those of the models, learnt from measured runs. A model whose estimate alone is
beyond its deadlines would never be measured again, so refusals wear its prediction down as they do
with the default rule (`Estimate.refused`): after a few of them one job is let through.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from nnasync.scheduler.job import Estimate, Job
from nnasync.scheduler.policies.orders import EarliestDeadlineFirst
from nnasync.scheduler.policy import Ordered, remaining_ns


class PredictedFinish:
    """Orders jobs as another policy does, and refuses those that would end after their deadlines.

    A prediction looks at all that is queued, so it takes time in proportion to that.
    """

    is_work_conserving = True

    def __init__(self, order: Ordered | None = None) -> None:
        self._order = order or EarliestDeadlineFirst(preempts=False)
        self.name = f"predicted-finish, {self._order.name}" if order else "predicted-finish"
        self.reset(1)

    def reset(self, servers: int) -> None:
        """Forgets everything."""
        self._servers = servers
        self._running: dict[Job, float] = {}
        self._is_behind = False
        self._order.reset(servers)

    def needed_ns(self, job: Job, now_ns: int) -> float:
        """Returns the time for what runs or goes before, shared by the servers, and for the job."""
        ahead_ns = sum(remaining_ns(other, now_ns) for other in self._running)
        ahead_ns += sum(
            remaining_ns(other, now_ns) for other in self._order.queued_before(job, now_ns)
        )
        is_idle = len(self._running) < self._servers and not len(self._order)
        return (0.0 if is_idle else ahead_ns / self._servers) + _worn_ns(job.estimate)

    def gives_up(self, now_ns: int) -> list[Job]:
        """Returns the queued jobs that would be late if each went to the first free core."""
        if not self._is_behind:
            return []
        self._is_behind = False
        free_ns = [remaining_ns(job, now_ns) for job in self._running]
        free_ns += [0.0] * (self._servers - len(free_ns))
        heapq.heapify(free_ns)
        hopeless = []
        for job in self._order.in_order():
            left_ns = max(0.0, _worn_ns(job.estimate) - job.active_ns)
            ends_ns = now_ns + free_ns[0] + left_ns + job.heard_after_ns
            if ends_ns > job.deadline_ns:
                hopeless.append(job)
            else:
                heapq.heapreplace(free_ns, free_ns[0] + remaining_ns(job, now_ns))
        return hopeless

    def push(self, job: Job, now_ns: int) -> None:
        """Queues a job in the other policy's order."""
        self._order.push(job, now_ns)

    def next(self, now_ns: int) -> Job | None:
        """Returns the first job by that order."""
        job = self._order.next(now_ns)
        if job is not None:
            self._running[job] = remaining_ns(job, now_ns)
        return job

    def remove(self, job: Job) -> None:
        """Forgets a job."""
        self._order.remove(job)

    def ran(self, job: Job, duration_ns: int) -> None:
        """Counts a core as free again; predicts anew if the job took longer than predicted."""
        predicted_ns = self._running.pop(job, None)
        if predicted_ns is not None and duration_ns > predicted_ns:
            self._is_behind = True
        self._order.ran(job, duration_ns)

    def preempted(self, running: Sequence[Job], now_ns: int) -> Job | None:
        """Returns the job that the other policy preempts."""
        return self._order.preempted(running, now_ns)

    def due_ns(self, now_ns: int) -> int:
        """Returns when the other policy wants to be asked again."""
        return self._order.due_ns(now_ns)


def _worn_ns(estimate: Estimate) -> float:
    """Returns the expected length of a run, less what refusals took off it."""
    return estimate.ns * (estimate.floor_ns / estimate.best_ns) if estimate.best_ns else 0.0
