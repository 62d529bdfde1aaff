"""What `--source` names: recordings with and without sound, and what is none of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from nnasync.cli.live import sources
from nnasync.errors import DeviceUnavailable, InvalidArgument
from nnasync.streaming import Item, ItemSource
from tests.rigs import until
from tests.streaming.network import servers
from tests.streaming.network.servers import Server

pytestmark = pytest.mark.anyio


def quiet(text: str) -> None:
    pass


async def first(source: ItemSource | None) -> Item:
    """The first item of a source, which is closed behind it."""
    assert source is not None
    try:
        return await anext(aiter(source))
    finally:
        await source.aclose()


async def test_a_recording_without_sound_gives_pictures(toy_data: Path) -> None:
    async with sources.named(str(toy_data / "digits.mp4"), None, quiet) as found:
        item = await first(found.video)
        assert item.data.shape == (64, 64, 3)
        with pytest.raises(InvalidArgument, match=r"digits.mp4 has no audio"):
            await first(found.audio)


async def test_sound_alone_is_played(toy_data: Path) -> None:
    async with sources.named(str(toy_data / "words.flac"), None, quiet) as found:
        item = await first(found.audio)
        assert item.data.shape == (160,)
        with pytest.raises(InvalidArgument, match=r"words.flac has no video"):
            await first(found.video)


async def test_the_clips_have_a_wall_around_them(toy_data: Path) -> None:
    async with sources.of_clips(toy_data) as found:
        assert found.video is not None
        item = await anext(aiter(found.video))
        assert item.data.shape == (128, 128)
        assert len(np.unique(item.data[:32])) == 1
        await found.video.aclose()


async def test_a_camera_in_the_network_is_opened_once_when_it_is_read(
    no_leaks: None, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    with Server("http", servers.motion_jpeg(), path="/camera.mjpg") as server:
        async with sources.named(server.url, None, told.append) as found:
            assert found.video is not None
            item = await anext(aiter(found.video))
            assert item.data.shape[2] == 3
            with pytest.raises(InvalidArgument, match="has no audio stream"):
                await first(found.audio)
            await found.video.aclose()
        assert len(server._lines) == 1
    assert told[0] == "the source is connected"


@pytest.mark.parametrize(("name", "path"), [("97", "/dev/video97"), ("/dev/v4l/x", "/dev/v4l/x")])
async def test_a_camera_of_the_server_by_number_or_path(name: str, path: str) -> None:
    told: list[str] = []
    async with sources.named(name, None, told.append) as found:
        assert found.audio is None
        with pytest.raises(DeviceUnavailable, match=path):
            await first(found.video)
        await until(lambda: bool(told))
    assert path in told[0]


@pytest.mark.one_loop("nothing is awaited")
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no memory of the system")
async def test_a_recording_in_the_memory_of_the_system_is_no_camera() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", suffix=".mp4") as file:
        assert not sources.is_camera(file.name)
    assert sources.is_camera(file.name)  # Cameras may be away.


async def test_an_address_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is no address"):
        async with sources.named("://nothing", None, quiet):
            raise AssertionError("it was opened")


@pytest.mark.one_loop("nothing is awaited")
async def test_what_is_none_of_these_is_told() -> None:
    sources.check("demo")
    sources.check("rtsp://camera.local/stream")
    sources.check("0")
    sources.check("/dev/v4l/by-id/usb-046d_C920-video-index0")
    with pytest.raises(InvalidArgument, match="corridor.mp4 is no file; --source takes 'demo'"):
        sources.check("corridor.mp4")
