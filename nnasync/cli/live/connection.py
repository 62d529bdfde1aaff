"""A connection of the server, which whoever is silent, floods or does not read cannot hold.

Uvicorn closes connections that are idle behind an answer. One that has never sent a request stays
open, and counts among those that may be: a few of them would shut everybody out, without a token.

The messages of a socket are counted where they are read. What is no message never gets there: a
ping is answered at once, and the answers wait in memory for who reads none; empty pieces of a
message that never ends take all the time of the loop. So these are counted here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from nnasync import now_ns
from nnasync.cli.live.flood import Allowance

CLOSE_TIMEOUT_S = 5.0
"""So long what was sent last may take to arrive, once a socket is done with."""

_FRAMES_HZ, _BURST = 20.0, 60
"""Pings, pongs and further pieces of messages: browsers send next to none of them."""

REQUEST_TIMEOUT_S = 10.0
"""A request has to come and be answered in so long: all answers are small, and there at once."""


class BoundedConnection(H11Protocol):
    """HTTP until it becomes a socket, with a limit on the time of each request."""

    def connection_made(  # type: ignore[override]  # Uvicorn narrows the transport, too.
        self, transport: asyncio.Transport
    ) -> None:
        """Watch it from the beginning."""
        super().connection_made(transport)
        self.loop.call_later(REQUEST_TIMEOUT_S, self._look, None)

    def _look(self, before: object) -> None:
        """End the connection if no request has come since that one."""
        if self not in self.connections:
            return  # It is closed, or a socket.
        if self.scope is before:
            self.transport.abort()
        else:
            self.loop.call_later(REQUEST_TIMEOUT_S, self._look, self.scope)


class BoundedSocket(WebSocketsSansIOProtocol):
    """A socket that ends in time, also where nobody reads what is left in its buffer.

    It ends at once where the other end sends too many frames that are no messages.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._allowance = Allowance(_FRAMES_HZ, _BURST)

    def handle_ping(self) -> None:
        """Answer it."""
        if self._is_allowed():
            super().handle_ping()

    def handle_pong(self, event: Any) -> None:
        """Note that the other end is there."""
        if self._is_allowed():
            super().handle_pong(event)

    def handle_cont(self, event: Any) -> None:
        """Take a further piece of a message."""
        if self._is_allowed():
            super().handle_cont(event)

    def _is_allowed(self) -> bool:
        """Returns whether one more frame is; otherwise the connection ends without another word."""
        if self._allowance.take(now_ns()):
            return True
        self.transport.abort()
        return False

    async def run_asgi(self) -> None:
        """Serve it, and see to it that it closes then."""
        try:
            await super().run_asgi()
        finally:
            self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)
