"""A driver-managed buffer on another machine: its contents travel when they are copied."""

from __future__ import annotations

import weakref

from nnasync._core.drivers.service.link import Link
from nnasync._core.drivers.service.network_source import NetworkPeer
from nnasync._core.wire.framing import Landing
from nnasync._core.wire.messages import CloseBuffer
from nnasync._core.wire.network_connection import NetworkConnection
from nnasync._core.wire.network_messages import ReadBuffer, WriteBuffer
from nnasync.errors import DeviceDied, DeviceError, GeneralFailure
from nnasync.fences import Fence
from nnasync.hal import Memory, Shape
from nnasync.memory import mapped


class NetworkBuffer:
    """A buffer (memory domain) by its token; given back when closed or dropped."""

    def __init__(self, link: Link, number: int, token: int) -> None:
        self._link = link
        self._number = number
        self.token = token
        """What stands for the buffer in requests to this device."""
        self._finalizer = weakref.finalize(self, link.notify_soon, CloseBuffer(0, number))
        self._finalizer.atexit = False

    async def copy_to(self, destination: Memory) -> None:
        """Copy the contents to memory of the same size."""
        reading = _Reading(self._link, self._number, destination)
        try:
            await reading.fence
        except BaseException:
            if not reading.fence.done:
                reading.give_up()
            raise

    def start_copy_to(self, destination: Memory) -> Fence:
        """Begin the same without an event loop; the fence tells how it went."""
        return _Reading(self._link, self._number, destination).fence

    async def copy_from(self, source: Memory, dimensions: Shape = ()) -> None:
        """Copy the contents from memory."""
        value = _bytes_of(source, writable=False)
        await self._link.call(lambda n: WriteBuffer(n, self._number, tuple(dimensions)), [value])

    async def close(self) -> None:
        """Give it back; its token means nothing any more, nor after the connection has ended."""
        if self._finalizer.detach() and self._link.error is None:
            try:
                await self._link.call(lambda n: CloseBuffer(n, self._number))
            except DeviceDied:
                pass  # It went with the connection, of which the link may not know yet.
            except DeviceError:
                if self._link.error is None:
                    raise


class _Reading:
    """One copy of the contents, on its way here."""

    def __init__(self, link: Link, number: int, destination: Memory) -> None:
        view = _bytes_of(destination, writable=True)
        self._link = link
        self._landing = Landing([view])
        peer = link.peer
        self._landings = peer.landings if isinstance(peer, NetworkPeer) else {}

        def read(call: int) -> ReadBuffer:
            self._landings[call] = self._landing
            return ReadBuffer(call, number, view.nbytes)

        self.call = link.begin(read)
        self.fence = Fence()
        self.call.fence.add_callback(self._answered)

    def _answered(self, answer: Fence) -> None:
        self._landings.pop(self.call.number, None)
        if answer.error is not None:
            self.fence.fail(answer.error)
        elif self._landing.is_filled:
            self.fence.signal()
        else:
            text = f"{self._link.who} answered without the contents of a buffer"
            self.fence.fail(GeneralFailure(text))

    def give_up(self) -> None:
        """Have nothing written any more."""
        self._landings.pop(self.call.number, None)
        connection = self._link.connection
        if isinstance(connection, NetworkConnection):
            connection.abandon(self._landing)
        self._link.give_up(self.call)


def _bytes_of(memory: Memory, *, writable: bool) -> memoryview:
    return memoryview(mapped(memory, "the memory of a copy", writable=writable)).cast("B")
