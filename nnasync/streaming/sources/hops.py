"""Decoded sound as hops: mono float32 samples of one rate, whatever comes in.

The resampler keeps its state from packet to packet, so hops fit together without a click. Rate,
layout or sample format of what comes in may change in the middle; then a new resampler goes on.
Mono is the mean of the channels, so that nothing leaves the range from -1 to 1.

A resampler keeps the last samples of a packet back until the next one. In live sound each hop would
wait for those: packets of two hops each would always give their second one a packet too late. So
the first live packet gets as many samples of silence before it as the resampler kept of it, and
hops end where packets end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnasync._core.arguments import check_whole
from nnasync.hal import Array
from nnasync.streaming.sources.media import import_av

_GAP_HOPS = 2
"""A hole in the sound that is longer than so many hops, and 50 ms, begins a new hop behind it."""

_GAP_NS = 50_000_000
_HIGHEST_HZ = 10_000_000


def check_hop(rate_hz: int, hop: int) -> None:
    """Raise InvalidArgument for numbers that make no hops."""
    check_whole("rate_hz", rate_hz, 1, _HIGHEST_HZ)
    check_whole("hop", hop, 1, _HIGHEST_HZ)


class Hops:
    """Cuts the sound of one stream into hops of `hop` samples at `rate_hz`."""

    def __init__(self, rate_hz: int, hop: int) -> None:
        check_hop(rate_hz, hop)
        self._rate_hz = rate_hz
        self._hop = hop
        self._last_ns = -1
        self.gaps = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """Begins anew: what comes next does not continue what came before, and has later times."""
        self._shape: tuple[object, ...] | None = None
        self._resampler: Any = None
        self._rest = np.empty(0, np.float32)
        self._end_ns: int | None = None

    def cut(self, frame: Any, end_ns: int) -> list[tuple[int, Array]]:
        """Returns the hops that a frame of PyAV completes, each with the time of its last sample.

        `end_ns` is when the last sample of the frame was captured. Samples before a hole in time
        that do not fill a hop are given up.
        """
        length_ns = frame.samples * 1_000_000_000 // frame.sample_rate
        if self._end_ns is not None and self._is_gap(end_ns - length_ns - self._end_ns):
            self.gaps += 1
            self._rest = np.empty(0, np.float32)
        is_first = self._end_ns is None
        self._end_ns = end_ns
        hops = self._whole(self._ahead(frame) if is_first else self._resampled(frame))
        at_ns = end_ns - self._ns(self._rest.size + len(hops) * self._hop)
        timed = []
        for index, hop in enumerate(hops, 1):
            # Frames may overlap where a sender's clock is quicker than ours, or where a sender
            # begins a new connection with what it had kept.
            self._last_ns = max(at_ns + self._ns(index * self._hop), self._last_ns + 1)
            timed.append((self._last_ns, hop))
        return timed

    def add(self, frame: Any) -> list[Array]:
        """The hops that a frame of PyAV completes."""
        return self._whole(self._resampled(frame))

    def _whole(self, parts: list[Array]) -> list[Array]:
        """Returns the hops that these samples complete, and keeps the rest."""
        samples = np.concatenate([self._rest, *parts])
        whole = samples.size // self._hop * self._hop
        self._rest = samples[whole:]
        return [
            np.ascontiguousarray(samples[start : start + self._hop])
            for start in range(0, whole, self._hop)
        ]

    def finish(self) -> list[Array]:
        """Returns what is left at the end, with the last hop filled with zeros."""
        parts = [] if self._resampler is None else self._drained()
        samples = np.concatenate([self._rest, *parts])
        self._rest = np.empty(0, np.float32)
        padded = np.pad(samples, (0, -samples.size % self._hop))
        return list(padded.reshape(-1, self._hop))

    def _ahead(self, frame: Any) -> list[Array]:
        """Returns a resampled frame, behind as much silence as the resampler keeps back of it."""
        parts = self._resampled(frame)
        kept = frame.samples * self._rate_hz // frame.sample_rate - sum(map(len, parts))
        return [np.zeros(max(0, kept), np.float32), *parts]

    def _is_gap(self, hole_ns: int) -> bool:
        return hole_ns > max(_GAP_NS, self._ns(_GAP_HOPS * self._hop))

    def _resampled(self, frame: Any) -> list[Array]:
        shape = (frame.sample_rate, frame.layout.name, frame.format.name)
        parts = []
        if shape != self._shape:
            if self._resampler is not None:
                parts = self._drained()
            self._resampler = import_av().AudioResampler(
                format="fltp", layout=frame.layout.name, rate=self._rate_hz
            )
            self._shape = shape
        # Times are kept apart: the resampler would fill holes, and refuses times that go back.
        frame.pts = None
        return parts + _mono(self._resampler.resample(frame))

    def _drained(self) -> list[Array]:
        return _mono(self._resampler.resample(None))

    def _ns(self, samples: int) -> int:
        return samples * 1_000_000_000 // self._rate_hz


def _mono(frames: list[Any]) -> list[Array]:
    """Returns the samples of frames that have one plane a channel, mixed to mono."""
    return [frame.to_ndarray().mean(axis=0, dtype=np.float32) for frame in frames if frame]
