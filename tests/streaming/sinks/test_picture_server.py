"""Pictures over HTTP, asked for as a server of ASGI does it."""

from __future__ import annotations

import io
import threading
from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest

from nnasync.errors import InvalidArgument
from nnasync.streaming import Item, PictureServer
from nnasync.streaming.sinks import picture_server
from tests.rigs import until

av: Any = pytest.importorskip("av", reason="the extra media is not installed")

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks", "stall_guard")]


class Viewer:
    """A request, and what is answered; `reads` lets answers through."""

    def __init__(self, method: str = "GET") -> None:
        self.scope = {"type": "http", "method": method}
        self.status = 0
        self.parts: list[bytes] = []
        self.reads = anyio.Event()
        self.reads.set()
        self.left = anyio.Event()

    async def receive(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        await self.reads.wait()
        self.parts.append(message["body"])

    @property
    def pictures(self) -> list[int]:
        """The brightness of each picture."""
        found = []
        for part in self.parts:
            if b"image/jpeg" in part:
                with av.open(io.BytesIO(part.split(b"\r\n\r\n", 1)[1]), format="mjpeg") as file:
                    found.append(int(next(file.decode(video=0)).to_ndarray(format="gray").mean()))
        return found


def item(brightness: int) -> Item:
    return Item(0, 0, np.full((48, 64), brightness, np.uint8))


def seen_by_all(viewers: list[Viewer], count: int) -> bool:
    return all(len(viewer.parts) == count for viewer in viewers)


async def test_viewers_see_what_comes() -> None:
    server, viewers = PictureServer(), [Viewer(), Viewer()]
    await server(item(1))  # Nobody looks: it is not even encoded.
    async with anyio.create_task_group() as tasks:
        for viewer in viewers:
            tasks.start_soon(server.app, viewer.scope, viewer.receive, viewer.send)
        await until(lambda: server.viewing == 2)
        for count in (1, 2):
            await server(item(50 * count))
            await until(partial(seen_by_all, viewers, count))
        await server.aclose()
    for viewer in viewers:
        assert viewer.status == 200
        assert np.abs(np.subtract(viewer.pictures, [50, 100])).max() < 4
        assert viewer.parts[-1] == b"--next--\r\n"
    assert server.viewing == 0


async def test_a_viewer_that_does_not_read_misses_pictures_and_delays_nobody() -> None:
    server, slow = PictureServer(), Viewer()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.app, slow.scope, slow.receive, slow.send)
        await until(lambda: server.viewing == 1)
        slow.reads = anyio.Event()
        for brightness in range(50, 150, 10):
            await server(item(brightness))
        slow.reads.set()
        await until(lambda: len(slow.pictures) == 2)
        slow.left.set()
    assert len(slow.pictures) == 2
    assert abs(slow.pictures[1] - 140) < 4
    assert server.viewing == 0


async def test_a_viewer_that_never_reads_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_server, "SEND_TIMEOUT_S", 0.01)
    server, stuck = PictureServer(viewers=1), Viewer()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.app, stuck.scope, stuck.receive, stuck.send)
            await until(lambda: server.viewing == 1)
            stuck.reads = anyio.Event()
            await server(item(50))
    assert (server.viewing, stuck.parts) == (0, [])


async def test_a_question_for_the_headers_alone_is_answered_at_once() -> None:
    server, curious = PictureServer(), Viewer("HEAD")
    with anyio.fail_after(10):
        await server.app(curious.scope, curious.receive, curious.send)
    assert (curious.status, curious.parts, server.viewing) == (200, [b""], 0)


async def test_one_too_many_is_refused() -> None:
    server, first, second, poster = PictureServer(viewers=1), Viewer(), Viewer(), Viewer("POST")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.app, first.scope, first.receive, first.send)
        await until(lambda: server.viewing == 1)
        await server.app(second.scope, second.receive, second.send)
        await server.app(poster.scope, poster.receive, poster.send)
        first.left.set()
    assert (first.status, second.status, poster.status) == (200, 503, 405)
    assert server.refused == 1


async def test_what_is_no_picture() -> None:
    server, viewer = PictureServer(), Viewer()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.app, viewer.scope, viewer.receive, viewer.send)
        await until(lambda: server.viewing == 1)
        with pytest.raises(InvalidArgument, match="a picture is a uint8 array"):
            await server(Item(0, 0, "text"))
        viewer.left.set()


async def test_pictures_of_several_streams_are_encoded_one_at_a_time() -> None:
    at_once, most, second_came = 0, 0, threading.Event()

    def drawn(item: Item) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if item.index == 1:
            second_came.set()
        second_came.wait(0.02)
        at_once -= 1
        return item.data

    server, viewer = PictureServer(draw=drawn), Viewer()
    picture = np.full((48, 64), 1, np.uint8)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.app, viewer.scope, viewer.receive, viewer.send)
        await until(lambda: server.viewing == 1)
        async with anyio.create_task_group() as streams:
            streams.start_soon(server, Item(0, 0, picture))
            streams.start_soon(server, Item(1, 0, picture))
        viewer.left.set()
    assert most == 1


@pytest.mark.one_loop("nothing is awaited")
@pytest.mark.parametrize("options", [{"viewers": 0}, {"quality": 1}, {"quality": 32}])
async def test_numbers_out_of_range(options: Any) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        PictureServer(**options)
