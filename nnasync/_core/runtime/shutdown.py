"""Closing devices with a time limit, so that no device can keep a runtime open.

A device of others is asked to close in the task that closes the runtime, as it was opened there. It
gets so much time; then it is cancelled and left behind. On asyncio that ends also what it shields
from cancellation with scopes of anyio; a shielded scope of trio nobody can end from outside.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from nnasync._core.deferred import deferred
from nnasync._core.engine_device import EngineDevice
from nnasync._core.heap import HEAP
from nnasync._core.wakeup import Waiter, Wakeup, in_thread, shield
from nnasync._core.workers import contained
from nnasync.device import Device, PreparedModel
from nnasync.errors import DeviceUnavailable, ResourceExhausted
from nnasync.fences import Fence

if TYPE_CHECKING:
    import anyio

    from nnasync._core.cache.late_files import SharedEntries
else:
    anyio = deferred("anyio")

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


async def close_prepared(prepared: PreparedModel, fence: Fence) -> None:
    """Close a prepared model, and settle the fence of whoever waits for that."""
    try:
        await prepared.close()
        fence.signal()
    except Exception as error:
        fence.fail(contained(error, "closing a prepared model"))
    finally:
        HEAP.freed()
        # Final already, unless the runtime was closed first.
        fence.fail(DeviceUnavailable("the runtime was closed before the network was"))


async def late_files_written(devices: Sequence[Device], patience_s: float) -> None:
    """Wait for the cache files that plans of engines have replaced, but not for long."""
    for device in devices:
        if isinstance(device, EngineDevice) and not await ended_within(patience_s, device.written):
            logger.warning("late cache files of %s are not written in time", device.name)


async def collect_late_files(entries: SharedEntries | None, patience_s: float) -> None:
    """Store what devices wrote last into their cache files, where the file system answers."""
    if entries is None:
        return

    async def collect() -> None:
        await in_thread(entries.close, "nnasync-closing")

    try:
        has_ended = await ended_within(patience_s, collect)
    except ResourceExhausted as error:
        logger.warning("what devices wrote last into their cache is not stored: %s", error)
        return
    if not has_ended:
        logger.warning("what devices wrote last into their cache is not stored: it does not answer")


async def ended_within(patience_s: float, work: Callable[[], Awaitable[object]]) -> bool:
    """Runs work in this task; returns False where it took too long and was cancelled."""
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


class Leftovers:
    """Closes dropped prepared models in a task on the loop of the runtime."""

    def __init__(self) -> None:
        self._found: deque[PreparedModel] = deque()
        self._waiter: Waiter | None = None

    def add(self, prepared: PreparedModel) -> None:
        """Adds a prepared model to be closed."""
        self._found.append(prepared)
        if self._waiter is not None:
            self._waiter.wake()

    async def close_all(self, start: Callable[..., object]) -> None:
        """Closes what was added, until cancelled: each in a task of its own, since one may hang."""
        while True:
            self._waiter = Waiter()
            if not self._found:
                await self._waiter
            while self._found:
                start(_close_dropped, self._found.popleft())


async def _close_dropped(prepared: PreparedModel) -> None:
    try:
        await prepared.close()
    finally:
        HEAP.freed()
