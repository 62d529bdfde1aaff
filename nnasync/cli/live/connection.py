"""A connection of the server, which whoever is silent or does not read cannot hold.

Uvicorn closes connections that are idle behind an answer. One that has never sent a request stays
open, and counts among those that may be: a few of them would shut everybody out, without a token.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

CLOSE_TIMEOUT_S = 5.0
"""So long what was sent last may take to arrive, once a socket is done with."""

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
    """A socket that ends in time, also where nobody reads what is left in its buffer."""

    async def run_asgi(self) -> None:
        """Serve it, and see to it that it closes then."""
        try:
            await super().run_asgi()
        finally:
            self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)
