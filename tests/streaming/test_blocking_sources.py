"""Sources that block: a pipe without a writer, a writer that stops, an address that is silent."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import av
import numpy as np
import pytest

from nnasync.errors import DeviceUnavailable, InvalidArgument
from nnasync.streaming import RecordedSource, Stage, audio_file, camera, microphone, video_file

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks", "stall_guard")]

Open = Callable[..., RecordedSource]
FILES: list[tuple[Open, str]] = [
    (video_file, "pipe.ts"),
    (audio_file, "pipe.flac"),
    (audio_file, "pipe.wav"),
]
each_file = pytest.mark.parametrize(
    ("source_of", "name"), FILES, ids=["video", "audio", "audio-wav"]
)
each_kind = pytest.mark.parametrize("source_of", [video_file, audio_file], ids=["video", "audio"])
SOON_S = 0.05


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a server that accepts and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def pipe(folder: Path, name: str) -> Path:
    path = folder / name
    os.mkfifo(path)
    return path


@pytest.fixture(scope="module")
def beginning(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What fits into a pipe of a recording with a video stream and a stream of sound."""
    path = tmp_path_factory.mktemp("media") / "whole.ts"
    with av.open(str(path), "w") as container:
        pictures: Any = container.add_stream("mpeg4", rate=30)
        pictures.width = pictures.height = 64
        pictures.pix_fmt = "yuv420p"
        sound: Any = container.add_stream("mp2", rate=16000, layout="mono")
        for index in range(60):
            gray = av.VideoFrame.from_ndarray(np.full((64, 64), index, np.uint8), format="gray")
            container.mux(pictures.encode(gray.reformat(format="yuv420p")))
            samples = np.zeros((1, 576), np.int16)
            part = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
            part.sample_rate = 16000
            container.mux(sound.encode(part))
        container.mux(pictures.encode(None))
        container.mux(sound.encode(None))
    return path.read_bytes()[:60_000]


@each_file
async def test_a_pipe_without_a_writer_can_be_cancelled(
    source_of: Open, name: str, tmp_path: Path
) -> None:
    path = pipe(tmp_path, name)
    with anyio.move_on_after(SOON_S) as scope:
        async with source_of(path, open_timeout_s=None, read_timeout_s=None) as source:
            await anext(source)
    assert scope.cancelled_caught


@each_file
async def test_a_pipe_without_a_writer_is_an_error_in_time(
    source_of: Open, name: str, tmp_path: Path
) -> None:
    path = pipe(tmp_path, name)
    async with source_of(path, open_timeout_s=SOON_S) as source:
        with pytest.raises(DeviceUnavailable, match=r"could not be opened within 0.05 s"):
            await anext(source)
        assert [item async for item in source] == []


@pytest.fixture
def stopped(tmp_path: Path, beginning: bytes) -> Iterator[Path]:
    """A pipe with the beginning of a recording, whose writer writes no more."""
    path = pipe(tmp_path, "pipe.ts")
    # For reading as well, so that it does not wait for a reader.
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, beginning)
    yield path
    os.close(writer)


@each_kind
async def test_a_writer_that_stops_in_the_middle(source_of: Open, stopped: Path) -> None:
    async with source_of(stopped, pace="fast", read_timeout_s=None) as source:
        await anext(source)
        with anyio.move_on_after(SOON_S) as scope:
            while True:
                await anext(source)
    assert scope.cancelled_caught


@each_kind
async def test_a_writer_that_stops_is_an_error_in_time(source_of: Open, stopped: Path) -> None:
    async with source_of(stopped, pace="fast", read_timeout_s=SOON_S) as source:
        with pytest.raises(DeviceUnavailable, match=r"nothing came from .*pipe.ts for 0.05 s"):
            while True:
                await anext(source)


@each_kind
async def test_a_writer_that_goes_ends_the_stream(
    source_of: Open, tmp_path: Path, beginning: bytes
) -> None:
    path = pipe(tmp_path, "pipe.ts")
    source = source_of(path, pace="fast")
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, beginning)
    async with source:
        await source.ready()
        os.close(writer)
        assert len([item async for item in source]) > 10


@each_kind
async def test_a_silent_address_can_be_cancelled(source_of: Open, silent: str) -> None:
    with anyio.move_on_after(SOON_S) as scope:
        async with source_of(silent, open_timeout_s=0.2) as source:
            await anext(source)
    assert scope.cancelled_caught


@each_kind
async def test_a_silent_address_is_an_error_in_time(source_of: Open, silent: str) -> None:
    async with source_of(silent, open_timeout_s=SOON_S) as source:
        with pytest.raises(DeviceUnavailable, match="open_timeout_s"):
            await anext(source)


