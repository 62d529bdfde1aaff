"""What becomes of the packets of one medium: decoded, converted, and kept for a source.

A source that wants fewer pictures than the sender makes has the others sorted out as early as the
codec permits: where pictures that stand for themselves come often enough (all of MJPEG, the key
pictures of other codecs), they are chosen before they are decoded, and no other is decoded at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

from nnasync._core.clock import now_ns
from nnasync.streaming.account import Outcome
from nnasync.streaming.rate_limit import RateLimit
from nnasync.streaming.sources.hops import Hops
from nnasync.streaming.sources.mailbox import Mailbox
from nnasync.streaming.sources.media import end_of, import_av
from nnasync.streaming.sources.media_clock import MediaClock
from nnasync.streaming.sources.pictures import Pictures, PixelFormat, Size

Kept = tuple[int, Any, int]
"""When it was captured, the data, and the number of the connection that it came by."""

_PICTURES_KEPT = 4
_SOUND_KEPT_NS = 2_000_000_000


class Timing:
    """Maps times of one medium of one connection.

    Uses arrival times where the sender's are useless.
    """

    def __init__(self, epoch: int, clock: MediaClock, *, has_times: bool) -> None:
        self.epoch = epoch
        self.clock = clock
        self._has_times = has_times

    def captured_ns(self, frame: Any) -> int:
        """Returns when a frame of PyAV was captured, on the monotonic clock."""
        return self.clock.captured_ns(end_of(frame) if self._has_times else None, now_ns())

    def packet_ns(self, packet: Any) -> int:
        """Returns a time by which packets of this connection can be compared."""
        if not self._has_times or packet.dts is None:
            return now_ns()
        at_ns: int = round(packet.dts * packet.time_base * 1_000_000_000)
        return at_ns


class Outlet(Protocol):
    """Takes the packets of one medium from whichever connection there is."""

    kind: str
    mailbox: Mailbox[Kept]

    def limit_rate(self, rate_hz: float) -> None:
        """Limits how many items a second are kept."""

    def begin(self, timing: Timing) -> None:
        """Notes that a connection begins, whose times `timing` maps."""

    def frames(self, packet: Any) -> Iterable[Any]:
        """Returns the frames of PyAV that a packet completes; raises what decoding raises."""

    def keep(self, captured_ns: int, frame: Any) -> None:
        """Converts a frame, and queues it for the source."""


class VideoOutlet:
    """Decodes and converts pictures, at most so many a second if there is a limit."""

    kind = "video"

    def __init__(self, size: Size | None, pixels: PixelFormat) -> None:
        self.mailbox: Mailbox[Kept] = Mailbox(_PICTURES_KEPT)
        self._pictures = Pictures(size, pixels)
        self._limit: RateLimit | None = None

    def limit_rate(self, rate_hz: float) -> None:
        """Keep at most so many a second; raises InvalidArgument for a rate that is not positive."""
        limit = RateLimit(rate_hz)
        if self._limit is None or self._limit.period_ns < limit.period_ns:
            self._limit = limit

    def begin(self, timing: Timing) -> None:
        """Forgets what was learned of the stream of the last connection."""
        self._timing = timing
        self._last_key_ns: int | None = None
        self._keys_suffice = False
        self._key_due_ns = -math.inf

    def frames(self, packet: Any) -> Iterable[Any]:
        """Returns the frames of a packet; none if no picture is due."""
        limit = self._limit
        if limit is not None and packet.size:
            self._watch_keys(packet, limit.period_ns)
            if self._keys_suffice:
                return self._key_picture(packet, limit.period_ns)
        frames: Iterable[Any] = packet.decode()
        return frames

    def keep(self, captured_ns: int, frame: Any) -> None:
        """Converts a picture, if it is due."""
        if self._limit is not None and not self._limit.takes(captured_ns):
            self.mailbox.lose(Outcome.FILTERED)
            return
        self.mailbox.put((captured_ns, self._pictures.picture(frame), self._timing.epoch))

    def _watch_keys(self, packet: Any, period_ns: float) -> None:
        """Learns whether key pictures come often enough to decode nothing else."""
        at_ns = self._timing.packet_ns(packet)
        last_ns = self._last_key_ns
        if packet.is_keyframe:
            if last_ns is not None:
                self._keys_suffice = 0 < at_ns - last_ns <= 1.05 * period_ns
            self._last_key_ns = at_ns
        elif last_ns is not None and at_ns - last_ns > 2 * period_ns:
            self._keys_suffice = False

    def _key_picture(self, packet: Any, period_ns: float) -> Iterable[Any]:
        """Decodes a key picture at once if it is due; else counts it as filtered."""
        at_ns = self._last_key_ns or 0
        has_jumped = at_ns < self._key_due_ns - 2 * period_ns
        if not packet.is_keyframe or (at_ns < self._key_due_ns and not has_jumped):
            self.mailbox.lose(Outcome.FILTERED)
            return ()
        self._key_due_ns = at_ns + 0.9 * period_ns
        codec = packet.stream.codec_context
        try:
            # Without those that follow, a decoder holds a picture back until it is told of the end.
            return [*codec.decode(packet), *codec.decode(None)]
        finally:
            codec.flush_buffers()


class AudioOutlet:
    """Cuts sound into hops, all of which are kept."""

    kind = "audio"

    def __init__(self, rate_hz: int, hop: int) -> None:
        self._hops = Hops(rate_hz, hop)
        import_av()
        kept = max(4, _SOUND_KEPT_NS * rate_hz // (hop * 1_000_000_000))
        self.mailbox: Mailbox[Kept] = Mailbox(kept)

    def limit_rate(self, rate_hz: float) -> None:
        """Ignores the limit, since hops are parts of one whole.

        A stage behind them filters them.
        """

    def begin(self, timing: Timing) -> None:
        """Drops the unfinished hop of the last connection: nothing continues it."""
        self._timing = timing
        self._hops.begin_anew()

    def frames(self, packet: Any) -> Iterable[Any]:
        """Returns the frames that a packet completes."""
        frames: Iterable[Any] = packet.decode()
        return frames

    def keep(self, captured_ns: int, frame: Any) -> None:
        """Cuts a frame into hops, and queues these for the source."""
        for at_ns, samples in self._hops.cut(frame, captured_ns):
            self.mailbox.put((at_ns, samples, self._timing.epoch))
