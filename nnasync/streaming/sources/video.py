"""Video: frames of a file or of a camera, decoded by PyAV off the event loop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal

from nnasync.clock import now_ns
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.streaming.item import Pace
from nnasync.streaming.lookahead import LookAhead
from nnasync.streaming.pacing import Pacer
from nnasync.streaming.sources.media import opened
from nnasync.streaming.sources.source import LiveSource, RecordedSource

__all__ = ["camera", "video_file"]

PixelFormat = Literal["gray", "rgb24"]
Size = tuple[int, int]


def video_file(
    path: str | os.PathLike[str],
    *,
    size: Size | None = None,
    pixels: PixelFormat = "gray",
    pace: Pace = "real-time",
    start_ns: int | None = None,
) -> RecordedSource:
    """The frames of a video file at their presentation times, the first one at 0.

    Each is a uint8 array [height, width] for "gray" or [height, width, 3] for "rgb24", scaled to
    `size` (height, width) if given. Reading a file that is missing, broken or without video raises
    InvalidArgument.
    """
    _check_pixels(pixels)
    ahead = LookAhead(lambda: _file_frames(os.fspath(path), size, pixels), batch=8)
    return RecordedSource(ahead, Pacer(pace, start_ns=start_ns))


def camera(
    index: int = 0,
    *,
    size: Size | None = None,
    pixels: PixelFormat = "gray",
    rate_hz: int = 30,
) -> LiveSource:
    """The frames of the camera /dev/video`index`, as `video_file` has them.

    Reading raises DeviceUnavailable where there is no such camera or it stops delivering.
    """
    _check_pixels(pixels)
    options = {"framerate": str(rate_hz)}
    return capture(f"/dev/video{index}", "v4l2", options, size=size, pixels=pixels)


def capture(
    name: str, format: str, options: dict[str, str], *, size: Size | None, pixels: PixelFormat
) -> LiveSource:
    """The frames of any capture device that FFmpeg knows."""
    return LiveSource(
        LookAhead(lambda: _device_frames(name, format, options, size, pixels), batch=1)
    )


def _check_pixels(pixels: str) -> None:
    if pixels not in ("gray", "rgb24"):
        raise InvalidArgument(f'pixels is {pixels!r}, it must be "gray" or "rgb24"')


def _file_frames(path: str, size: Size | None, pixels: str) -> Iterator[tuple[int, Array]]:
    with opened(path, "video") as (container, stream):
        first_s: float | None = None
        period_s = float(1 / stream.average_rate) if stream.average_rate else 0.0
        for index, frame in enumerate(container.decode(stream)):
            at_s = index * period_s if frame.time is None else frame.time
            first_s = at_s if first_s is None else first_s
            yield round((at_s - first_s) * 1e9), _pixels(frame, size, pixels)


def _device_frames(
    name: str, format: str, options: dict[str, str], size: Size | None, pixels: str
) -> Iterator[tuple[int, Array]]:
    with opened(name, "video", device=format, options=options, timeout=5.0) as (container, stream):
        for frame in container.decode(stream):
            yield now_ns(), _pixels(frame, size, pixels)


def _pixels(frame: Any, size: Size | None, pixels: str) -> Array:
    height, width = size or (frame.height, frame.width)
    array: Array = frame.to_ndarray(format=pixels, width=width, height=height)
    return array
