"""What a session plays: clips, a file, a camera, a stream at an address, or a browser's devices.

A recording is played over and over. What has only one of picture and sound is not looked into
before: the source of the other raises InvalidArgument when it is read, and the session goes on.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from nnasync.cli.demo.streams import FRAME_NS, HOP, HOP_NS, IMAGE, SAMPLE_RATE_HZ, data_file
from nnasync.cli.live.repeated import Repeated
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.streaming import (
    ItemSource,
    SourceEvent,
    audio_file,
    camera,
    network,
    video_file,
    webrtc,
)

CLIPS = "demo"


class Sources:
    """The two streams of a session; None for one that is not there."""

    def __init__(self, video: ItemSource | None, audio: ItemSource | None) -> None:
        self.video = video
        self.audio = audio


def on_a_wall(picture: Array) -> Array:
    """A picture of the clips with as much around it as a camera would see: uint8 [128, 128].

    Its digits fill it, and the detector looks for what fills a part of a picture.
    """
    height, width = picture.shape
    gray = int(picture[[0, -1]].mean())
    return np.pad(picture, ((height // 2,) * 2, (width // 2,) * 2), constant_values=gray)


@asynccontextmanager
async def of_clips(folder: Path | None) -> AsyncIterator[Sources]:
    """The demo's clips; raises InvalidArgument where they are missing."""
    video, audio = data_file(folder, "digits.mp4"), data_file(folder, "words.flac")
    yield Sources(
        Repeated(lambda: video_file(video, size=IMAGE), FRAME_NS, on_a_wall),
        Repeated(lambda: audio_file(audio, rate_hz=SAMPLE_RATE_HZ, hop=HOP), HOP_NS),
    )


@asynccontextmanager
async def of_browser(offer: str, answer: Callable[[str], object]) -> AsyncIterator[Sources]:
    """The camera and the microphone that a page offers, or the one of the two that it has.

    `answer` is called with the server's side of the session. Raises InvalidArgument for an offer
    that cannot be answered, or of neither.
    """
    async with webrtc.accept(offer) as peer:
        has_video, has_audio = (f"\nm={kind} " in offer for kind in ("video", "audio"))
        sources = Sources(
            peer.video() if has_video else None,
            peer.audio(rate_hz=SAMPLE_RATE_HZ, hop=HOP) if has_audio else None,
        )
        answer(peer.answer)
        yield sources


def check(name: str) -> None:
    """Raises InvalidArgument for what `named` does not know."""
    is_known = name == CLIPS or is_camera(name) or "://" in name or os.path.isfile(name)
    if not is_known:
        raise InvalidArgument(
            f"{name} is no file; --source takes {CLIPS!r}, the path of a video, an address such as "
            "rtsp://camera.local/stream, or the number or the path of a camera"
        )


def is_camera(name: str) -> bool:
    """Returns whether a name is one of a camera of this machine, even if that is unplugged."""
    return name.isdecimal() or (name.startswith("/dev/") and not os.path.isfile(name))


@asynccontextmanager
async def named(
    name: str, folder: Path | None, tell: Callable[[str], object]
) -> AsyncIterator[Sources]:
    """Yields the sources for `--source`: "demo", a camera's number or path, an address or a file.

    Nothing is opened before it is read. `tell` is called with a sentence when a connection is made
    or lost, and when a camera is. Raises InvalidArgument for what is no address.
    """
    if name == CLIPS:
        async with of_clips(folder) as sources:
            yield sources
    elif is_camera(name):
        yield Sources(_of_camera(name, tell), None)
    elif "://" in name:
        yield _of_address(name, tell)
    else:
        yield _of_file(name)


def _of_file(name: str) -> Sources:
    return Sources(
        Repeated(lambda: video_file(name, pixels="rgb24"), FRAME_NS),
        Repeated(lambda: audio_file(name, rate_hz=SAMPLE_RATE_HZ, hop=HOP), HOP_NS),
    )


def _of_camera(name: str, tell: Callable[[str], object]) -> ItemSource:
    device = int(name) if name.isdecimal() else name
    return camera(device, pixels="rgb24", on_event=lambda event: tell(_told(event)))


def _of_address(name: str, tell: Callable[[str], object]) -> Sources:
    stream = network(name, on_event=lambda event: tell(_told(event)))
    return Sources(stream.video(pixels="rgb24"), stream.audio(rate_hz=SAMPLE_RATE_HZ, hop=HOP))


def _told(event: SourceEvent) -> str:
    if event.kind == "connected":
        return "the source is connected"
    again = "" if event.retry_s is None else f"; trying again in {event.retry_s:.1f} s"
    return f"{event.reason}{again}"
