"""Video: frames of a file or of a camera, decoded by PyAV off the event loop."""

from __future__ import annotations

import os
from collections.abc import Iterator

from nnasync._core.arguments import path_of
from nnasync.hal import Array
from nnasync.streaming.blocking_reader import PATIENCE_S, Reading
from nnasync.streaming.item import Pace
from nnasync.streaming.lookahead import LookAhead
from nnasync.streaming.pacing import Pacer
from nnasync.streaming.redaction import redacted
from nnasync.streaming.sources.media import opened
from nnasync.streaming.sources.pictures import Pictures, PixelFormat, Size, check_pixels
from nnasync.streaming.sources.source import RecordedSource


def video_file(
    path: str | os.PathLike[str],
    *,
    size: Size | None = None,
    pixels: PixelFormat = "gray",
    pace: Pace = "real-time",
    start_ns: int | None = None,
    open_timeout_s: float | None = PATIENCE_S,
    read_timeout_s: float | None = PATIENCE_S,
) -> RecordedSource:
    """The frames of a video file at their presentation times, the first one at 0.

    Each is a uint8 array [height, width] for "gray" or [height, width, 3] for "rgb24", scaled to
    `size` (height, width) if given. For "image" it is an RGB image in shared memory (`Pool.image`)
    that nobody has to close; for "decoded" it is PyAV's frame as it is, which
    `nnasync.vision.prepare` scales and converts in one pass. Reading a file that is missing, broken
    or without video raises InvalidArgument. What cannot be opened within `open_timeout_s`, or sends
    nothing for `read_timeout_s` (a pipe whose writer waits, an address that is silent), raises
    DeviceUnavailable; None waits for ever. Cancelling ends a wait at once in any case.
    """
    check_pixels(pixels, size)
    name = path_of("path", path)
    shown = redacted(name)
    reading = Reading(shown, open_timeout_s=open_timeout_s, read_timeout_s=read_timeout_s)
    ahead = LookAhead(lambda: _file_frames(name, reading, size, pixels), batch=8, reading=reading)
    return RecordedSource(ahead, Pacer(pace, start_ns=start_ns))


def _file_frames(
    path: str, reading: Reading, size: Size | None, pixels: PixelFormat
) -> Iterator[tuple[int, Array]]:
    with opened(path, "video", reading) as (container, stream):
        pictures = Pictures(size, pixels)
        first_s: float | None = None
        period_s = float(1 / stream.average_rate) if stream.average_rate else 0.0
        for index, frame in enumerate(container.decode(stream)):
            at_s = index * period_s if frame.time is None else frame.time
            first_s = at_s if first_s is None else first_s
            yield round((at_s - first_s) * 1e9), pictures.picture(frame)
