"""The demo's two streams: what they read, how they are staged, and what is made of the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from nnasync import now_ns
from nnasync.cli import demo_data
from nnasync.cli.recognition import NONE, DigitVote, Word, WordDecoder
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Struct
from nnasync.streaming import (
    Item,
    ItemSource,
    LiveSource,
    Outcome,
    Policy,
    RecordedSource,
    Result,
    Stage,
    StageCall,
    audio_file,
    camera,
    microphone,
    video_file,
)

SAMPLE_RATE_HZ = 16000
HOP = 160
HOP_NS = HOP * 1_000_000_000 // SAMPLE_RATE_HZ
FRAME_RATE_HZ = 30
FRAME_NS = 1_000_000_000 // FRAME_RATE_HZ
IMAGE = (64, 64)

T = TypeVar("T")


def data_file(folder: Path | None, name: str) -> Path:
    """A file of the demo: from `folder` if given, else from the package.

    Raises InvalidArgument where it is missing.
    """
    if folder is None:
        try:
            return demo_data.path(name)
        except FileNotFoundError as error:
            raise InvalidArgument(str(error)) from error
    if not (folder / name).is_file():
        raise InvalidArgument(f"{folder} has no file {name}")
    return folder / name


def read_truth(folder: Path | None, name: str, kind: type[T]) -> T:
    """What is in a clip; raises InvalidArgument where the file is missing or broken."""
    path = data_file(folder, name)
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"{path}: {error}") from error


class StreamMark(Struct):
    """One item of a stream in the timeline; times on the monotonic clock, 0 if it never started."""

    index: int
    captured_ns: int
    started_ns: int
    finished_ns: int
    outcome: Outcome


class _Marks:
    """Keeps a mark of every item that a stage settles."""

    def __init__(self) -> None:
        self.marks: list[StreamMark] = []

    def settled(self, result: Result) -> None:
        """Note one item, and take its answer if it has one."""
        item = result.item
        self.marks.append(
            StreamMark(
                item.index,
                item.captured_ns,
                result.started_ns,
                result.finished_ns,
                result.outcome,
            )
        )
        if result.outcome is Outcome.COMPLETED:
            self.answered(item.index, result.value.reshape(-1))

    def answered(self, index: int, scores: Array) -> None:
        """Take the scores of an item."""
        raise NotImplementedError


class Hearing(_Marks):
    """Words in the answers to the hops."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[Word] = []
        self.heard_ns: list[int] = []
        self._decoder = WordDecoder()

    def answered(self, index: int, scores: Array) -> None:
        """Feed the decoder."""
        word = self._decoder.feed(index, scores)
        if word is not None:
            self.words.append(word)
            self.heard_ns.append(now_ns())


class Seeing(_Marks):
    """Digits in the answers to the frames."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: dict[int, int] = {}
        self.shown = NONE
        self.score = 0.0
        self.frame: Array | None = None
        self._vote = DigitVote()

    def prepare(self, frame: Array) -> Array:
        """The network's input for a frame; also kept for the view."""
        self.frame = frame
        return image(frame)

    def answered(self, index: int, scores: Array) -> None:
        """Note the frame's digit."""
        label = int(scores.argmax())
        self.labels[index] = label
        self.shown = self._vote.feed(label)
        self.score = float(scores[label])


def image(frame: Array) -> Array:
    """A gray frame [64, 64] of bytes as the networks take it: [1, 64, 64, 1] between 0 and 1."""
    scaled: Array = frame.reshape(1, *IMAGE, 1) * np.float32(1 / 255)
    return scaled


def audio_stage(call: StageCall, hearing: Hearing) -> Stage:
    """Hops in order, each due one hop after its last sample."""
    return Stage(
        call,
        policy=Policy.OLDEST,
        capacity=4,
        budget_ns=HOP_NS,
        prepare=lambda hop: hop.reshape(1, HOP),
        backlog=0,
        on_settled=hearing.settled,
    )


def video_stage(call: StageCall, seeing: Seeing) -> Stage:
    """The newest frame wins; each is due one frame period after it came."""
    return Stage(
        call,
        policy=Policy.NEWEST,
        capacity=1,
        budget_ns=FRAME_NS,
        prepare=seeing.prepare,
        backlog=0,
        on_settled=seeing.settled,
    )


def audio_source(folder: Path | None, device: str | None) -> LiveSource | RecordedSource:
    """The clip, or a microphone."""
    if device is not None:
        return microphone(device, rate_hz=SAMPLE_RATE_HZ, hop=HOP)
    path = data_file(folder, "words.flac")
    return audio_file(path, rate_hz=SAMPLE_RATE_HZ, hop=HOP)


def video_source(folder: Path | None, device: int | None) -> LiveSource | RecordedSource:
    """The clip, or a camera."""
    if device is not None:
        return camera(device, size=IMAGE, rate_hz=FRAME_RATE_HZ)
    return video_file(data_file(folder, "digits.mp4"), size=IMAGE)


async def limited(source: ItemSource, seconds: float, since_ns: int) -> AsyncIterator[Item]:
    """The items of the first `seconds` of a source, but for what a device had before `since_ns`."""
    async for item in source:
        if item.media_ns > seconds * 1e9:
            return
        if item.captured_ns >= since_ns:
            yield item
