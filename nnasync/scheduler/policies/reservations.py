"""Reservations: a client gets a budget in every period, whatever the others do.

Each client with a reservation has a constant-bandwidth server (Abeni & Buttazzo, RTSS 1998): a
budget of Q and a deadline. What its jobs run comes off the budget; when that is gone, the budget is
filled up again and the deadline put off by the period P. The client with the earliest deadline goes
first, so each has Q of every P as long as all reservations together fit the cores. A client that
was idle begins anew, unless what is left of its budget lasts until its deadline at the reserved
rate.

*Soft* reservations let a client that has used its budget up go on where nobody else has work, on
account of later periods. *Hard* ones make it wait for the next period, though a core be idle.
Clients without a reservation have what is left, by arrival. A job that cannot be stopped may
overrun a budget; that is paid for by the next ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nnasync.errors import InvalidArgument
from nnasync.hal import NEVER_NS, Struct
from nnasync.scheduler.job import Job
from nnasync.scheduler.policies.orders import FirstComeFirstServed


class Reservation(Struct, frozen=True):
    """A budget of processor time in every period, in nanoseconds."""

    budget_ns: int
    period_ns: int

    def __post_init__(self) -> None:
        if not 0 < self.budget_ns <= self.period_ns:
            raise InvalidArgument(
                "a reservation has a budget above 0 and up to its period: "
                f"{self.budget_ns} of {self.period_ns} ns"
            )


class Reservations:
    """Constant-bandwidth servers for clients by their numbers, 0 being the application itself."""

    name = "reservations"

    def __init__(self, by_client: Mapping[int, Reservation], *, is_hard: bool = False) -> None:
        self._reserved = dict(by_client)
        self.is_work_conserving = not is_hard
        self.reset(1)

    def reset(self, servers: int) -> None:
        """Forgets everything: all budgets are full, and no client has a deadline."""
        self._servers = {
            client: _Server(each, is_hard=not self.is_work_conserving)
            for client, each in self._reserved.items()
        }
        self._others = _Server(None, is_hard=False)

    def needed_ns(self, job: Job, now_ns: int) -> float:
        """Returns 0, so that nothing is refused."""
        return 0.0

    def push(self, job: Job, now_ns: int) -> None:
        """Queue a job with its client."""
        self._of(job).push(job, now_ns)

    def next(self, now_ns: int) -> Job | None:
        """Returns the first job of the client with the earliest deadline."""
        server = self._first(now_ns)
        return None if server is None else server.next(now_ns)

    def remove(self, job: Job) -> None:
        """Forgets a job."""
        self._of(job).queue.remove(job)

    def ran(self, job: Job, duration_ns: int) -> None:
        """Subtracts what a job ran from its client's budget."""
        self._of(job).ran(job, duration_ns)

    def preempted(self, running: Sequence[Job], now_ns: int) -> Job | None:
        """Returns the running job with the latest deadline if a queued client's is earlier."""
        first = self._first(now_ns)
        if first is None or not running:
            return None
        last = max(running, key=lambda job: self._of(job).deadline_now_ns(now_ns))
        return last if first.deadline_ns < self._of(last).deadline_now_ns(now_ns) else None

    def due_ns(self, now_ns: int) -> int:
        """Returns when a running client's budget is gone, or a waiting client's is filled up."""
        if not any(server.queue for server in self._all()):
            return NEVER_NS
        return min(server.due_ns(now_ns) for server in self._all())

    def _of(self, job: Job) -> _Server:
        return self._servers.get(job.client, self._others)

    def _all(self) -> list[_Server]:
        return [*self._servers.values(), self._others]

    def _first(self, now_ns: int) -> _Server | None:
        able = [each for each in self._all() if each.queue and each.suspended_until_ns <= now_ns]
        return min(able, key=lambda each: each.deadline_ns, default=None)


class _Server:
    """The budget, deadline and jobs of one client; without a reservation it has no deadline."""

    def __init__(self, reservation: Reservation | None, *, is_hard: bool) -> None:
        self._reservation = reservation
        self._is_hard = is_hard
        self.queue = FirstComeFirstServed()
        self._running: dict[Job, None] = {}
        self._left_ns = 0.0 if reservation is None else float(reservation.budget_ns)
        self.deadline_ns = math.inf if reservation is None else 0.0
        self.suspended_until_ns = 0.0

    def push(self, job: Job, now_ns: int) -> None:
        reserved = self._reservation
        if reserved is not None and not (self.queue or self._running):
            rate = reserved.budget_ns / reserved.period_ns
            if self._left_ns >= (self.deadline_ns - now_ns) * rate:
                self.deadline_ns = now_ns + reserved.period_ns
                self._left_ns = reserved.budget_ns
        self.queue.push(job, now_ns)

    def next(self, now_ns: int) -> Job | None:
        job = self.queue.next(now_ns)
        if job is not None:
            self._running[job] = None
        return job

    def ran(self, job: Job, duration_ns: int) -> None:
        self._running.pop(job, None)
        reserved = self._reservation
        if reserved is None:
            return
        self._left_ns -= duration_ns
        while self._left_ns <= 0:
            self._left_ns += reserved.budget_ns
            if self._is_hard:
                self.suspended_until_ns = self.deadline_ns
            self.deadline_ns += reserved.period_ns

    def deadline_now_ns(self, now_ns: int) -> float:
        """Returns the deadline as it would be if what runs stopped now."""
        reserved = self._reservation
        if reserved is None:
            return math.inf
        left_ns = self._left_ns - sum(now_ns - job.resumed_ns for job in self._running)
        periods = 0 if left_ns > 0 else 1 + -left_ns // reserved.budget_ns
        return self.deadline_ns + periods * reserved.period_ns

    def due_ns(self, now_ns: int) -> int:
        """Returns when the budget of what runs is gone, or the suspension of what waits is over."""
        if self.queue and self.suspended_until_ns > now_ns:
            return int(self.suspended_until_ns)
        if self._reservation is None or not self._running:
            return NEVER_NS
        used_ns = sum(now_ns - job.resumed_ns for job in self._running)
        left_ns = (self._left_ns - used_ns) % self._reservation.budget_ns
        return now_ns + max(1, math.ceil(left_ns / len(self._running)))
