"""Turns of an event loop: the inline work allowed in one, and the order in the next.

A turn begins when the loop says so (asyncio, uvloop), which the first run of each asks it to, or
when a caller that waited for it goes on, whichever is first.

Inline work that would exceed the stall budget of a turn waits for the next one. Whom the loop
resumes first is a matter of chance that repeats itself, so those who wait have an order of their
own: by priority, then by arrival, and nobody who comes later goes before them. Each run counts for
its duration and for what the call around it costs.
"""

from __future__ import annotations

import asyncio
import heapq
import threading

from nnasync._core.clock import now_ns
from nnasync._core.wakeup import yield_now
from nnasync.errors import MissedDeadlinePersistent
from nnasync.hal import Priority
from nnasync.scheduler import NEVER_NS

__all__ = ["CALL_NS", "Turn", "Turns"]

_running_loop = asyncio._get_running_loop

CALL_NS = 8_000
"""The cost of a call for the loop besides the run: copies, checks and bookkeeping in Python."""


class Turn:
    """The current turn of one thread's loop, its inline work, and who waits for the next.

    Apart from `Turns`, since the attributes of a `threading.local` are slow to read.
    """

    __slots__ = ("budget_ns", "number", "spent_ns", "waiting")

    def __init__(self, budget_ns: float) -> None:
        self.number = 0
        self.spent_ns = 0.0
        self.budget_ns = budget_ns
        self.waiting: list[tuple[int, int]] = []

    def spend(self, duration_ns: float) -> None:
        """Note an inline run of this turn, the first of which asks for the end of it."""
        if self.spent_ns <= 0:
            loop = _running_loop()
            if loop is not None:
                loop.call_soon(self.turned, self.number)
        self.spent_ns += duration_ns + CALL_NS

    def turned(self, number: int) -> None:
        """Note that the loop has turned since `number`; only the first to say so begins a turn."""
        if self.number == number:
            self.number = number + 1
            self.spent_ns = 0.0

    def has_room(self, needed_ns: float) -> bool:
        """Whether a run of that length fits into this turn; the first one always does."""
        return self.spent_ns <= 0 or self.spent_ns + needed_ns <= self.budget_ns

    def is_half_spent(self) -> bool:
        """Whether a caller that cannot yield later should do so now."""
        return 2 * self.spent_ns > self.budget_ns

    def must_wait(self, priority: Priority, needed_ns: float) -> bool:
        """Whether a run has to wait: there is no room for it, or somebody goes before."""
        spent_ns, waiting = self.spent_ns, self.waiting
        if spent_ns > 0 and spent_ns + needed_ns > self.budget_ns:
            return True
        return len(waiting) > 0 and -waiting[0][0] >= priority


class Turns(threading.local):
    """The turns of each thread's loop; `here` is the current one of this thread's."""

    def __init__(self, budget_ns: float) -> None:
        self.here = Turn(budget_ns)
        self._tickets = 0

    async def wait(self, priority: Priority, needed_ns: float, deadline_ns: int = NEVER_NS) -> None:
        """Return in a turn with room and with no earlier waiter; cancelling is safe.

        Raises MissedDeadlinePersistent in the turn in which the deadline passes.
        """
        here, waiting = self.here, self.here.waiting
        ticket = (-priority, self._tickets)
        self._tickets += 1
        heapq.heappush(waiting, ticket)
        try:
            await self.next()
            while waiting[0] != ticket or not here.has_room(needed_ns):
                if deadline_ns != NEVER_NS and now_ns() >= deadline_ns:
                    raise MissedDeadlinePersistent(
                        "the deadline passed while other executions had their turns of the loop"
                    )
                await self.next()
        finally:
            waiting.remove(ticket)
            heapq.heapify(waiting)

    async def next(self) -> None:
        """Let the loop turn, so that inline work may go on; a cancellation is delivered here."""
        number = self.here.number
        await yield_now()
        self.here.turned(number)
