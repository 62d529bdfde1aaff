"""Cameras and microphones that are taken away while they are read, and come back.

There is no device here: PyAV opens recordings instead, which end as devices do that are unplugged.
"""

from __future__ import annotations

import errno
import io
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync.streaming
from nnasync._core.clock import now_ns
from nnasync.errors import DeviceUnavailable, InvalidArgument
from nnasync.streaming import (
    Backoff,
    Graph,
    Item,
    LiveSource,
    SourceEvent,
    blocking_reader,
    camera,
    microphone,
)
from tests.rigs import until
from tests.streaming.graph_rig import check

av: Any = pytest.importorskip("av", reason="the extra media is not installed")

from tests.streaming.network.servers import transport_stream  # noqa: E402  # It needs PyAV.

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks", "stall_guard")]
SOON = Backoff(first_s=0.01, longest_s=0.05)
HOUR_NS = 3600 * 10**9
CLIP: dict[str, Any] = {"count": 50, "sound": True}

Source = Callable[..., LiveSource]
each_kind = pytest.mark.parametrize("source_of", [camera, microphone])


@pytest.fixture(scope="module", autouse=True)
def encoded() -> None:
    """What devices deliver: encoded before there is a loop that this would hold."""
    transport_stream(**CLIP)


class Opening:
    """What becomes of one attempt to open a device and to read it, on the thread that does so.

    `packets` are delivered, with None for ever; then comes an error, or nothing any more.
    """

    def __init__(self, packets: int | None, then: int | None = None, *, opens: bool = True) -> None:
        self._packets = packets
        self._then = then
        self._opens = opens

    def open(self, device: Device, name: str) -> Any:
        if not self._opens:
            self.end(device, name)
        return Container(device, self, name)

    def deliver(self, device: Device, name: str, streams: list[Any]) -> Iterator[Any]:
        delivered = 0
        while self._packets is None or delivered < self._packets:
            # A device does not end as a recording does: it is played over and over.
            with av.open(io.BytesIO(transport_stream(**CLIP))) as recording:
                wanted = [recording.streams[stream.index] for stream in streams]
                for packet in recording.demux(wanted):
                    if packet.size and delivered != self._packets:
                        delivered += 1
                        yield packet
                        device.pause(0.002)
        self.end(device, name)

    def end(self, device: Device, name: str) -> None:
        if self._then is None:
            device.hang()
        else:
            av.error.err_check(-self._then, name)


class Container:
    """A container of PyAV, but for what it delivers."""

    def __init__(self, device: Device, opening: Opening, name: str) -> None:
        self._device, self._opening, self._name = device, opening, name
        self._recording = av.open(io.BytesIO(transport_stream(**CLIP)))
        self.streams = self._recording.streams
        self.format = self._recording.format
        self.duration = None

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *exception: object) -> None:
        self._recording.close()

    def demux(self, streams: list[Any]) -> Iterator[Any]:
        return self._opening.deliver(self._device, self._name, streams)


