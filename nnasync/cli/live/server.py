"""The live page as a server: networks, studio and application together, until it is ended."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import uvicorn

from nnasync.cli.demo.streams import FRAME_NS, HOP_NS, read_truth
from nnasync.cli.demo_data import WordsTruth
from nnasync.cli.live import certificate, sources
from nnasync.cli.live.activity import Activity
from nnasync.cli.live.app import make_app
from nnasync.cli.live.connection import BoundedConnection, BoundedSocket
from nnasync.cli.live.guard import Guard
from nnasync.cli.live.link import StreamSettings
from nnasync.cli.live.load_keeper import LoadKeeper
from nnasync.cli.live.messages import MAX_COMMAND_BYTES, StreamName
from nnasync.cli.live.networks import open_networks
from nnasync.cli.live.studio import Studio
from nnasync.cli.live.ticks import Ticker
from nnasync.hal import Priority, Struct
from nnasync.streaming.redaction import redacted

LOOPBACK = ("127.0.0.1", "localhost", "::1")

_OF_BROWSERS_NS = 50_000_000, 66_000_000
"""Deadlines of sound and pictures of browsers, which send sound in packets of 20 ms."""

_MAX_CONNECTIONS = 128
_GRACE_S = 2


class LiveOptions(Struct, frozen=True):
    """What is served where; `source` is empty where each page brings its own camera.

    With a `certificate` it is served over HTTPS; where there is no `key`, that file has it.
    """

    source: str = ""
    host: str = "127.0.0.1"
    port: int = 8765
    token: str = ""
    certificate: Path | None = None
    key: Path | None = None
    low_clients: int = 0
    data: Path | None = None


async def serve(options: LiveOptions, on_ready: Callable[[str], object]) -> None:
    """Serve until cancelled; `on_ready` is told the address of the page.

    Raises OSError where the address is taken, InvalidArgument for a certificate or a key
    that HTTPS cannot be served with, and what the source raises.
    """
    certificate.check(options.certificate, options.key)
    if options.source:
        sources.check(options.source)
    names = read_truth(options.data, "words.json", WordsTruth).names
    audio_ns, video_ns = (HOP_NS, FRAME_NS) if options.source else _OF_BROWSERS_NS
    settings: dict[StreamName, StreamSettings] = {
        "audio": StreamSettings(Priority.HIGH, audio_ns),
        "video": StreamSettings(Priority.MEDIUM, video_ns),
    }
    activity = Activity()
    with _listening(options) as listener:
        async with open_networks(options.data, activity) as networks:
            load = LoadKeeper(networks.load, options.low_clients)
            studio = Studio(
                networks,
                Ticker(networks, activity, load, settings),
                load,
                names,
                settings,
                source=redacted(options.source),
                open_clips=lambda: sources.of_clips(options.data),
            )
            server = _server(studio, options)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_serve, server, listener)
                on_ready(_url(options, listener))
                shared = None
                if options.source:
                    shared = sources.named(options.source, options.data, studio.note)
                await studio.run(shared)


class _Server(uvicorn.Server):
    """A server that leaves signals to the command, which ends it by cancelling."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install nothing."""
        yield


def _server(studio: Studio, options: LiveOptions) -> _Server:
    app: Any = Guard(make_app(studio, options.token), {*LOOPBACK, options.host}, options.token)
    return _Server(
        uvicorn.Config(
            app,
            http=BoundedConnection,
            ws=BoundedSocket,
            ws_max_size=MAX_COMMAND_BYTES,
            ws_max_queue=16,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=_GRACE_S,
            proxy_headers=False,
            ssl_certfile=options.certificate,
            ssl_keyfile=options.key,
        )
    )


async def _serve(server: _Server, listener: socket.socket) -> None:
    """Serve until cancelled, and then let the connections end: uvicorn closes nothing otherwise."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_when_cancelled, server)
        with anyio.CancelScope(shield=True):
            await server.serve(sockets=[listener])
        tasks.cancel_scope.cancel()


async def _end_when_cancelled(server: _Server) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        server.should_exit = True


@contextmanager
def _listening(options: LiveOptions) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.listen(64)
        yield listener


def _url(options: LiveOptions, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    host = _reachable(options.host)
    host = f"[{host}]" if ":" in host else host
    query = f"?token={options.token}" if options.token else ""
    scheme = "https" if options.certificate else "http"
    return f"{scheme}://{host}:{port}/{query}"


def _reachable(host: str) -> str:
    """What others call this machine if it listens at all its addresses: the one of its network."""
    far = {"0.0.0.0": "192.0.2.1", "": "192.0.2.1", "::": "2001:db8::1"}.get(host)
    if far is None:
        return host
    family = socket.AF_INET6 if ":" in far else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((far, 9))  # A datagram socket sends nothing by that.
        return str(probe.getsockname()[0])
    return socket.gethostname()
