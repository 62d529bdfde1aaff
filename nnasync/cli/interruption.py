"""Ctrl-C and SIGTERM end the work of a command, not the command: it still tells what it has."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Which signal ended a block, if one did."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

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


async def _watch(
    interruption: Interruption,
    scope: anyio.CancelScope,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        task_status.started()
        async for caught in signals:
            interruption.signal = caught
            scope.cancel()
            return
