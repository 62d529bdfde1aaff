"""A recording of sound, with silence where some is missing."""

from __future__ import annotations

import os
import wave

import numpy as np

from nnasync._core.arguments import check_number, check_whole
from nnasync.errors import InvalidArgument, ResourceExhaustedPersistent
from nnasync.hal import Array
from nnasync.streaming.item import Item
from nnasync.streaming.sinks.file_sink import FileSink
from nnasync.streaming.sinks.timeline import Timeline, Times, check_times

_GAP_S = 0.05
_FULL_SCALE = 32767
_MOST_SAMPLES = (2**32 - 256) // 2
"""A .wav file has its length in bytes as a number of 32 bits."""


def audio_recorder(
    path: str | os.PathLike[str],
    *,
    rate_hz: int = 16000,
    times: Times = "media",
    most_silence_s: float = 3600.0,
) -> FileSink:
    """A sink that writes hops to a .wav file of 16 bits; they are mono float32 from -1 to 1.

    Where more than 50 ms are missing between the times of hops there is silence, so that the
    recording has the length of what it records. `times` says which times, as for `video_recorder`.
    A silence longer than `most_silence_s` is cut to that, and what follows is earlier by as much. A
    hop beyond the 4 GiB that a .wav file can have fails with ResourceExhaustedPersistent. Raises
    InvalidArgument for a rate that is not positive, a negative silence, and other `times`.
    """
    check_times(times)
    check_whole("rate_hz", rate_hz, 1)
    check_number("most_silence_s", most_silence_s, 0)
    return FileSink(path, lambda name, first: _Wave(name, first, rate_hz, times, most_silence_s))


class _Wave:
    def __init__(
        self, path: str, first: Item, rate_hz: int, times: Times, most_silence_s: float
    ) -> None:
        self._timeline = Timeline(first, times)
        self._first_size = _samples(first).size
        self._rate_hz = rate_hz
        self._written = 0
        self._cut = 0
        self._most_silence = int(most_silence_s * rate_hz)
        self._file = wave.open(path, "wb")  # noqa: SIM115  # `close` closes it.
        self._file.setnchannels(1)
        self._file.setsampwidth(2)
        self._file.setframerate(rate_hz)

    def write(self, item: Item) -> None:
        """Write a hop, and silence before it where some is missing."""
        samples = _samples(item)
        missing = self._missing_before(item, samples.size)
        silence = min(missing, self._most_silence)
        if self._written + silence + samples.size > _MOST_SAMPLES:
            raise ResourceExhaustedPersistent(
                f"item {item.index} would make the file longer than 4 GiB, which .wav cannot be"
            )
        self._cut += missing - silence
        for begin in range(0, silence, self._rate_hz):
            self._add(np.zeros(min(silence - begin, self._rate_hz), np.float32))
        self._add(samples)

    def _missing_before(self, item: Item, size: int) -> int:
        """Returns how many samples are missing between the end of the file and a hop.

        It is 0 if they are few.
        """
        after_first = self._timeline.position_ns(item) * self._rate_hz // 1_000_000_000
        missing = self._first_size + after_first - size - self._written - self._cut
        return missing if missing > _GAP_S * self._rate_hz else 0

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
    if not np.isfinite(data).all():
        raise InvalidArgument(f"item {item.index} has samples that are NaN or infinite")
    return data
