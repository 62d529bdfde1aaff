"""A driver-managed buffer in a driver service."""

from __future__ import annotations

import weakref

from nnasync._core.drivers.service.link import Link
from nnasync._core.drivers.service.offered_memories import OfferedMemories
from nnasync._core.wire.messages import CloseBuffer, CopyBuffer
from nnasync.errors import DeviceDied, DeviceError, ResourceExhausted
from nnasync.fences import Fence
from nnasync.hal import Memory, Shape


class RemoteBuffer:
    """A buffer (memory domain) by its token; given back when closed or dropped."""

    def __init__(self, link: Link, memories: OfferedMemories, number: int, token: int) -> None:
        self._link = link
        self._memories = memories
        self._number = number
        self.token = token
        """What stands for the buffer in requests to this device."""
        self._finalizer = weakref.finalize(self, link.notify_soon, CloseBuffer(0, number))
        self._finalizer.atexit = False

    async def copy_to(self, destination: Memory) -> None:
        """Copy the contents to memory of the same size."""
        await self._copy(destination, (), is_from=False)

    def start_copy_to(self, destination: Memory) -> Fence:
        """Begin the same without an event loop; the fence tells how it went."""
        memory = self._memories.number_of(destination)
        over = self._link.begin(lambda n: CopyBuffer(n, self._number, memory, (), False)).fence
        over.add_callback(lambda fence: self._copied(destination, fence.error))
        return over

    async def copy_from(self, source: Memory, dimensions: Shape = ()) -> None:
        """Copy the contents from memory."""
        await self._copy(source, tuple(dimensions), is_from=True)

    async def close(self) -> None:
        """Give it back; its token means nothing any more, nor after the death of the service."""
        if self._finalizer.detach() and self._link.error is None:
            try:
                await self._link.call(lambda n: CloseBuffer(n, self._number))
            except DeviceDied:
                pass  # It went with its process, of which the link may not know yet.
            except DeviceError:
                if self._link.error is None:
                    raise

    async def _copy(self, pool: Memory, shape: Shape, *, is_from: bool) -> None:
        memory = self._memories.number_of(pool)
        try:
            await self._link.call(lambda n: CopyBuffer(n, self._number, memory, shape, is_from))
        except ResourceExhausted as error:
            self._copied(pool, error)
            raise

    def _copied(self, pool: Memory, error: Exception | None) -> None:
        """Have memory handed over again the next time if there was no room for it."""
        if isinstance(error, ResourceExhausted):
            self._memories.renew_pool(pool)
