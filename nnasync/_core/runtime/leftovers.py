"""Prepared models whose networks were dropped without being closed."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable

from nnasync._core.wakeup import Waiter, shield
from nnasync.device import PreparedModel

__all__ = ["Leftovers", "closed_on_failure"]

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def closed_on_failure(prepared: PreparedModel) -> AsyncIterator[None]:
    """Close a prepared model if the code that uses it fails or is cancelled."""
    try:
        yield
    except BaseException:
        with shield():
            try:
                await prepared.close()
            except Exception:
                logger.exception("closing a prepared model failed")
        raise


class Leftovers:
    """Closes dropped prepared models, in a task on the loop of the runtime."""

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
