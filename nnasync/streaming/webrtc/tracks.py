"""The tracks that a WebRTC peer sends: a pump for each, and what sources pull from it.

aiortc puts what it decodes into a queue without a bound. So each track has a task that does nothing
but empty it into a `Mailbox`, which keeps the newest.
"""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread

from nnasync._core.clock import now_ns
from nnasync.errors import DeviceUnavailable
from nnasync.hal import Array
from nnasync.streaming.account import Outcome
from nnasync.streaming.sources.hops import Hops
from nnasync.streaming.sources.mailbox import Mailbox
from nnasync.streaming.sources.media import end_of
from nnasync.streaming.sources.media_clock import MediaClock
from nnasync.streaming.sources.pictures import Pictures

_FRAMES_KEPT = {"video": 2, "audio": 50}
"""Of sound, what 20 ms a packet make of a second."""

_PACKET_NS = 20_000_000


class IncomingTrack:
    """Keeps what one medium of the peer delivers, whether its track has begun yet or not."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.mailbox: Mailbox[tuple[int, Any]] = Mailbox(_FRAMES_KEPT[kind])
        self.is_wanted = False
        self.received = 0

    async def pump(self, track: Any, most_pixels: int) -> DeviceUnavailable | None:
        """Empties the queue of aiortc's track to its end.

        Returns the error of too large a picture.
        """
        clock = MediaClock()
        try:
            while True:
                frame = await track.recv()
                self.received += 1
                if self.kind == "video" and frame.width * frame.height > most_pixels:
                    if self.is_wanted:
                        self.mailbox.lose(Outcome.FAILED)
                    return DeviceUnavailable(
                        f"the peer sent a picture of {frame.width} x {frame.height} pixels, "
                        f"{most_pixels} are allowed (picture_pixels)"
                    )
                if self.is_wanted:
                    self.mailbox.put((clock.captured_ns(end_of(frame), now_ns()), frame))
        except Exception as error:
            # aiortc tells the end of a track by an exception of its own.
            is_end = type(error).__name__ == "MediaStreamError"
            self.mailbox.end(None if is_end else _lost(self.kind, error))
        return None


def _lost(kind: str, error: Exception) -> DeviceUnavailable:
    lost = DeviceUnavailable(f"the peer's {kind} broke off: {error!r}")
    lost.__cause__ = error
    return lost


class _Taken:
    """Pulls for a source what a track delivers."""

    def __init__(self, track: IncomingTrack, limit_s: float | None) -> None:
        self._track = track
        self._limit_s = limit_s
        track.is_wanted = True

    async def _frame(self) -> tuple[int, Any]:
        with anyio.move_on_after(self._limit_s):
            return await self._track.mailbox.take()
        raise DeviceUnavailable(
            f"no {self._track.kind} came from the peer for {self._limit_s:g} s (read_timeout_s)"
        )

    async def aclose(self) -> None:
        self._track.is_wanted = False
        self._track.mailbox.discard()


class FramesOf(_Taken):
    """Pulls the pictures of a track; only those that are taken are converted, on a thread."""

    def __init__(self, track: IncomingTrack, pictures: Pictures, limit_s: float | None) -> None:
        super().__init__(track, limit_s)
        self._pictures = pictures

    async def __anext__(self) -> tuple[int, Array]:
        captured_ns, frame = await self._frame()
        try:
            return captured_ns, await anyio.to_thread.run_sync(self._pictures.picture, frame)
        except BaseException as error:
            is_failure = isinstance(error, Exception)
            self._track.mailbox.lose(Outcome.FAILED if is_failure else Outcome.CANCELLED)
            raise


class HopsOf(_Taken):
    """Pulls the sound of a track as hops."""

    def __init__(self, track: IncomingTrack, rate_hz: int, hop: int, limit_s: float | None) -> None:
        hops = Hops(rate_hz, hop)
        super().__init__(track, limit_s)
        self._hops = hops
        self._cut: list[tuple[int, Array]] = []
        self._left = 0
        self._frame_ns = _PACKET_NS
        self._rate_hz = rate_hz
        self._hop = hop
        self._owed: dict[Outcome, int] = {}

    def take_losses(self) -> dict[Outcome, int]:
        """Returns how many hops were lost since this was asked last; the track counts frames."""
        lost = {}
        for outcome, frames in self._track.mailbox.take_losses().items():
            owed = self._owed.get(outcome, 0) + frames * self._frame_ns * self._rate_hz
            lost[outcome], self._owed[outcome] = divmod(owed, self._hop * 1_000_000_000)
        left, self._left = self._left, 0
        if left:
            lost[Outcome.DROPPED] = lost.get(Outcome.DROPPED, 0) + left
        return lost

    async def aclose(self) -> None:
        """Ends the pulling; what is left counts as lost."""
        await super().aclose()
        self._left += len(self._cut)
        self._cut.clear()

    async def __anext__(self) -> tuple[int, Array]:
        while not self._cut:
            end_ns, frame = await self._frame()
            self._frame_ns = frame.samples * 1_000_000_000 // frame.sample_rate
            self._cut = self._hops.cut(frame, end_ns)
        return self._cut.pop(0)
