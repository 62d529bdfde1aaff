"""The way of a TLS connection to its protocol, which is limited before the handshake, too.

An event loop that serves TLS itself tells of a connection once its handshake is done, which may
never be. So here it accepts connections without TLS; each counts from that moment, has so long for
its handshake, and is then handed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, TypeAlias

from nnasync.serving.limits import Limits

_Waiting: TypeAlias = "set[TlsGate]"


class TlsGate(asyncio.Protocol):
    """The protocol of a TLS connection before and during its handshake."""

    def __init__(
        self,
        make: Callable[[], Any],
        context: ssl.SSLContext,
        limits: Limits,
        waiting: _Waiting,
        connections: set[Any],
    ) -> None:
        """Takes `make`, which makes the protocol behind the handshake, and the sets to be counted.

        `waiting` holds the gates before that protocol, `connections` the connections behind it.
        """
        self._make = make
        self._context = context
        self._limits = limits
        self._waiting = waiting
        self._connections = connections
        self._early: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, or hang up where there are too many connections."""
        self._transport = transport
        if len(self._waiting) + len(self._connections) >= self._limits.connections:
            self._transport.abort()
            return
        self._transport.pause_reading()
        self._waiting.add(self)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands())

    def data_received(self, data: bytes) -> None:
        """Keeps the data that comes with the end of the handshake."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Counts the connection no more."""
        self._waiting.discard(self)

    def close(self) -> None:
        """Closes the connection."""
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    async def _shake_hands(self) -> None:
        # What a client gets wrong, or leaves undone, is nobody else's affair.
        with contextlib.suppress(OSError):
            try:
                transport: Any = await asyncio.get_running_loop().start_tls(
                    self._transport,
                    self,
                    self._context,
                    server_side=True,
                    ssl_handshake_timeout=self._limits.body_s,
                )
            finally:
                self._waiting.discard(self)
            if transport is not None:
                self.hand_on(transport)

    def hand_on(self, transport: Any) -> None:
        """Hands the connection to its protocol, with the data that came behind the handshake."""
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._early:
            # At once: a protocol may be replaced by another one when it has seen a piece.
            protocol.data_received(b"".join(self._early))


def gated(
    make: Callable[..., Any], context: ssl.SSLContext, limits: Limits, waiting: _Waiting
) -> Callable[..., TlsGate]:
    """Returns a factory of gates in front of the protocols that `make` makes, for uvicorn."""

    def made(**keywords: Any) -> TlsGate:
        connections = keywords["server_state"].connections
        return TlsGate(lambda: make(**keywords), context, limits, waiting, connections)

    return made
