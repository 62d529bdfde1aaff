"""The demo's two streams: what they read, how they are staged, and what is made of the answers."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from nnasync import Deadline, now_ns
from nnasync.cli import demo_data
from nnasync.cli.recognition import NONE, DigitVote, Word, WordDecoder
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Struct
from nnasync.streaming import (
    Graph,
    Item,
    ItemSource,
    LiveSource,
    Outcome,
    Policy,
    RecordedSource,
    StageCall,
    StreamStatistics,
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
    """Returns the contents of a clip; raises InvalidArgument for a missing or broken file."""
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


class _Recognition:
    """A network at work on a stream: when it began which item, and what became of each."""

    def __init__(self, network: StageCall) -> None:
        self._network = network
        self._started: dict[int, int] = {}
        self._answers: dict[int, Array] = {}
        self.marks: list[StreamMark] = []

    async def recognize(self, item: Item) -> None:
        """Have an item answered; the network gets what is left of its time."""
        self._started[item.index] = now_ns()
        deadline = None if item.deadline_ns is None else Deadline(item.deadline_ns)
        scores = await self._network(self.prepare(item.data), deadline=deadline)
        self._answers[item.index] = scores.reshape(-1)

    def settled(self, item: Item, outcome: Outcome) -> None:
        """Note what became of an item, and take its answer if it was in time."""
        started_ns = self._started.pop(item.index, 0)
        self.marks.append(StreamMark(item.index, item.captured_ns, started_ns, now_ns(), outcome))
        scores = self._answers.pop(item.index, None)
        if outcome is Outcome.COMPLETED and scores is not None:
            self.answered(item.index, scores)

    def prepare(self, data: Array) -> Array:
        """The network's input for an item's data."""
        raise NotImplementedError

    def answered(self, index: int, scores: Array) -> None:
        """Take the scores of an item."""
        raise NotImplementedError


class Hearing(_Recognition):
    """Words in the answers to the hops."""

    def __init__(self, network: StageCall) -> None:
        super().__init__(network)
        self.words: list[Word] = []
        self.heard_ns: list[int] = []
        self._decoder = WordDecoder()

    def prepare(self, data: Array) -> Array:
        """A hop as a row."""
        return data.reshape(1, HOP)

    def answered(self, index: int, scores: Array) -> None:
        """Feed the decoder."""
        word = self._decoder.feed(index, scores)
        if word is not None:
            self.words.append(word)
            self.heard_ns.append(now_ns())


class Seeing(_Recognition):
    """Digits in the answers to the frames."""

    def __init__(self, network: StageCall) -> None:
        super().__init__(network)
        self.labels: dict[int, int] = {}
        self.shown = NONE
        self.score = 0.0
        self.frame: Array | None = None
        self._vote = DigitVote()

    def prepare(self, data: Array) -> Array:
        """A frame as an image; it is also kept for the view."""
        self.frame = data
        return image(data)

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


class Streams:
    """The graph of the demo, and what was recognized in its two streams.

    Hops are answered in order, each due one hop after its last sample. Of the frames the newest
    wins, and each is due one frame period after it came.
    """

    def __init__(self, hear: StageCall, see: StageCall) -> None:
        self.hearing, self.seeing = Hearing(hear), Seeing(see)
        self.graph = Graph(on_settled=self._settled)

    def feed_sound(self, sound: AsyncIterable[Item]) -> None:
        """Declare the part of the graph that hears."""
        hops = self.graph.source(sound, name="microphone", budget_ns=HOP_NS, policy=Policy.OLDEST)
        hops.sink(self.hearing.recognize, name="hear", capacity=4)

    def feed_pictures(self, pictures: AsyncIterable[Item]) -> None:
        """Declare the part of the graph that sees."""
        frames = self.graph.source(pictures, name="camera", budget_ns=FRAME_NS)
        frames.sink(self.seeing.recognize, name="see")

    def audio(self) -> StreamStatistics:
        """Returns the account of the hops."""
        return self._statistics("microphone", "hear")

    def video(self) -> StreamStatistics:
        """Returns the account of the frames."""
        return self._statistics("camera", "see")

    def _statistics(self, *stages: str) -> StreamStatistics:
        is_declared = bool(self.graph.account().stages)
        return self.graph.statistics(*stages) if is_declared else StreamStatistics()

    def _settled(self, stage: str, item: Item, outcome: Outcome) -> None:
        if outcome is not Outcome.PASSED:
            recognition = self.hearing if stage in ("microphone", "hear") else self.seeing
            recognition.settled(item, outcome)


def audio_source(folder: Path | None, device: str | None) -> LiveSource | RecordedSource:
    """The clip, or a microphone."""
    if device is not None:
        return microphone(device, rate_hz=SAMPLE_RATE_HZ, hop=HOP, retry=None)
    path = data_file(folder, "words.flac")
    return audio_file(path, rate_hz=SAMPLE_RATE_HZ, hop=HOP)


def video_source(folder: Path | None, device: int | None) -> LiveSource | RecordedSource:
    """The clip, or a camera."""
    if device is not None:
        return camera(device, size=IMAGE, rate_hz=FRAME_RATE_HZ, retry=None)
    return video_file(data_file(folder, "digits.mp4"), size=IMAGE)


async def limited(source: ItemSource, seconds: float, since_ns: int) -> AsyncIterator[Item]:
    """The items of the first `seconds` of a source, but for what a device had before `since_ns`."""
    async for item in source:
        if item.media_ns > seconds * 1e9:
            return
        if item.captured_ns >= since_ns:
            yield item
