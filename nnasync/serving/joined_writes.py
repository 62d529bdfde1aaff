"""A transport that sends what is written in one turn of the loop together.

Uvicorn writes the header of a response and its body apart, and a loop that writes at once makes two
system calls of that, and wakes the client twice: for a small answer, that is what costs most.
"""

from __future__ import annotations

import asyncio
from typing import Any

from nnasync.serving.messages import Bytes

JOINED_BYTES = 1 << 16
"""What is longer goes by itself: a copy would cost more than writing once more."""


class JoinedWrites:
    """A transport as its connection sees it.

    A first write waits for the next, or for the turn's end. What waits goes ahead of all else, also
    of the end of the connection; only `abort` drops it.
    """

    __slots__ = (
        "_held", "_loop", "_transport", "_write", "abort", "get_extra_info", "is_closing",
        "pause_reading", "resume_reading", "set_protocol",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: Bytes | None = None
        self._write = transport.write
        self.abort = transport.abort
        self.get_extra_info = transport.get_extra_info
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.set_protocol = transport.set_protocol

    def write(self, data: Any) -> None:
        """Sends data behind what waits, or lets it wait; drops it once the connection is gone."""
        if self.is_closing():
            return  # uvloop would raise an error, which uvicorn logs with its traceback.
        held, is_short = self._held, len(data) <= JOINED_BYTES
        if held is None and is_short:
            self._held = data
            self._loop.call_soon(self._flush)
        elif held is not None and is_short:
            self._held = None
            self._write(b"".join((held, data)))
        else:
            self._flush()
            self._write(data)

    def write_now(self, data: Any) -> None:
        """Sends data at once, without waiting for what is written next."""
        if self._held is not None:
            self._flush()
        self._write(data)

    def close(self) -> None:
        """Sends what waits, and closes the connection."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, None
        if held is not None and not self._transport.is_closing():
            self._write(held)
