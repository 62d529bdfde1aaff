"""A server of models at a port: uvicorn around the ASGI application, while a block runs."""

from __future__ import annotations

import functools
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import uvicorn

from nnasync.hal import Struct
from nnasync.serving.http import http_app
from nnasync.serving.http_at_once import AtOnceConnection
from nnasync.serving.limits import Limits
from nnasync.serving.server import ModelServer
from nnasync.serving.tls_gate import TlsGate, gated

_KEEP_ALIVE_S = 75
_BACKLOG = 512
_GRACE_S = 2


class Place(Struct, frozen=True, kw_only=True):
    """Where a server listens; with a `certificate`, a file in PEM format, over TLS.

    Where there is no `key`, the file of the certificate has it. A port of 0 is any that is free.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None


@asynccontextmanager
async def listening(server: ModelServer, place: Place) -> AsyncIterator[str]:
    """Serves over HTTP while the block runs, which is given the address.

    Raises OSError where the address is taken. Needs asyncio, or uvloop.
    """
    with listener_at(place.host, place.port) as listener:
        scheme = "http" if place.certificate is None else "https"
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        running = QuietServer(_config(server, place))
        waiting = _through_gates(running.config, server.limits)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_until_cancelled, running, listener)
            yield f"{scheme}://{shown}:{port}"
            for gate in list(waiting):
                gate.close()
            tasks.cancel_scope.cancel()
        for connection in list(running.server_state.connections):
            # It has a request whose task was cancelled before it had begun, so nobody closed it.
            connection.transport.abort()


def _through_gates(config: uvicorn.Config, limits: Limits) -> set[TlsGate]:
    """Puts TLS gates before the connections; returns the set of handshakes that are under way.

    Raises OSError and ssl.SSLError for certificates that are wrong.
    """
    waiting: set[TlsGate] = set()
    config.load()
    if config.ssl is not None:
        protocol: Any = gated(config.http_protocol_class, config.ssl, limits, waiting)
        config.http_protocol_class = protocol
        config.ssl = None
    return waiting


def _config(server: ModelServer, place: Place) -> uvicorn.Config:
    app: Any = http_app(server)
    connection: Any = functools.partial(AtOnceConnection, limits=server.limits)
    return uvicorn.Config(
        app,
        http=connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        proxy_headers=False,
        ssl_certfile=place.certificate,
        ssl_keyfile=place.key,
    )


class QuietServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the program, which ends it by cancelling."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Installs no handlers of signals."""
        yield


async def serve_until_cancelled(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serves until cancelled, and then lets the connections end, which uvicorn would leave open."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_when_cancelled, server)
        with anyio.CancelScope(shield=True):
            await server.serve(sockets=[listener])
        tasks.cancel_scope.cancel()


async def _end_when_cancelled(server: uvicorn.Server) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        server.should_exit = True


@contextmanager
def listener_at(host: str, port: int) -> Iterator[socket.socket]:
    """Opens a socket that listens at this address; raises OSError where it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(_BACKLOG)
        except OSError as error:
            error.filename = f"{host}:{port}"  # What it is about.
            raise
        yield listener
