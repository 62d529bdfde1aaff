"""Plays the demo: two streams and a load on one runtime, for a while or until it is interrupted."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread
import numpy as np

from nnasync import Net, Runtime, load, now_ns, open_runtime
from nnasync.cli.demo.load import LowLoad
from nnasync.cli.demo.recorder import DemoJob, DemoPiece, DemoRecorder
from nnasync.cli.demo.streams import (
    HOP,
    IMAGE,
    StreamMark,
    Streams,
    audio_source,
    data_file,
    image,
    limited,
    video_source,
)
from nnasync.cli.interruption import interruptible
from nnasync.cli.recognition import Word
from nnasync.errors import NNError
from nnasync.hal import Array, Model, Priority, Struct
from nnasync.machine import Busy, CpuMeter
from nnasync.streaming import StreamStatistics

NETWORKS = {
    Priority.HIGH: "words",
    Priority.MEDIUM: "digits",
    Priority.LOW: "digits_large",
}
_WARM_UP_RUNS = 5


class DemoOptions(Struct):
    """What the demo plays; devices are None for the clips."""

    seconds: float = 60.0
    alone_seconds: float = 3.0
    camera: int | None = None
    microphone: str | None = None
    low_clients: int = 2
    data: Path | None = None


class DemoStatus(Struct):
    """What a view shows while the demo plays."""

    elapsed_s: float
    seconds: float
    words: tuple[Word, ...]
    digit: int
    score: float
    frame: Array | None
    audio: StreamStatistics
    video: StreamStatistics
    busy: Busy
    low_hz: float
    low_alone_hz: float


class DemoView(Protocol):
    """Where the demo shows itself; called in a thread, one call at a time."""

    @property
    def period_s(self) -> float:
        """Time between two statuses."""

    def note(self, text: str) -> None:
        """Show one line."""

    def show(self, status: DemoStatus) -> None:
        """Show where the demo is."""


class Recording(Struct):
    """All that is known of a run when it has ended; times on the monotonic clock."""

    started_ns: int
    ended_ns: int
    exit_code: int
    audio: StreamStatistics
    video: StreamStatistics
    audio_alone: StreamStatistics
    """Of the sound with nothing beside it, before; empty where there is no load to compare with."""
    hops: tuple[StreamMark, ...]
    frames: tuple[StreamMark, ...]
    words: tuple[Word, ...]
    labels: dict[int, int]
    pieces: tuple[DemoPiece, ...]
    jobs: tuple[DemoJob, ...]
    networks: dict[int, str]
    low_alone_hz: float
    low_hz: float
    busy: Busy
    error: str = ""
    """Why it ended before its time, where a source failed."""


class _Run:
    """The state of one run."""

    def __init__(self, options: DemoOptions, low: LowLoad, words: Net, digits: Net) -> None:
        self.options = options
        self.low = low
        self._networks = (words, digits)
        self.streams = Streams(words, digits)
        self.low_alone_hz = 0.0
        self.audio_alone = StreamStatistics()
        self.meter = CpuMeter()
        self.busy = Busy(0.0, 0.0, 1)
        self.started_ns = self.ended_ns = now_ns()
        self._low_before = 0
        self.low_hz = 0.0
        self.error = ""

    async def play(self, view: DemoView) -> None:
        """Measure sound and load alone, then play both streams beside the load to their end."""
        options = self.options
        if options.low_clients:
            await _note(view, f"the sound alone, for {options.alone_seconds:g} s ...")
            await self._play_sound_alone()
            await _note(view, f"the LOW load alone, for {options.alone_seconds:g} s ...")
            self.low_alone_hz = await self.low.rate_hz(options.alone_seconds)
        words, digits = self._networks
        async with AsyncExitStack() as stack:
            hear, see = [await stack.enter_async_context(net.burst()) for net in (words, digits)]
            tasks = await stack.enter_async_context(anyio.create_task_group())
            tasks.start_soon(self.low.run)
            self.streams = Streams(hear, see)
            tasks.start_soon(self._watch, view)
            try:
                await self._play_streams(self.streams)
            except* NNError as failed:
                self.error = "; ".join(" ".join(str(each).split()) for each in _leaves(failed))
            finally:
                self._stop()
                tasks.cancel_scope.cancel()

    async def _play_sound_alone(self) -> None:
        options, (words, digits) = self.options, self._networks
        try:
            async with (
                audio_source(options.data, options.microphone) as sound,
                words.burst() as hear,
            ):
                streams = Streams(hear, digits)
                await sound.ready()
                started_ns = now_ns()
                sound.start(started_ns)
                streams.feed_sound(limited(sound, options.alone_seconds, started_ns))
                await streams.graph.run()
                self.audio_alone = streams.audio()
        except* NNError:
            pass  # The source fails again beside the load, and what it failed with is told then.

    async def _play_streams(self, streams: Streams) -> None:
        options = self.options
        async with (
            audio_source(options.data, options.microphone) as sound,
            video_source(options.data, options.camera) as pictures,
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sound.ready)
                tasks.start_soon(pictures.ready)
            self._begin()
            sound.start(self.started_ns)
            pictures.start(self.started_ns)
            streams.feed_sound(limited(sound, options.seconds, self.started_ns))
            streams.feed_pictures(limited(pictures, options.seconds, self.started_ns))
            await streams.graph.run()

    def _begin(self) -> None:
        self.started_ns = self.ended_ns = now_ns()
        self._low_before = self.low.answered
        self.meter.restart()

    def _stop(self) -> None:
        self._refresh()
        self.ended_ns = now_ns()

    def _refresh(self) -> None:
        elapsed_ns = max(now_ns() - self.started_ns, 1)
        self.low_hz = (self.low.answered - self._low_before) * 1e9 / elapsed_ns
        self.busy = self.meter.read()

    async def _watch(self, view: DemoView) -> None:
        while True:
            await anyio.sleep(view.period_s)
            self._refresh()
            await anyio.to_thread.run_sync(view.show, self.status())

    def status(self) -> DemoStatus:
        """Returns the state of the run for a view."""
        return DemoStatus(
            elapsed_s=max(now_ns() - self.started_ns, 0) / 1e9,
            seconds=self.options.seconds,
            words=tuple(self.streams.hearing.words[-10:]),
            digit=self.streams.seeing.shown,
            score=self.streams.seeing.score,
            frame=self.streams.seeing.frame,
            audio=self.streams.audio(),
            video=self.streams.video(),
            busy=self.busy,
            low_hz=self.low_hz,
            low_alone_hz=self.low_alone_hz,
        )


async def play(options: DemoOptions, view: DemoView) -> Recording:
    """Play the demo and tell what happened; SIGINT and SIGTERM end it early.

    A device that is not there raises DeviceUnavailable before anything else; a source that fails
    later ends the demo, and `Recording.error` says why.
    """
    await _try_devices(options)
    recorder = DemoRecorder()
    async with open_runtime(instruments=[recorder]) as runtime:
        await _note(view, "compiling the networks ...")
        nets = {priority: await _compile(runtime, options, priority) for priority in NETWORKS}
        noise = np.random.default_rng(0).random((8, 1, *IMAGE, 1), np.float32)
        low = LowLoad(nets[Priority.LOW], list(noise), options.low_clients)
        run = _Run(options, low, nets[Priority.HIGH], nets[Priority.MEDIUM])
        async with interruptible() as interruption:
            for _ in range(_WARM_UP_RUNS):
                await nets[Priority.HIGH](np.zeros((1, HOP), np.float32))
                await nets[Priority.MEDIUM](image(np.zeros(IMAGE, np.uint8)))
            with _calm_collector():
                await run.play(view)
    return Recording(
        started_ns=run.started_ns,
        ended_ns=run.ended_ns,
        exit_code=interruption.exit_code or int(bool(run.error)),
        error=run.error,
        audio=run.streams.audio(),
        video=run.streams.video(),
        audio_alone=run.audio_alone,
        hops=tuple(run.streams.hearing.marks),
        frames=tuple(run.streams.seeing.marks),
        words=tuple(run.streams.hearing.words),
        labels=run.streams.seeing.labels,
        pieces=tuple(recorder.pieces),
        jobs=tuple(recorder.jobs),
        networks={int(priority): net.model.name for priority, net in nets.items()},
        low_alone_hz=run.low_alone_hz,
        low_hz=run.low_hz,
        busy=run.busy,
    )


async def _try_devices(options: DemoOptions) -> None:
    """Have each device that is asked for deliver once, and give it back."""
    if options.camera is not None:
        async with video_source(options.data, options.camera) as pictures:
            await pictures.ready()
    if options.microphone is not None:
        async with audio_source(options.data, options.microphone) as sound:
            await sound.ready()


async def _compile(runtime: Runtime, options: DemoOptions, priority: Priority) -> Net:
    path = data_file(options.data, f"{NETWORKS[priority]}.nnm")
    model: Model = await anyio.to_thread.run_sync(load, path)
    return await runtime.compile(model, priority=priority)


def _leaves(group: BaseExceptionGroup[NNError]) -> Iterator[NNError]:
    """The errors in a group and in its groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _note(view: DemoView, text: str) -> None:
    await anyio.to_thread.run_sync(view.note, text)


@contextmanager
def _calm_collector() -> Iterator[None]:
    """Take what is loaded out of the garbage collector's sight, so that its pauses stay short."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
