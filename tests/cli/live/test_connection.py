"""Connections that send nothing, or not all of a request, are closed; sockets are left alone."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import pytest
import websockets

from nnasync.cli.live import connection

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("uvicorn runs on asyncio alone")]


async def test_who_is_silent_is_let_go_and_a_socket_stays(
    clips_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT_S", 0.05)
    host, _, port = clips_url.removeprefix("http://").rstrip("/").partition(":")
    origin = websockets.Origin(clips_url.rstrip("/"))
    address = f"{clips_url.replace('http', 'ws')}socket"
    with anyio.fail_after(20):
        async with websockets.connect(address, origin=origin) as socket:
            for said in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / H"):
                await until_closed(host, int(port), said)
            # Three limits have passed by now.
            while '"type":"tick"' not in str(await socket.recv()):
                pass


async def until_closed(host: str, port: int, said: bytes) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(said)
        with suppress(ConnectionResetError):
            while await reader.read(1 << 16):
                pass
    finally:
        writer.close()
