"""Prepared models whose networks were dropped without being closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from nnasync.device import PreparedModel
from nnasync.wakeup import Waiter

__all__ = ["Leftovers"]


class Leftovers:
    """Closes what is left over; on the loop of the runtime, in a task that is part of it."""

    def __init__(self) -> None:
        self._found: deque[PreparedModel] = deque()
        self._waiter: Waiter | None = None

    def add(self, prepared: PreparedModel) -> None:
        """Have a prepared model closed."""
        self._found.append(prepared)
        if self._waiter is not None:
            self._waiter.wake()

    async def close_all(self, start: Callable[..., object]) -> None:
        """Close what comes, until cancelled: each in a task of its own, since one may hang."""
        while True:
            self._waiter = Waiter()
            if not self._found:
                await self._waiter
            while self._found:
                start(self._found.popleft().close)
