"""What a session plays: the demo's clips or a file, over and over, or a browser's devices."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from nnasync import now_ns
from nnasync.cli.demo.streams import FRAME_NS, HOP, HOP_NS, IMAGE, SAMPLE_RATE_HZ, data_file
from nnasync.errors import InvalidArgument
from nnasync.streaming import Item, ItemSource, RecordedSource, audio_file, video_file, webrtc

CLIPS = "demo"


class Sources:
    """The two streams of a session; None for one that is not there."""

    def __init__(self, video: ItemSource | None, audio: ItemSource | None) -> None:
        self.video = video
        self.audio = audio


class Repeated:
    """A recording that begins again at its end; its items are numbered on, at their own times."""

    def __init__(self, make: Callable[[], RecordedSource], period_ns: int) -> None:
        """`period_ns` lies between the last item of a round and the first of the next."""
        self._make = make
        self._period_ns = period_ns
        self._source: RecordedSource | None = None
        self._start_ns = 0
        self._before_ns = 0
        self._index = 0
        self._position_ns = 0

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        """The next item; raises StopAsyncIteration where there is none in a whole round."""
        is_new = self._source is None
        source = self._source or self._begin()
        try:
            item = await source.__anext__()
        except StopAsyncIteration:
            await self.aclose()
            if is_new:
                raise
            self._before_ns = self._position_ns + self._period_ns
            return await self.__anext__()
        self._position_ns = self._before_ns + item.media_ns
        number, self._index = self._index, self._index + 1
        return msgspec.structs.replace(item, index=number, media_ns=self._position_ns)

    async def aclose(self) -> None:
        """Close the round that is being read."""
        source, self._source = self._source, None
        if source is not None:
            await source.aclose()

    def _begin(self) -> RecordedSource:
        self._start_ns = self._start_ns or now_ns()
        self._source = self._make()
        self._source.start(self._start_ns + self._before_ns)
        return self._source


def clips(folder: Path | None) -> Sources:
    """The demo's clips; raises InvalidArgument where they are missing."""
    video, audio = data_file(folder, "digits.mp4"), data_file(folder, "words.flac")
    return Sources(
        Repeated(lambda: video_file(video, size=IMAGE), FRAME_NS),
        Repeated(lambda: audio_file(audio, rate_hz=SAMPLE_RATE_HZ, hop=HOP), HOP_NS),
    )


def opened(name: str, folder: Path | None) -> Sources:
    """What `--source` names; raises InvalidArgument where that is nothing."""
    if name == CLIPS:
        return clips(folder)
    if not os.path.isfile(name):
        raise InvalidArgument(f"{name} is no file; --source takes {CLIPS!r} or the path of a video")
    return Sources(Repeated(lambda: video_file(name, pixels="rgb24"), FRAME_NS), None)


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


@asynccontextmanager
async def of_clips(folder: Path | None) -> AsyncIterator[Sources]:
    """The demo's clips, for one page."""
    yield clips(folder)
