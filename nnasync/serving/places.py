"""Places for runs of one model, where its settings limit how many are under way at once."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from nnasync._core.clock import Deadline
from nnasync.errors import MissedDeadlinePersistent, because
from nnasync.hal import NEVER_NS, Priority
from nnasync.serving.deadlines import set_in_time


class _Waiting:
    """A run that waits for its place."""

    __slots__ = ("has_place", "is_gone", "told")

    def __init__(self) -> None:
        self.told = anyio.Event()
        self.has_place = False
        self.is_gone = False


class Places:
    """Limits how many runs of a model go on at once.

    Those that wait go by priority, then by deadline, then by arrival.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._line: list[tuple[int, int, int, _Waiting]] = []
        self._arrivals = itertools.count()

    @asynccontextmanager
    async def one(self, priority: Priority, deadline: Deadline | None) -> AsyncIterator[None]:
        """Holds a place while the block runs; raises MissedDeadline where none is free in time."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(priority, deadline)
        try:
            yield
        finally:
            self._leave()

    async def _wait(self, priority: Priority, deadline: Deadline | None) -> None:
        due_ns = NEVER_NS if deadline is None else deadline.at_ns
        mine = _Waiting()
        heapq.heappush(self._line, (-int(priority), due_ns, next(self._arrivals), mine))
        try:
            await set_in_time(mine.told, deadline)
        except BaseException:
            mine.is_gone = True
            if mine.has_place:
                self._leave()
            raise
        if not mine.has_place:
            mine.is_gone = True
            text = "the deadline passed before there was a place for the run"
            raise because("queue", MissedDeadlinePersistent(text))

    def _leave(self) -> None:
        """Gives the place to the first run that waits."""
        while self._line:
            *_, first = heapq.heappop(self._line)
            if not first.is_gone:
                first.has_place = True
                first.told.set()
                return
        self._free += 1