class Device:
    """Stands in for all devices; each attempt to open one is the next opening, and then the last.

    Use it as a context manager, which ends what hangs.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.openings: list[Opening] = []
        self.opened: list[tuple[object, object]] = []
        self.hanging = 0
        self._ends = threading.Semaphore(0)
        self._over = threading.Event()
        self._later_ns = 0
        self._av_open = av.open
        monkeypatch.setattr(av, "open", self._open)
        monkeypatch.setattr(blocking_reader, "now_ns", lambda: now_ns() + self._later_ns)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._ends.release(1000)

    def hang(self) -> None:
        """As a driver that never comes back; once it does, the device is gone."""
        self.hanging += 1
        self._ends.acquire()
        self.hanging -= 1
        av.error.err_check(-errno.ENODEV)

    def let_one_go(self) -> None:
        self._ends.release()

    def pause(self, seconds: float) -> None:
        self._over.wait(seconds)

    async def until_given_up(self, source: LiveSource, hanging: int = 1) -> None:
        """Wait until so many attempts hang, and let their time pass."""
        await until(lambda: self.hanging == hanging)
        self._later_ns += HOUR_NS
        keeper: Any = source._pulled._keeper  # type: ignore[attr-defined]  # No other way to its limits.
        keeper.look_after()

    def _open(self, source: Any, *arguments: Any, **options: Any) -> Any:
        if options.get("format") not in ("v4l2", "alsa"):
            return self._av_open(source, *arguments, **options)
        opening = self.openings[min(len(self.opened), len(self.openings) - 1)]
        self.opened.append((source, options["format"]))
        return opening.open(self, source)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    with Device(monkeypatch) as rig:
        yield rig


def is_rising(items: list[Item]) -> bool:
    times = [item.captured_ns for item in items]
    return times == sorted(set(times))


@each_kind
@pytest.mark.parametrize("error", [errno.ENODEV, errno.EIO])
async def test_a_device_that_is_taken_away_and_comes_back(
    source_of: Source, error: int, device: Device
) -> None:
    device.openings = [
        Opening(6, error),
        Opening(0, errno.ENOENT, opens=False),
        Opening(0, errno.EBUSY, opens=False),
        Opening(None),
    ]
    events: list[SourceEvent] = []
    seen: list[Item] = []
    graph = Graph()
    source = source_of(retry=SOON, on_event=events.append, uniform=lambda: 0.5)
    graph.source(source, name="device").sink(seen.append)
    async with graph:
        await until(lambda: sum(item.epoch == 1 for item in seen) > 3 and len(events) == 5)
    check(graph)
    account = graph.account().stages["device"]
    assert account.submitted == account.passed + account.dropped
    assert is_rising(seen)
    assert {item.epoch for item in seen} == {0, 1}
    assert [event.kind for event in events] == [
        "connected",
        "lost",
        "failed",
        "failed",
        "connected",
    ]
    assert [event.epoch for event in events] == [0, 0, 1, 1, 1]
    assert [event.retry_s for event in events[1:4]] == pytest.approx([0.0075, 0.015, 0.03])
    reasons = ["No such device" if error == errno.ENODEV else "Input/output error"]
    for event, reason in zip(events[1:], [*reasons, "No such file", "busy"], strict=False):
        assert reason in event.reason
    assert len(device.opened) == 4


@each_kind
async def test_a_device_that_says_nothing_any_more(source_of: Source, device: Device) -> None:
    device.openings = [Opening(6), Opening(0, opens=False), Opening(None)]
    events: list[SourceEvent] = []
    seen: list[Item] = []
    graph = Graph()
    source = source_of(retry=SOON, on_event=events.append)
    graph.source(source, name="device").sink(seen.append)
    async with graph:
        await device.until_given_up(source)
        await device.until_given_up(source, hanging=2)
        await until(lambda: any(item.epoch == 1 for item in seen) and len(events) == 4)
        # A thread that comes back late finds that another one has gone on, and adds nothing.
        device.let_one_go()
        device.let_one_go()
        await until(lambda: not device.hanging)
    check(graph)
    assert is_rising(seen)
    assert [event.kind for event in events] == ["connected", "lost", "failed", "connected"]
    assert "for 5 s (read_timeout_s)" in events[1].reason
    assert "within 5 s (open_timeout_s)" in events[2].reason


@pytest.mark.one_loop("threads that hang are counted in the thread that comes after them")
async def test_no_more_than_a_few_attempts_hang_at_once(device: Device) -> None:
    device.openings = [Opening(6), *[Opening(0, opens=False)] * 3, Opening(None)]
    events: list[SourceEvent] = []
    graph = Graph()
    source = camera(retry=SOON, on_event=events.append)
    graph.source(source).sink(lambda item: None)
    async with graph:
        for hanging in range(1, 5):
            await device.until_given_up(source, hanging)
        await until(lambda: any("have not come back" in event.reason for event in events))
        assert len(device.opened) == 4
        device.let_one_go()
        await until(lambda: events[-1].kind == "connected")
        assert len(device.opened) == 5


@each_kind
async def test_without_retry_it_is_an_error(source_of: Source, device: Device) -> None:
    device.openings = [Opening(6, errno.ENODEV)]
    async with source_of(retry=None) as source:
        with pytest.raises(DeviceUnavailable, match="cannot read .*: No such device"):
            while True:
                await anext(source)
    assert len(device.opened) == 1


@each_kind
async def test_one_that_never_was_there_is_told_at_once(source_of: Source, device: Device) -> None:
    device.openings = [Opening(0, errno.ENOENT, opens=False), Opening(None)]
    async with source_of(retry=SOON) as source:
        with pytest.raises(DeviceUnavailable, match="No such file"):
            await anext(source)
    assert len(device.opened) == 1


async def test_what_is_away_for_good_ends_when_the_attempts_do(device: Device) -> None:
    device.openings = [Opening(6, errno.ENODEV), Opening(0, errno.ENOENT, opens=False)]
    seen: list[Item] = []
    other: list[Item] = []
    graph = Graph()
    retry = Backoff(first_s=0.001, longest_s=0.002, attempts=3)
    graph.source(camera(retry=retry), name="camera", on_error="stream").sink(seen.append)
    graph.source(every(), name="other").sink(other.append)
    async with graph:
        await until(lambda: "camera" in graph.errors())
        count = len(other)
        await until(lambda: len(other) > count)
    check(graph)
    assert "after 3 attempts" in str(graph.errors()["camera"])


async def every() -> Any:
    for index in range(10**9):
        yield Item(index, now_ns(), index)
        await anyio.lowlevel.checkpoint()


@pytest.mark.one_loop("the same openings with the same seed; the loop has no part in them")
@each_kind
@pytest.mark.parametrize("seed", range(3))
async def test_a_loose_contact(source_of: Source, seed: int, device: Device) -> None:
    """However often it goes and comes, every item is in one bucket and times rise."""
    numbers = random.Random(seed)
    errors = [errno.ENODEV, errno.EIO, errno.EBUSY, errno.EACCES, errno.ETIMEDOUT, errno.EPROTO]
    device.openings = [
        Opening(6, errno.ENODEV),
        *(
            Opening(numbers.randrange(9), numbers.choice(errors), opens=numbers.random() < 0.7)
            for _ in range(12)
        ),
        Opening(None),
    ]
    seen: list[Item] = []
    graph = Graph()
    retry = Backoff(first_s=0.001, longest_s=0.002)
    source = source_of(retry=retry, uniform=numbers.random)
    graph.source(source, name="device").sink(seen.append)
    async with graph:
        await until(lambda: len(device.opened) == 14)
        count = len(seen)
        await until(lambda: len(seen) > count + 3)
    check(graph)
    account = graph.account().stages["device"]
    assert account.submitted == account.passed + account.dropped
    assert is_rising(seen)
    assert [item.epoch for item in seen] == sorted(item.epoch for item in seen)


@pytest.mark.one_loop("what PyAV is asked for is the same on all")
async def test_a_camera_has_one_descriptor_and_any_path(device: Device) -> None:
    """A pipe is opened before FFmpeg sees it; a camera must not be, or it keeps its number."""
    device.openings = [Opening(None)]
    for name in (3, "/dev/null"):
        async with camera(name) as source:
            await anext(source)
    async with microphone("hw:CARD=C920") as source:
        await anext(source)
    assert device.opened == [
        ("/dev/video3", "v4l2"),
        ("/dev/null", "v4l2"),
        ("hw:CARD=C920", "alsa"),
    ]


@pytest.mark.one_loop("what devices deliver is converted on their thread")
async def test_pictures_and_hops_are_as_asked_for(device: Device) -> None:
    device.openings = [Opening(None)]
    async with camera(size=(16, 24), pixels="rgb24") as source:
        assert [(await anext(source)).data.shape for _ in range(3)] == [(16, 24, 3)] * 3
    async with microphone(rate_hz=8000, hop=80) as source:
        items = [await anext(source) for _ in range(30)]
    assert all(item.data.shape == (80,) for item in items)
    assert all(item.media_ns == item.captured_ns - items[0].captured_ns for item in items)
    assert 0.4 < np.abs(np.concatenate([item.data for item in items])).max() < 0.6


@pytest.mark.one_loop("nothing is read")
async def test_wrong_arguments() -> None:
    with pytest.raises(InvalidArgument, match="gray"):
        camera(pixels="cmyk")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="hop"):
        microphone(hop=0)


@pytest.mark.one_loop("a name is looked up")
async def test_the_name_of_before_warns() -> None:
    with pytest.warns(DeprecationWarning, match="NetworkEvent is called SourceEvent now") as caught:
        assert nnasync.streaming.NetworkEvent is SourceEvent  # type: ignore[attr-defined]  # Types do not know it.
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="Nothing"):
        _ = nnasync.streaming.Nothing  # type: ignore[attr-defined]  # It is not there.