@each_kind
async def test_an_address_that_falls_silent(source_of: Open, beginning: bytes) -> None:
    """Within the probing, too, which the timeouts of PyAV leave out."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        # One frame's worth, which is not enough to know the streams.
        for sent in (beginning, beginning[: 188 * 4]):
            async with (
                source_of(address, pace="fast", read_timeout_s=0.1) as source,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(answer, server, sent)
                with pytest.raises(DeviceUnavailable):
                    while True:
                        await anext(source)
                tasks.cancel_scope.cancel()


async def answer(server: socket.socket, data: bytes) -> None:
    """Send the data to whom connects, and then nothing, until cancelled."""
    server.setblocking(False)
    await anyio.wait_readable(server)
    peer, _ = server.accept()
    with peer:
        peer.sendall(data)
        await anyio.sleep_forever()


@each_kind
async def test_a_read_that_the_system_gives_up_is_told_without_a_limit(
    source_of: Open, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_up(*_arguments: object, **_options: object) -> None:
        raise av.error.TimeoutError(110, "Connection timed out", silent)

    monkeypatch.setattr(av, "open", give_up)
    async with source_of(silent, open_timeout_s=None) as source:
        with pytest.raises(InvalidArgument, match="Connection timed out"):
            await anext(source)
    async with source_of(silent, open_timeout_s=5) as source:
        with pytest.raises(DeviceUnavailable, match="within 5 s"):
            await anext(source)


async def test_a_stage_tells_of_its_silent_source(tmp_path: Path) -> None:
    path = pipe(tmp_path, "pipe.ts")

    async def call(data: Any, *, deadline: object = None) -> None:
        pytest.fail("a source that is silent has nothing to call this with")

    with pytest.raises(DeviceUnavailable, match=r"pipe\.ts"):
        async with Stage(call) as stage:
            stage.feed(video_file(path, open_timeout_s=SOON_S))
            await stage.drain()
    assert stage.account.submitted == 0


@pytest.mark.parametrize("limit_s", [0, -1, float("nan"), float("inf")])
async def test_limits_are_positive(limit_s: float) -> None:
    for make in (
        lambda: video_file("x.mp4", open_timeout_s=limit_s),
        lambda: audio_file("x.flac", read_timeout_s=limit_s),
        lambda: camera(0, open_timeout_s=limit_s),
        lambda: microphone(read_timeout_s=limit_s),
    ):
        with pytest.raises(InvalidArgument, match="timeout_s is .*, or None"):
            make()


PROGRAM = """
import asyncio, sys
import trio
from nnasync.streaming import audio_file, video_file

async def ends(loop, source_of, name):
    try:
        if loop == "trio":
            with trio.fail_after(0.05):
                await take(source_of, name)
        else:
            async with asyncio.timeout(0.05):
                await take(source_of, name)
    except (TimeoutError, trio.TooSlowError):
        print("cancelled")

async def take(source_of, name):
    async with source_of(name, open_timeout_s=None, read_timeout_s=None) as source:
        await anext(source)

loop, kind, name = sys.argv[1:]
source_of = {"video": video_file, "audio": audio_file}[kind]
if loop == "trio":
    trio.run(ends, loop, source_of, name)
elif loop == "nn":
    import nnasync
    nnasync.run(ends, loop, source_of, name)
else:
    asyncio.run(ends(loop, source_of, name))
"""


NEVER_COMES_BACK = """
import asyncio, os
from nnasync.streaming.lookahead import LookAhead

def frames():
    yield os.read(os.pipe()[0], 1)

async def main():
    ahead = LookAhead(frames)
    try:
        async with asyncio.timeout(0.05):
            await anext(ahead)
    except TimeoutError:
        print("cancelled")
    await ahead.aclose()

asyncio.run(main())
"""


class TestOnAsyncio:
    """What is of asyncio alone, or in processes that choose their loops themselves."""

    pytestmark = pytest.mark.one_loop

    async def test_a_timeout_of_asyncio(self, tmp_path: Path) -> None:
        path = pipe(tmp_path, "pipe.ts")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SOON_S):
                async with video_file(path, open_timeout_s=None) as source:
                    await anext(source)

    @pytest.mark.parametrize("loop", ["asyncio", "nn", "trio"])
    @pytest.mark.parametrize(("what", "kind"), [("pipe", "audio"), ("address", "video")])
    async def test_a_process_whose_source_blocks_ends(
        self, loop: str, kind: str, what: str, tmp_path: Path, silent: str
    ) -> None:
        name = silent if what == "address" else str(pipe(tmp_path, "pipe.ts"))
        run = await anyio.to_thread.run_sync(
            lambda: subprocess.run(
                [sys.executable, "-c", PROGRAM, loop, kind, name],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        )
        assert (run.returncode, run.stdout, run.stderr) == (0, "cancelled\n", "")

    async def test_a_process_ends_though_a_reader_never_comes_back(self) -> None:
        """As from a driver of a device that hangs: there is nothing that could stop it."""
        run = await anyio.to_thread.run_sync(
            lambda: subprocess.run(
                [sys.executable, "-c", NEVER_COMES_BACK],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        )
        assert (run.returncode, run.stdout, run.stderr) == (0, "cancelled\n", "")
