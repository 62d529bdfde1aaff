"""Large bodies of requests, read to where they are to lie.

A loop hands what it has read to a protocol as bytes of its own, in pieces, which a parser copies
and somebody puts together: three copies before a network sees a tensor. But a loop also reads into
memory that it is given. So what is still missing of a large body is read into its place by the
system itself. From then on the connection's headers are read in small pieces, so that little of a
body comes along with its header.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

HEADER_BYTES = 1 << 14


def room(size: int) -> memoryview:
    """Returns new memory for a body of this size, without writing to it."""
    return np.empty(size, np.uint8).data


class BodyInPlace(asyncio.BufferedProtocol):
    """The protocol of a connection from its first large body on."""

    def __init__(
        self, connection: asyncio.Protocol, received: Callable[[memoryview], object]
    ) -> None:
        """`connection` goes on reading headers; `received` is called with a body that is there."""
        self._data_received = connection.data_received
        self._received = received
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._body: memoryview | None = None
        self._rest = self._header
        # All but the data is the connection's own; mypy takes methods for what nobody sets.
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def read(self, body: memoryview, begun: int) -> None:
        """Begins to read this body, the first `begun` bytes of which are there already."""
        self._body, self._rest = body, body[begun:]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the memory for the next bytes to be read: it ends where the body ends."""
        return self._rest

    def buffer_updated(self, count: int) -> None:
        """Counts the bytes that were read; hands the body on once it is complete."""
        body = self._body
        if body is None:
            self._data_received(bytes(self._header[:count]))
        elif count < len(self._rest):
            self._rest = self._rest[count:]
        else:
            self._body, self._rest = None, self._header
            self._received(body)
