"""The inline lane of a simulation: which requests run on the thread of the loop itself.

The rules are the runtime's (`workers.admission`); what they are told of turns, workers and
estimates is the simulation's. Requests of other clients than the application go to workers, and
those that wait for their turn do so in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from nnasync._core.workers.admission import (
    NEXT_TURN,
    RUN,
    WORKER,
    Admission,
    Company,
    delay_ns,
    loop_limit_ns,
    may_hold_loop,
    quickest,
)
from nnasync.experiments.overheads import Overheads
from nnasync.experiments.simulation_requests import Request
from nnasync.hal import NEVER_NS, Priority
from nnasync.machine import Decisions, Spread, decide
from nnasync.machine.decisions import USUAL_COSTS
from nnasync.scheduler import Scheduler


class SimulatedLane:
    """The turns of one loop; `servers` is how many workers may be busy beside it."""

    def __init__(self, overheads: Overheads, scheduler: Scheduler, servers: int) -> None:
        self._scheduler = scheduler
        self._servers = servers
        self._budget_ns = overheads.inline_budget_ns
        self._stall_ns = overheads.stall_budget_ns
        self._far_ns = max(2 * self._stall_ns, self._budget_ns)
        self._machine = _decisions(overheads)
        self._company = Company()
        self._spent_ns = 0

    def begin_turn(self) -> None:
        """Begins a turn of the loop, with a new budget."""
        self._spent_ns = 0

    def spend(self, duration_ns: int) -> None:
        """Notes that a request has kept the loop for so long in this turn."""
        self._spent_ns += duration_ns

    def admission(
        self, now: int, request: Request, on_workers: Collection[Request], posted: int
    ) -> Admission:
        """Decides where a request runs, with others on workers and `posted` events for the loop."""
        estimate, priority = request.estimate, request.priority
        best_ns = estimate.best_ns
        if (
            not estimate.samples
            or request.client
            or self._scheduler.waits_above(priority)
            or not self._may_hold(request, len(on_workers))
        ):
            return WORKER
        has_room = not self._spent_ns or self._spent_ns + best_ns <= self._stall_ns
        if self._servers < 1 or best_ns < self._machine.spread_from_ns:
            return RUN if has_room else NEXT_TURN
        running = [each for each in on_workers if each.priority >= priority]
        left_ns = [abs(each.began_ns + each.estimate.ns - now) for each in running]
        queued = sum(self._scheduler.totals[priority:])
        self._company.note(has_others=bool(running or posted), others=len(running) + posted)
        return quickest(
            self._machine,
            run_ns=best_ns,
            worker_run_ns=max(estimate.worker_ns, best_ns),
            has_room=has_room,
            waiting=posted,
            ahead_ns=posted * best_ns,
            delays_ns=delay_ns(best_ns, left_ns),
            expects_company=self._company.is_usual,
            free_workers=self._servers - len(running) - queued,
            backlog_ns=self._scheduler.backlog_ns(priority) + sum(left_ns),
            servers=self._servers,
            others_end=bool(running) and self._spent_ns > 0,
            left_ns=float("inf") if request.deadline_ns == NEVER_NS else request.deadline_ns - now,
        )

    def _may_hold(self, request: Request, busy: int) -> bool:
        """Returns whether a request is short enough for the loop.

        HIGH may hold the loop for longer where no core is free.
        """
        estimate, priority = request.estimate, request.priority
        limit_ns = loop_limit_ns(priority, self._budget_ns)
        estimate.holds_loop = may_hold_loop(
            estimate.best_ns, estimate.high_ns, limit_ns, self._far_ns, did=estimate.holds_loop
        )
        return estimate.holds_loop or (
            priority is Priority.HIGH
            and estimate.best_ns <= self._stall_ns
            and estimate.high_ns <= self._far_ns
            and busy > self._servers
        )


def _decisions(overheads: Overheads) -> Decisions:
    hop, cold_hop = (Spread(each, each) for each in (overheads.hop_ns, overheads.cold_hop_ns))
    costs = msgspec.structs.replace(USUAL_COSTS, hop=hop, cold_hop=cold_hop)
    return decide(costs, overheads.stall_budget_ns)
