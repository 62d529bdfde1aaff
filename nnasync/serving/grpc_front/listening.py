"""Where the gRPC front listens, with which limits, and how it ends."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import grpc

from nnasync._core.wakeup import Wakeup
from nnasync.errors import BadState, InvalidArgument
from nnasync.serving.grpc_front.service import InferenceService
from nnasync.serving.server import ModelServer

_PING_MS = 60_000
"""A peer of whom nothing is heard is asked after this time whether it is there."""
_HEADER_ROOM = 64 << 10
_END_S = 5
"""How long the end may take beyond the time that calls are given."""


class GrpcFront:
    """A front that listens on `port`."""

    def __init__(self, server: Any, port: int) -> None:
        self.port = port
        self._server = server

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take no more calls, and end those that are not answered in this time."""
        await self._server.stop(grace_s)


@contextlib.asynccontextmanager
async def open_grpc_front(
    server: ModelServer,
    host: str = "127.0.0.1",
    port: int = 8001,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    grace_s: float = 0.0,
) -> AsyncIterator[GrpcFront]:
    """Serve gRPC for as long as the context is open; port 0 takes any that is free.

    With a certificate and its key, files in PEM, it speaks TLS. Raises InvalidArgument where the
    port is taken or the files do not fit, BadState on an event loop that is not asyncio's.
    """
    if Wakeup.current().is_trio:
        raise BadState("gRPC runs on asyncio and uvloop only; on trio serve HTTP alone")
    listener = grpc.aio.server(
        handlers=InferenceService(server).handlers(),
        options=_options(server),
        maximum_concurrent_rpcs=server.options.limits.connections,
    )
    try:
        bound = _bound(listener, f"{_in_address(host)}:{port}", certificate, key)
        await listener.start()
        yield GrpcFront(listener, bound)
    finally:
        # Shielded: a listener that is not stopped goes on, and holds its port.
        with anyio.move_on_after(grace_s + _END_S, shield=True):
            await listener.stop(grace_s)


def _options(server: ModelServer) -> list[tuple[str, int]]:
    limits = server.options.limits
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", min(limits.header_bytes, _HEADER_ROOM)),
        ("grpc.absolute_max_metadata_size", limits.header_bytes),
        ("grpc.max_concurrent_streams", limits.requests_per_client),
        ("grpc.keepalive_time_ms", _PING_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS // 4),
    ]


def _bound(listener: Any, address: str, certificate: Path | None, key: Path | None) -> int:
    try:
        if certificate is None:
            return int(listener.add_insecure_port(address))
        return int(listener.add_secure_port(address, _credentials(certificate, key)))
    except RuntimeError as error:
        raise InvalidArgument(f"gRPC cannot listen on {address}: {error}") from error


def _credentials(certificate: Path, key: Path | None) -> Any:
    if key is None:
        raise InvalidArgument(f"TLS needs the key that goes with {certificate}")
    try:
        pair = (key.read_bytes(), certificate.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"TLS cannot be used: {error}") from error
    return grpc.ssl_server_credentials([pair])


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
