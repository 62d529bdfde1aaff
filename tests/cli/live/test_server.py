"""The live page from the outside: files, the socket, commands, and what a page must not do."""

from __future__ import annotations

import asyncio
import socket as socketlib
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import msgspec
import pytest
import websockets

from nnasync.cli.live import studio
from nnasync.cli.live.messages import MAX_COMMAND_BYTES
from nnasync.cli.live.server import LiveOptions, _url

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("uvicorn runs on asyncio alone")]


async def test_options_tell_no_token() -> None:
    assert "secret" not in repr(LiveOptions(token="secret"))
    assert "token='***'" in repr(LiveOptions(token="secret"))


def socket_of(url: str) -> Any:
    return websockets.connect(
        url.replace("http", "ws") + "socket", origin=websockets.Origin(url.rstrip("/"))
    )


def decoded(message: str | bytes) -> dict[str, Any]:
    if isinstance(message, bytes):
        length = int.from_bytes(message[:4], "big")
        found: dict[str, Any] = msgspec.json.decode(message[4 : 4 + length])
        return found | {"jpeg": message[4 + length :]}
    return dict(msgspec.json.decode(message))


async def told(socket: Any, kind: str, wanted: Any = lambda message: True) -> dict[str, Any]:
    """The next message of a kind that is as wanted."""
    async with asyncio.timeout(30):
        while True:
            message = decoded(await socket.recv())
            if message["type"] == kind and wanted(message):
                return message


async def say(socket: Any, **command: Any) -> None:
    await socket.send(msgspec.json.encode(command).decode())


async def test_a_page_is_served_and_shows_what_happens(clips_url: str) -> None:
    async with httpx.AsyncClient(base_url=clips_url) as client:
        page = await client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        script = await client.get("/page/main.js")
        assert script.headers["content-type"].startswith("text/javascript")
        for path in ("/page/nothing.js", "/page/..%2fserver.py", "/page/", "/socket", "/x"):
            assert (await client.get(path)).status_code in (404, 405)
    async with socket_of(clips_url) as socket:
        hello = await told(socket, "hello")
        assert (hello["source"], hello["max_load"]) == ("demo", 4)
        seen = await told(socket, "seen")
        assert seen["jpeg"].startswith(b"\xff\xd8\xff")
        await say(socket, type="stream", stream="video", priority="LOW", deadline_ms=500)
        await say(socket, type="load", clients=2)
        tick = await told(
            socket, "tick", lambda tick: tick["settings"]["video"]["deadline_ms"] == 500
        )
        assert tick["settings"]["video"]["priority"] == "LOW"
        assert tick["load_clients"] == 2
        for stream in tick["streams"].values():
            ends = ("completed", "missed", "dropped", "failed", "cancelled", "pending")
            assert stream["submitted"] == sum(stream[end] for end in ends)
        await told(socket, "tick", lambda tick: tick["load_hz"] > 0)


async def test_a_network_that_is_cut_loses_items_which_are_counted(clips_url: str) -> None:
    async with socket_of(clips_url) as socket:
        await say(socket, type="network", state="cut")
        await told(socket, "tick", lambda tick: tick["streams"]["audio"]["lost"] > 3)
        await say(socket, type="network", state="normal")
        notice = await told(socket, "notice")
        assert "is back: nothing came for" in notice["text"]


async def test_garbage_is_answered_and_ends_the_socket_when_it_goes_on(clips_url: str) -> None:
    async with socket_of(clips_url) as bystander, socket_of(clips_url) as socket:
        await socket.send('{"type": "reboot"}')
        notice = await told(socket, "notice")
        assert notice["kind"] == "error"
        with pytest.raises(websockets.ConnectionClosed) as ended:
            for _ in range(20):
                await socket.send(b"\x00garbage")
                await told(socket, "notice")
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 1008
        async with socket_of(clips_url) as large:
            await large.send("x" * (MAX_COMMAND_BYTES + 1))
            with pytest.raises(websockets.ConnectionClosed):
                await told(large, "never")
        async with socket_of(clips_url) as flood:
            with pytest.raises(websockets.ConnectionClosed):
                for _ in range(200):
                    await say(flood, type="load", clients=1)
                await told(flood, "never")
        await told(bystander, "tick", lambda tick: tick["viewers"] == 1 and tick["refused"] == 9)


async def test_a_page_opened_a_hundred_times_is_refused_in_time(clips_url: str) -> None:
    async with anyio.create_task_group() as tasks:
        codes: list[int] = []

        async def open_page() -> None:
            async with socket_of(clips_url) as socket:
                try:
                    await told(socket, "tick", lambda tick: tick["viewers"] == 0)
                except websockets.ConnectionClosed as error:
                    codes.append(error.rcvd.code if error.rcvd else 0)

        for _ in range(studio.MAX_VIEWERS + 5):
            tasks.start_soon(open_page)
        async with asyncio.timeout(30):
            while len(codes) < 5:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert codes == [1013] * 5


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
async def test_the_address_that_is_told_leads_here_from_elsewhere(host: str) -> None:
    with socketlib.create_server(("127.0.0.1", 0)) as listener:
        told = _url(LiveOptions(host=host, token="t"), listener)
    address = urlsplit(told)
    assert address.hostname not in ("0.0.0.0", "::", "", None)
    assert address.port
    assert told.endswith("/?token=t")
