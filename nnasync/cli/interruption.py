"""Ctrl-C and SIGTERM end the work of a command, not the command: it still tells what it has.

A SIGTERM may come twice at once, as `timeout` sends it to its process and then to the whole group,
in which that is, too. So one that follows soon means nothing more, also while results are written.
A later one, or a second Ctrl-C, ends the command as it is.
"""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAME_S = 2.0
"""A SIGTERM within so many seconds of the first is the same."""


class Interruption:
    """Which signal ended a block, if one did."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._caught_s = 0.0

    def note(self, caught: signal.Signals) -> None:
        """The first signal came."""
        self.signal, self._caught_s = caught, time.monotonic()

    def is_same(self, caught: int) -> bool:
        """Returns whether a further signal is the first one, which was sent twice."""
        age_s = time.monotonic() - self._caught_s
        return caught == self.signal == signal.SIGTERM and age_s <= _SAME_S

    @property
    def exit_code(self) -> int:
        """0, or what shells report for a process that the signal ended: 130 or 143."""
        return 0 if self.signal is None else 128 + int(self.signal)


@asynccontextmanager
async def interruptible() -> AsyncIterator[Interruption]:
    """Cancel the block at the first SIGINT or SIGTERM, and go on behind it."""
    interruption = Interruption()
    scope = anyio.CancelScope()
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(_watch, interruption, scope)
            with scope:
                yield interruption
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        raise group.exceptions[0] from None
    if interruption.signal == signal.SIGTERM:
        _pass_over_the_same(interruption)


async def _watch(
    interruption: Interruption,
    scope: anyio.CancelScope,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        task_status.started()
        async for caught in signals:
            if interruption.signal is None:
                interruption.note(caught)
                scope.cancel()
            elif caught == signal.SIGINT:
                raise KeyboardInterrupt
            elif not interruption.is_same(caught):
                _end_by(caught)


def _pass_over_the_same(interruption: Interruption) -> None:
    """Have the SIGTERM that ended the block do nothing when it comes again."""

    def heed(number: int, _frame: object) -> None:
        if not interruption.is_same(number):
            _end_by(number)

    signal.signal(signal.SIGTERM, heed)


def _end_by(number: int) -> None:
    """End the process as the signal does where nobody handles it."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
