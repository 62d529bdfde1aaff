"""The live page as a server: networks, studio and application together, until it is ended."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import uvicorn

from nnasync.cli import certificate
from nnasync.cli.demo.streams import FRAME_NS, HOP_NS, read_truth
from nnasync.cli.demo_data import WordsTruth
from nnasync.cli.live import sources
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
from nnasync.serving.http_server import QuietServer, listener_at, serve_until_cancelled
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

    def __repr__(self) -> str:
        """Tell all but the token, so that logs and tracebacks do not have it."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        fields["token"] = "***" if self.token else ""
        return f"LiveOptions({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


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
    with listener_at(options.host, options.port) as listener:
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
                tasks.start_soon(serve_until_cancelled, server, listener)
                on_ready(_url(options, listener))
                shared = None
                if options.source:
                    shared = sources.named(options.source, options.data, studio.note)
                await studio.run(shared)


def _server(studio: Studio, options: LiveOptions) -> QuietServer:
    app: Any = Guard(make_app(studio, options.token), {*LOOPBACK, options.host}, options.token)
    return QuietServer(
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


def _url(options: LiveOptions, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    host = _reachable(options.host)
    host = f"[{host}]" if ":" in host else host
    query = f"?token={options.token}" if options.token else ""
    scheme = "https" if options.certificate else "http"
    return f"{scheme}://{host}:{port}/{query}"


def _reachable(host: str) -> str:
    """Returns this machine's address for others, where it listens at all its addresses."""
    far = {"0.0.0.0": "192.0.2.1", "": "192.0.2.1", "::": "2001:db8::1"}.get(host)
    if far is None:
        return host
    family = socket.AF_INET6 if ":" in far else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((far, 9))  # A datagram socket sends nothing by that.
        return str(probe.getsockname()[0])
    return socket.gethostname()
