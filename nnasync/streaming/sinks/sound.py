"""A recording of sound, with silence where some is missing."""

from __future__ import annotations

import os
import wave

import numpy as np

from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.streaming.item import Item
from nnasync.streaming.sinks.file_sink import FileSink
from nnasync.streaming.sinks.timeline import Timeline, Times, check_times

_GAP_S = 0.05
_FULL_SCALE = 32767


def audio_recorder(
    path: str | os.PathLike[str], *, rate_hz: int = 16000, times: Times = "media"
) -> FileSink:
    """A sink that writes hops to a .wav file of 16 bits; they are mono float32 from -1 to 1.

    Where more than 50 ms are missing between the times of hops there is silence, so that the
    recording has the length of what it records. `times` says which times, as for `video_recorder`.
    Raises InvalidArgument for a rate that is not positive, and for other `times`.
    """
    check_times(times)
    if rate_hz <= 0:
        raise InvalidArgument(f"rate_hz is {rate_hz}, it must be positive")
    return FileSink(path, lambda name, first: _Wave(name, first, rate_hz, times))


class _Wave:
    def __init__(self, path: str, first: Item, rate_hz: int, times: Times) -> None:
        self._timeline = Timeline(first, times)
        self._first_size = _samples(first).size
        self._rate_hz = rate_hz
        self._written = 0
        self._file = wave.open(path, "wb")  # noqa: SIM115  # `close` closes it.
        self._file.setnchannels(1)
        self._file.setsampwidth(2)
        self._file.setframerate(rate_hz)

    def write(self, item: Item) -> None:
        """Write a hop, and silence before it where some is missing."""
        samples = _samples(item)
        after_first = self._timeline.position_ns(item) * self._rate_hz // 1_000_000_000
        missing = self._first_size + after_first - samples.size - self._written
        if missing > _GAP_S * self._rate_hz:
            while missing > 0:
                part = min(missing, self._rate_hz)
                self._add(np.zeros(part, np.float32))
                missing -= part
        self._add(samples)

    def close(self) -> None:
        """Write the lengths at the beginning of the file."""
        self._file.close()

    def _add(self, samples: Array) -> None:
        pcm = np.rint(np.clip(samples, -1, 1) * _FULL_SCALE).astype("<i2")
        self._file.writeframes(pcm.tobytes())
        self._written += samples.size


def _samples(item: Item) -> Array:
    data = np.asarray(item.data)
    if data.ndim != 1 or data.dtype.kind != "f":
        raise InvalidArgument(
            f"item {item.index} is no hop: a float array [samples] is wanted, not "
            f"{data.dtype} {list(data.shape)}"
        )
    return data
