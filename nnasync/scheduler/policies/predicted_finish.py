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
    """The order of another policy, and refusal of what would end after its deadline.

    A prediction looks at all that is queued, so it takes time in proportion to that.
    """

    is_work_conserving = True

    def __init__(self, order: Ordered | None = None) -> None:
        self._order = order or EarliestDeadlineFirst(preempts=False)
        self.name = f"predicted-finish, {self._order.name}" if order else "predicted-finish"
        self.reset(1)

    def reset(self, servers: int) -> None:
        """Forget everything."""
        self._servers = servers
        self._running: dict[Job, float] = {}
        self._is_behind = False
        self._order.reset(servers)

    def needed_ns(self, job: Job, now_ns: int) -> float:
        """What runs and what goes before, shared by the servers, and the job itself."""
        ahead_ns = sum(remaining_ns(other, now_ns) for other in self._running)
        ahead_ns += sum(
            remaining_ns(other, now_ns) for other in self._order.queued_before(job, now_ns)
        )
        is_idle = len(self._running) < self._servers and not len(self._order)
        return (0.0 if is_idle else ahead_ns / self._servers) + _worn_ns(job.estimate)

    def gives_up(self, now_ns: int) -> list[Job]:
        """What waits and would be late now, if each goes to the first core that is free."""
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
        """Queue a job in the other policy's order."""
        self._order.push(job, now_ns)

    def next(self, now_ns: int) -> Job | None:
        """The first by that order."""
        job = self._order.next(now_ns)
        if job is not None:
            self._running[job] = remaining_ns(job, now_ns)
        return job

    def remove(self, job: Job) -> None:
        """Forget a job."""
        self._order.remove(job)

    def ran(self, job: Job, duration_ns: int) -> None:
        """Count on its core again; if it took longer than predicted, predict again."""
        predicted_ns = self._running.pop(job, None)
        if predicted_ns is not None and duration_ns > predicted_ns:
            self._is_behind = True
        self._order.ran(job, duration_ns)

    def preempted(self, running: Sequence[Job], now_ns: int) -> Job | None:
        """Whom the other policy names."""
        return self._order.preempted(running, now_ns)

    def due_ns(self, now_ns: int) -> int:
        """When the other policy says."""
        return self._order.due_ns(now_ns)


def _worn_ns(estimate: Estimate) -> float:
    """What a run is expected to take, less what refusals took off it."""
    return estimate.ns * (estimate.floor_ns / estimate.best_ns) if estimate.best_ns else 0.0
