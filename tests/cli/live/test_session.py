"""What becomes of a session when one of its two sources fails, or both do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import msgspec
import numpy as np
import pytest

from nnasync import now_ns, vision
from nnasync.cli.live.link import StreamSettings
from nnasync.cli.live.networks import Networks
from nnasync.cli.live.session import Session
from nnasync.cli.live.sources import Sources
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Priority
from nnasync.streaming import Item, ItemSource

pytestmark = pytest.mark.anyio


class Played:
    """A source of items that ends as a test asks it to."""

    def __init__(self, data: Array, count: int, error: Exception | None = None) -> None:
        self._data, self._count, self._error = data, count, error
        self._index = 0
        self.is_closed = False

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        await anyio.lowlevel.checkpoint()
        if self._index >= self._count:
            raise self._error or StopAsyncIteration
        self._index += 1
        return Item(self._index, now_ns(), self._data)

    async def aclose(self) -> None:
        self.is_closed = True


class EmptyHanded:
    """Networks that find nothing, but answer."""

    killed_ns: int | None = None

    async def detector(self, picture: Array, **options: Any) -> vision.Boxes:
        return vision.Boxes.of()

    @property
    def words(self) -> EmptyHanded:
        return self

    @asynccontextmanager
    async def burst(self) -> AsyncIterator[Any]:
        async def scores(hop: Array, **options: Any) -> Array:
            return np.zeros((1, 12), np.float32)

        yield scores


class Listener:
    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def tell(self, message: str | bytes, *, key: str = "") -> None:
        self.told.append(msgspec.json.decode(message))


def session_of(video: ItemSource | None, audio: ItemSource | None) -> tuple[Session, Listener]:
    listener = Listener()
    settings = StreamSettings(Priority.MEDIUM, 60_000_000_000)
    session = Session(
        Sources(video, audio),
        cast(Networks, EmptyHanded()),
        [],
        {"video": settings, "audio": settings},
        listener,
        shows_pictures=False,
    )
    return session, listener


def pictures(count: int, error: Exception | None = None) -> Played:
    return Played(np.zeros((8, 8), np.uint8), count, error)


def sound(count: int, error: Exception | None = None) -> Played:
    return Played(np.zeros(160, np.float32), count, error)


async def test_what_has_no_sound_is_seen() -> None:
    video, audio = pictures(3), sound(0, InvalidArgument("clip.mp4 has no audio stream"))
    session, listener = session_of(video, audio)
    with anyio.fail_after(20):
        await session.run()
    assert session.tick()["video"].submitted == 3
    assert any(each["type"] == "seen" for each in listener.told)
    told = [each["text"] for each in listener.told if each["type"] == "notice"]
    assert told == ["audio is over, the rest goes on: clip.mp4 has no audio stream"]
    assert video.is_closed
    assert audio.is_closed


async def test_what_has_neither_is_an_error() -> None:
    session, _ = session_of(
        pictures(0, InvalidArgument("no video")), sound(0, InvalidArgument("no audio"))
    )
    with pytest.raises(InvalidArgument, match="no video"), anyio.fail_after(20):
        await session.run()


async def test_a_camera_alone_that_fails_is_an_error() -> None:
    session, _ = session_of(pictures(2, InvalidArgument("unplugged")), None)
    with pytest.raises(InvalidArgument, match="unplugged"), anyio.fail_after(20):
        await session.run()
