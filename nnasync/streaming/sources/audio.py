"""Audio: hops of a file or of a microphone, as mono float32 samples between -1 and 1.

A hop is captured when its last sample is: hop k of n samples at (k + 1) n / rate.
"""

from __future__ import annotations

import os
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nnasync._core.arguments import path_of
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.streaming.blocking_reader import PATIENCE_S, Reading, is_pipe
from nnasync.streaming.item import Pace
from nnasync.streaming.lookahead import LookAhead
from nnasync.streaming.pacing import Pacer
from nnasync.streaming.redaction import redacted
from nnasync.streaming.sources.hops import Hops, check_hop
from nnasync.streaming.sources.media import opened
from nnasync.streaming.sources.source import RecordedSource


def audio_file(
    path: str | os.PathLike[str],
    *,
    rate_hz: int = 16000,
    hop: int = 160,
    pace: Pace = "real-time",
    start_ns: int | None = None,
    open_timeout_s: float | None = PATIENCE_S,
    read_timeout_s: float | None = PATIENCE_S,
) -> RecordedSource:
    """The hops of `hop` samples of an audio file, mixed to mono; the last one is filled with zeros.

    A .wav file with PCM samples of the rate `rate_hz` needs only the standard library; everything
    else is read, and resampled where necessary, by PyAV. Reading what is missing or broken raises
    InvalidArgument. What cannot be opened within `open_timeout_s`, or sends nothing for
    `read_timeout_s` (a pipe whose writer waits, an address that is silent), raises
    DeviceUnavailable; None waits for ever. Cancelling ends a wait at once in any case.
    """
    check_hop(rate_hz, hop)
    name = path_of("path", path)
    shown = redacted(name)
    reading = Reading(shown, open_timeout_s=open_timeout_s, read_timeout_s=read_timeout_s)
    is_wav = Path(name).suffix.lower() == ".wav" and "://" not in name
    read = _wav_hops if is_wav else _av_hops
    ahead = LookAhead(lambda: read(name, reading, rate_hz, hop), batch=16, reading=reading)
    return RecordedSource(ahead, Pacer(pace, start_ns=start_ns))


def _wav_hops(name: str, reading: Reading, rate_hz: int, hop: int) -> Iterator[tuple[int, Array]]:
    """Reads hops with the standard library where it can, else with PyAV; reads a pipe only once."""
    try:
        if is_pipe(name) or not _is_pcm(name, rate_hz):
            yield from _av_hops(name, reading, rate_hz, hop)
            return
        with wave.open(name, "rb") as file:
            index = 0
            while data := file.readframes(hop):
                index += 1
                samples = pcm_to_float(data, file.getsampwidth(), file.getnchannels())
                yield _position_ns(index, hop, rate_hz), _filled(samples, hop)
    except (wave.Error, EOFError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "it is cut off"
        raise InvalidArgument(f"cannot read audio from {name}: {reason}") from error


def _is_pcm(name: str, rate_hz: int) -> bool:
    """Returns whether the file holds plain PCM samples of this rate."""
    try:
        with wave.open(name, "rb") as file:
            return file.getframerate() == rate_hz
    except wave.Error:
        return False


def pcm_to_float(data: bytes, sample_bytes: int, channels: int) -> Array:
    """Converts little-endian PCM frames to mono float32; drops a frame that is cut off."""
    frame_bytes = sample_bytes * channels
    raw = np.frombuffer(data, np.uint8)[: len(data) // frame_bytes * frame_bytes]
    if sample_bytes == 1:
        samples = (raw.astype(np.float32) - 128.0) / 128.0
    else:
        wide = np.zeros((raw.size // sample_bytes, 4), np.uint8)
        wide[:, 4 - sample_bytes :] = raw.reshape(-1, sample_bytes)
        samples = wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
    mono: Array = samples.reshape(-1, channels).mean(axis=1, dtype=np.float32)
    return mono


def _av_hops(name: str, reading: Reading, rate_hz: int, hop: int) -> Iterator[tuple[int, Array]]:
    with opened(name, "audio", reading) as (container, stream):
        hops = Hops(rate_hz, hop)
        index = 0
        for found in _with_end(container.decode(stream), hops):
            for samples in found:
                index += 1
                yield _position_ns(index, hop, rate_hz), samples


def _with_end(frames: Iterator[Any], hops: Hops) -> Iterator[list[Array]]:
    for frame in frames:
        yield hops.add(frame)
    yield hops.finish()


def _position_ns(hops: int, hop: int, rate_hz: int) -> int:
    return hops * hop * 1_000_000_000 // rate_hz


def _filled(samples: Array, hop: int) -> Array:
    if samples.size == hop:
        return np.ascontiguousarray(samples)
    return np.pad(samples, (0, hop - samples.size)).astype(np.float32)
