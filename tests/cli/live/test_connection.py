"""Connections that send nothing, or not all of a request, are closed; sockets are left alone."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import anyio
import pytest
import uvicorn
import websockets

from nnasync.cli.live import connection
from nnasync.serving.http_server import QuietServer as _Server
from tests.rigs import until

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("uvicorn runs on asyncio alone")]

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def test_who_is_silent_is_let_go_and_a_socket_stays(
    clips_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT_S", 0.05)
    host, _, port = clips_url.removeprefix("http://").rstrip("/").partition(":")
    origin = websockets.Origin(clips_url.rstrip("/"))
    address = f"{clips_url.replace('http', 'ws')}socket"
    with anyio.fail_after(20):
        async with websockets.connect(address, origin=origin) as page:
            for said in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / H"):
                await until_closed(host, int(port), said)
            # Three limits have passed by now.
            while '"type":"tick"' not in str(await page.recv()):
                pass


async def test_who_does_not_read_is_closed_behind_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 0.01)
    over = anyio.Event()

    async def flood(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        with anyio.move_on_after(0.05):
            while True:
                await send({"type": "websocket.send", "bytes": bytes(1 << 20)})
        over.set()

    server = _Server(uvicorn.Config(flood, ws=connection.BoundedSocket, lifespan="off"))
    with anyio.fail_after(20), socket.create_server(("127.0.0.1", 0)) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(HANDSHAKE)
            await over.wait()
            assert server.server_state.connections
            await until(lambda: not server.server_state.connections)
            writer.transport.abort()
            server.should_exit = True


MASK = bytes(4)
PING, PONG, PIECE = b"\x89\x80", b"\x8a\x80", b"\x00\x80"


@pytest.mark.parametrize("frame", [PING, PONG, PIECE], ids=["ping", "pong", "piece"])
async def test_a_flood_of_what_is_no_message_ends_its_socket(frame: bytes) -> None:
    """Nothing of it reaches the application, which could count it."""
    left = anyio.Event()

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        assert (await receive())["type"] == "websocket.disconnect"
        left.set()

    server = _Server(uvicorn.Config(page, ws=connection.BoundedSocket, lifespan="off"))
    with anyio.fail_after(20), socket.create_server(("127.0.0.1", 0)) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(HANDSHAKE)
            await reader.readuntil(b"\r\n\r\n")
            begins = b"\x01\x80" + MASK
            writer.write(begins + (frame + MASK) * 1000)
            await left.wait()
            writer.transport.abort()
            server.should_exit = True


async def until_closed(host: str, port: int, said: bytes) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(said)
        with suppress(ConnectionResetError):
            while await reader.read(1 << 16):
                pass
    finally:
        writer.close()
