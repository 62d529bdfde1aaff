"""The turns of a loop, the inline work of each, and who waits for the next.

The inline work of one turn of a loop is limited, and those that wait for the next one have
an order. A turn begins when the loop says so (asyncio, uvloop), which the first run of each asks it
to, or when a caller that waited for it goes on, whichever is first. Inline work that would exceed
the stall budget of a turn waits for the next one. Whom the loop resumes first is a matter of chance
that repeats itself, so those who wait go by priority, then by arrival, and nobody who comes later
goes before them. Each run counts for its duration and for what the call around it costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import threading

from nnasync._core.clock import now_ns
from nnasync._core.wakeup import Waiter, yield_now
from nnasync._core.workers.admission import CALL_NS, Admission, Company
from nnasync.errors import MissedDeadlinePersistent
from nnasync.hal import Priority
from nnasync.scheduler import NEVER_NS

_running_loop = asyncio._get_running_loop

NO_TASK = id(None)
"""Who asks where no task does."""


class Turn:
    """The current turn of one thread's loop, its inline work, and who waits for the next.

    Apart from `Turns`, since the attributes of a `threading.local` are slow to read.
    """

    __slots__ = (
        "_answer",
        "_arrived",
        "_later",
        "budget_ns",
        "company",
        "first",
        "is_shared",
        "number",
        "spent_ns",
        "waiting",
    )

    def __init__(self, budget_ns: float) -> None:
        self.number = 0
        self.spent_ns = 0.0
        self.budget_ns = float(budget_ns)
        self.waiting: list[tuple[int, int, float]] = []
        self.company = Company()
        self.first = 0
        """The `id` of the task whose call was the first of this turn that is worth a hop.

        Not the task, which would live on with it.
        """
        self.is_shared = True
        """Whether runs have others beside them; not where they are better one after the other."""
        self._later = set[int]()
        """The tasks that came after the first, likewise."""
        self._arrived: tuple[int, int, float] | None = None
        self._answer: tuple[object, int, Admission] | None = None

    def spend(self, duration_ns: float) -> None:
        """Notes an inline run of this turn; the first one asks to be told of the turn's end."""
        if self.spent_ns <= 0.0:
            loop = _running_loop()
            if loop is not None:
                loop.call_soon(self.turned, self.number)
        self.spent_ns += duration_ns + CALL_NS

    def turned(self, number: int) -> None:
        """Notes that the loop has turned since turn `number`.

        Only the first call begins a new turn.
        """
        if self.number == number:
            self.number = number + 1
            self.spent_ns = 0.0

    def has_room(self, needed_ns: float) -> bool:
        """Returns whether a run of that length fits into this turn; the first one always does."""
        return self.spent_ns <= 0 or self.spent_ns + needed_ns <= self.budget_ns

    def is_used_up(self, run_ns: float) -> bool:
        """Returns whether one more run of this length has no room, and only one task had runs.

        That is the one whose call arrived last.
        """
        arrived = self._arrived
        return (
            self.spent_ns + run_ns > self.budget_ns
            and arrived is not None
            and self.first == arrived[0]
            and not self._later
        )

    def is_half_spent(self) -> bool:
        """Returns whether half of the turn is spent: who cannot yield later should do so now."""
        return 2 * self.spent_ns > self.budget_ns

    def must_wait(self, priority: Priority, needed_ns: float) -> bool:
        """Returns whether a run has to wait, for lack of room or behind somebody who goes first."""
        spent_ns, waiting = self.spent_ns, self.waiting
        if spent_ns > 0.0 and spent_ns + needed_ns > self.budget_ns:
            return True
        return len(waiting) > 0 and -waiting[0][0] >= priority

    def ahead(self, priority: Priority) -> tuple[int, float]:
        """Returns how many runs of this priority and above wait, and how long they take in all."""
        if not self.waiting:
            return 0, 0.0
        needed = [needed_ns for urgency, _, needed_ns in self.waiting if -urgency >= priority]
        return len(needed), sum(needed)

    def answered(self, who: int, estimate: object, deadline_ns: int) -> Admission | None:
        """Returns the answer that a task's call got before, if nothing has run since; else None."""
        answer = self._answer
        if answer is None or answer[0] is not estimate or answer[1] != deadline_ns:
            return None
        return answer[2] if self._arrived == (who, self.number, self.spent_ns) else None

    def answer(self, estimate: object, deadline_ns: int, admission: Admission) -> Admission:
        """Keeps the answer to the call that arrived last, and returns it."""
        self._answer = estimate, deadline_ns, admission
        return admission

    def arrive(self, who: int, *, others_run: bool, busy: int = 0) -> None:
        """Notes that a task (by its `id`) makes a call worth a hop, and whether it has company.

        It has while others wait or run on workers, and if another task has run in this turn. A call
        may ask in several places where it runs: a task counts again once something has run here,
        or its call has left for a worker.
        """
        arrived = (who, self.number, self.spent_ns)
        if arrived == self._arrived:
            return
        self._arrived, self._answer = arrived, None
        if self.spent_ns <= 0:
            self.first = who
            self._later.clear()
        is_second = self.first != who != NO_TASK
        if is_second:
            self._later.add(who)
        others = busy + len(self.waiting) + len(self._later)
        self.company.note(has_others=others_run or is_second or bool(self.waiting), others=others)

    def leave(self) -> None:
        """Notes that a call leaves for a worker, so that the next question is another call's."""
        self._arrived = self._answer = None


class Turns(threading.local):
    """Keeps the turns of each thread's loop; `here` is the current turn of this thread's."""

    def __init__(self, budget_ns: float) -> None:
        self.here = Turn(budget_ns)
        self._tickets = 0
        self._parked: dict[tuple[int, int, float], Waiter] = {}
        self._left_in = 0

    async def wait(self, priority: Priority, needed_ns: float, deadline_ns: int = NEVER_NS) -> None:
        """Returns once this turn has room and nobody waits before; cancelling is safe.

        Raises MissedDeadlinePersistent in the turn in which the deadline passes.
        """
        here, waiting = self.here, self.here.waiting
        ticket = (-priority, self._tickets, needed_ns)
        self._tickets += 1
        heapq.heappush(waiting, ticket)
        try:
            await self.next()
            while waiting[0] != ticket or not here.has_room(needed_ns):
                if deadline_ns != NEVER_NS and now_ns() >= deadline_ns:
                    raise MissedDeadlinePersistent(
                        "the deadline passed while other executions had their turns of the loop"
                    )
                if deadline_ns == NEVER_NS and waiting[0] != ticket:
                    await self._behind(ticket)
                else:
                    await self.next()
        finally:
            waiting.remove(ticket)
            heapq.heapify(waiting)
            self._parked.pop(ticket, None)
            self._call_first()

    async def _behind(self, ticket: tuple[int, int, float]) -> None:
        """Waits, without looking in each turn, until nobody is before this waiter."""
        waiter = self._parked[ticket] = Waiter()
        await waiter
        self.here.turned(self._left_in)

    def _call_first(self) -> None:
        """Wakes the first of those that wait in the next turn."""
        waiting = self.here.waiting
        first = self._parked.pop(waiting[0], None) if waiting else None
        if first is not None:
            self._left_in = self.here.number
            with contextlib.suppress(RuntimeError):  # Its loop may have been closed around it.
                first.wake()

    async def next(self) -> None:
        """Lets the loop turn once, so that inline work may go on; may be cancelled here."""
        number = self.here.number
        await yield_now()
        self.here.turned(number)
