"""A wait of one task, which goes on in the very callback that ends the wait.

A task of asyncio that awaits a future goes on in the turn of the loop after the one in which the
future is done: the future has the loop call the task soon. The loop meanwhile takes what has come
over its sockets, and on a busy one each turn is a millisecond. Here the task gives its next step to
the future, as it does to any other, and the future takes that step at once, where that is safe: on
the loop's thread, in a callback of its own, between other tasks. Elsewhere the loop takes it soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Self


class SoleWait(asyncio.Future[None]):
    """A future that one task awaits at once, and nobody else ever."""

    __slots__ = ("_context", "_step")

    _step: Callable[[Any], object]
    _context: Context

    def add_done_callback(
        self, step: Callable[[Self], object], *, context: Context | None = None
    ) -> None:
        """Takes the next step of the task that awaits it, to be called in this context."""
        self._step, self._context = step, context or copy_context()

    def cancel(self, msg: Any | None = None) -> bool:
        """Ends the wait with a cancellation; returns False if it was over."""
        if not super().cancel(msg):
            return False
        self._step_soon()
        return True

    def end(self, *, at_once: bool) -> None:
        """Ends the wait, unless it is over; on the loop's thread.

        `at_once` has the task go on before this returns. That is for callbacks of the loop which
        hold nothing that the task may want, and in which no task runs.
        """
        if self.done():
            return
        self.set_result(None)
        if not at_once:
            self._step_soon()
            return
        step, context = self._step, self._context
        del self._step, self._context  # They refer to the task, which may refer to this.
        context.run(step, self)

    def _step_soon(self) -> None:
        self.get_loop().call_soon(self._step, self, context=self._context)
        del self._step, self._context
