"""One connection to an address or a device: opened, read and decoded in a thread of its own.

Nobody can end a system call of another thread. So a connection that hangs is left to itself: it is
told to stop, what it still finds is thrown away, and its thread ends with its own time limits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nnasync._core.clock import now_ns
from nnasync.errors import DeviceUnavailable, InvalidArgument, NNError
from nnasync.hal import Struct
from nnasync.streaming.account import Outcome
from nnasync.streaming.blocking_reader import Reading
from nnasync.streaming.network.outlets import Outlet, Timing
from nnasync.streaming.sources.media import import_av, of_device, opened_container
from nnasync.streaming.sources.media_clock import MediaClock

logger = logging.getLogger(__name__)

_LOOK_S = 0.1
_UNTIMED = {"mpjpeg", "mjpeg", "h264", "hevc"}
"""Formats without times: FFmpeg makes some up, of a rate that it guesses."""

_MOST_PIXELS = 2**26
"""A picture that says it has more is broken, or meant to take all the memory."""

_WRAP_NS = {"mpegts": 2**33 * 1_000_000_000 // 90_000}
"""Where the times of a format begin anew."""

_PERMANENT = {
    "DecoderNotFoundError",
    "DemuxerNotFoundError",
    "HTTPClientError",
    "OptionNotFoundError",
    "ProtocolNotFoundError",
}


class Address(Struct, frozen=True):
    """Where to connect to and how; `name` is what may be shown of it: `redacted`.

    `is_played` says that it may be read faster than it plays. `format` is FFmpeg's name for
    devices of this kind, empty for what is in the network.
    """

    url: str
    name: str
    options: dict[str, str]
    is_played: bool
    open_timeout_s: float | None
    read_timeout_s: float | None
    format: str = ""

    def __repr__(self) -> str:
        return f"Address({self.name!r})"


class Connection:
    """A connection; the thread that runs it calls `opened` once, and `look` now and then."""

    def __init__(
        self,
        address: Address,
        epoch: int,
        outlets: Sequence[Outlet],
        *,
        opened: Callable[[Connection], object],
        look: Callable[[], object],
    ) -> None:
        self.epoch = epoch
        self.reading = Reading(
            address.name,
            open_timeout_s=address.open_timeout_s,
            read_timeout_s=address.read_timeout_s,
        )
        self.is_finite = False
        self._address = address
        self._outlets = outlets
        self._opened = opened
        self._look = look
        self._stopped = threading.Event()
        self._clocks: list[MediaClock] = []

    @property
    def mended(self) -> int:
        """Returns how many times of items had to be mended by the media clocks."""
        return sum(clock.mended for clock in self._clocks)

    def run(self) -> NNError | None:
        """Connect and read until the end, or the error that is returned."""
        try:
            self._read()
        except NNError as error:
            return error
        except Exception as error:
            logger.exception("reading %s failed", self._address.name)
            failure = DeviceUnavailable(f"reading {self._address.name} failed: {error!r}")
            failure.__cause__ = error
            return failure
        return None

    def leave(self) -> None:
        """Asks the connection to end; what it still reads is thrown away."""
        self.reading.stop()
        self._stopped.set()

    def _read(self) -> None:
        address, reading = self._address, self.reading
        reading.progressed()
        with opened_container(
            address.url,
            reading,
            device=address.format,
            options=address.options,
            failure=of_device if address.format else _failure,
        ) as container:
            outlets = self._begin(container)
            self.is_finite = address.is_played and (container.duration or 0) > 0
            reading.progressed(is_open=True)
            self._opened(self)
            streams = [container.streams[index] for index in outlets]
            for packet in container.demux(streams):
                self._look()
                if self._stopped.is_set():
                    return
                reading.progressed()
                outlet, timing = outlets[packet.stream.index]
                for frame in self._decoded(outlet, packet):
                    captured_ns = timing.captured_ns(frame)
                    if address.is_played and not self._wait_until(captured_ns):
                        return
                    outlet.keep(captured_ns, frame)

    def _begin(self, container: Any) -> dict[int, tuple[Outlet, Timing]]:
        """Returns which outlet takes which stream; raises InvalidArgument where one is missing.

        The source of an outlet for which there is none in the first connection ends with that
        error; in later ones it waits, while the others go on.
        """
        found, missing = {}, []
        for outlet in self._outlets:
            stream = next((s for s in container.streams if s.type == outlet.kind), None)
            if stream is None or stream.codec_context is None:
                lack = "" if stream is None else " whose codec is known"
                error = InvalidArgument(f"{self._address.name} has no {outlet.kind} stream{lack}")
                missing.append((outlet, error))
                continue
            codec = stream.codec_context
            codec.thread_count = 1
            codec.options = {"max_pixels": str(_MOST_PIXELS)}
            timing = self._timing(container)
            self._clocks.append(timing.clock)
            outlet.begin(timing)
            found[stream.index] = outlet, timing
        if not found:
            raise missing[0][1]
        if self.epoch == 0:
            for outlet, error in missing:
                outlet.mailbox.end(error)
        return found

    def _timing(self, container: Any) -> Timing:
        names = set(container.format.name.split(","))
        wrap_ns = max((_WRAP_NS.get(name, 0) for name in names), default=0)
        is_untimed = bool(names & _UNTIMED)
        clock = MediaClock(is_live=is_untimed or not self._address.is_played, wrap_ns=wrap_ns)
        return Timing(self.epoch, clock, has_times=not is_untimed)

    def _decoded(self, outlet: Outlet, packet: Any) -> Iterator[Any]:
        """The frames of a packet; one that is broken is counted, and the next may be good."""
        av = import_av()
        try:
            yield from outlet.frames(packet)
        except av.error.EOFError:
            return
        except av.FFmpegError:
            outlet.mailbox.lose(Outcome.FAILED)

    def _wait_until(self, due_ns: int) -> bool:
        """Waits until a picture that came ahead of its time is due; returns False when stopped."""
        while (left_ns := due_ns - now_ns()) > 0:
            if self._stopped.wait(min(left_ns / 1e9, _LOOK_S)):
                return False
            self.reading.progressed()
        return True


def _failure(message: str, cause: BaseException | None) -> NNError:
    """Returns InvalidArgument for what another attempt cannot mend, else DeviceUnavailable."""
    names = {kind.__name__ for kind in type(cause).__mro__}
    return (InvalidArgument if names & _PERMANENT else DeviceUnavailable)(message)
