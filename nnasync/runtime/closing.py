"""Closing devices, none of which keeps a runtime open for ever.

A device of others is asked to close in the task that closes the runtime, as it was opened there. It
gets so much time; then it is cancelled and left behind. On asyncio that ends also what it shields
from cancellation with scopes of anyio; a shielded scope of trio nobody can end from outside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from nnasync.deferred import deferred
from nnasync.device import Device
from nnasync.wakeup import Wakeup, shield

if TYPE_CHECKING:
    import anyio
else:
    anyio = deferred("anyio")

__all__ = ["CLOSE_PATIENCE_S", "close_device", "ended_within"]

logger = logging.getLogger(__name__)

CLOSE_PATIENCE_S = 10.0
"""How long closing one device may take; a process of ours is killed well before."""


async def close_device(device: Device) -> None:
    """Close a device, shielded; what goes wrong is logged, and one that hangs is left behind."""
    patience_s = CLOSE_PATIENCE_S
    try:
        with shield():
            has_ended = await ended_within(patience_s, device.close)
    except Exception:
        logger.exception("closing %s failed", device.name)
        return
    if not has_ended:
        logger.warning("closing %s did not end within %g s: it is left", device.name, patience_s)


async def ended_within(patience_s: float, work: Callable[[], Awaitable[object]]) -> bool:
    """Do work in this task; False where it had to be cancelled because it took too long."""
    if Wakeup.current().is_trio:
        with anyio.move_on_after(patience_s) as scope:
            await work()
        return not scope.cancelled_caught
    limit = asyncio.timeout(patience_s)
    try:
        async with limit:
            await work()
    except TimeoutError:
        if not limit.expired():
            raise
    return not limit.expired()
