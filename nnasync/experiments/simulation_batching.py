"""Requests of a simulated stream that wait for each other, and are run together.

Who goes with whom is decided by the rule of `nnasync.batching`, and what is around it is as there:
a request goes at once while fewer runs than cores are under way and nobody waits; it is refused
where those that wait cannot be through by its deadline; at its deadline it is answered, whether it
waits or runs, and the others go on. A run is a request of the simulation with `members`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, TypeVar

from nnasync.batching.rule import Costs, Together, Waiting, earliest_end_ns, next_step
from nnasync.experiments.costs import Batching
from nnasync.hal import NEVER_NS
from nnasync.scheduler import Job

J = TypeVar("J", bound=Job)


class Line(Generic[J]):
    """The queue of a batched stream; `looks_at_ns` is when it has to be looked at again."""

    def __init__(self, batching: Batching, lanes: int) -> None:
        """Allows as many runs at once as there are `lanes`."""
        self._batching = batching
        self._lanes = lanes
        self._waiting: list[tuple[J, Waiting]] = []
        self._running = 0
        self._costs = Costs()
        self._submitted_ns: dict[J, int] = {}
        self.looks_at_ns = NEVER_NS

    def takes(self, now: int, request: J) -> bool:
        """Queues a request; returns False where it cannot be through by its deadline."""
        due_ns = math.inf if request.deadline_ns == NEVER_NS else request.deadline_ns
        ahead = sum(other.deadline_ns <= due_ns for _, other in self._waiting)
        most_rows = self._batching.max_rows
        if due_ns < math.inf:
            end_ns = earliest_end_ns(1, now, ahead, self._costs, most_rows, self._lanes)
            if end_ns > due_ns and not self._goes_at_once():
                return False
        self._waiting.append((request, Waiting(1, now, due_ns)))
        return True

    def next_run(self, now: int) -> list[J]:
        """Takes the requests that go together now out of the queue; returns none if none may go."""
        if not self._waiting or self._running >= self._lanes:
            return []
        members = tuple(range(1)) if self._is_one_at_once() else self._members(now)
        chosen = [self._waiting[place][0] for place in members]
        self._waiting = [each for each in self._waiting if each[0] not in chosen]
        self._running += bool(chosen)
        return chosen

    def began(self, now: int, run: J) -> None:
        """Notes that a run of these requests has begun."""
        self._submitted_ns[run] = now

    def ended(self, now: int, run: J, rows: int) -> None:
        """Notes that a run has ended in which so many requests went together."""
        self._running -= 1
        self._costs.observe(rows, now - self._submitted_ns.pop(run))

    def leave(self, request: J) -> None:
        """Takes a request that gave up waiting out of the queue."""
        self._waiting = [each for each in self._waiting if each[0] is not request]

    def _goes_at_once(self) -> bool:
        return not self._waiting and not self._batching.window_ms and self._running < self._lanes

    def _is_one_at_once(self) -> bool:
        return len(self._waiting) == 1 and not self._batching.window_ms

    def _members(self, now: int) -> Sequence[int]:
        """Returns the places of the requests that go together.

        Notes until when they wait for more.
        """
        due = [waiting for _, waiting in self._waiting]
        window_ns = round(self._batching.window_ms * 1e6)
        step = next_step(due, now, self._costs, window_ns, self._batching.max_rows)
        if isinstance(step, Together):
            return step.members
        self.looks_at_ns = min(self.looks_at_ns, math.ceil(step.at_ns))
        return ()
