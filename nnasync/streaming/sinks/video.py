"""A recording of pictures, with what is drawn on them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from nnasync._core.arguments import check_function, check_kind, check_options, or_none
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.streaming.item import Item
from nnasync.streaming.sinks.file_sink import FileSink
from nnasync.streaming.sinks.timeline import Timeline, Times, check_times
from nnasync.streaming.sources.media import Scaler, import_av
from nnasync.streaming.sources.pictures import frame_of

_TICKS_HZ = 90_000
_GROUP = 30


def video_recorder(
    path: str | os.PathLike[str],
    *,
    draw: Callable[[Item], Array] | None = None,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    times: Times = "media",
) -> FileSink:
    """A sink that writes a video file (.mp4, .mkv ...) which plays as its source did.

    Items are uint8 arrays [height, width] or [height, width, 3] (RGB), or images of RGB_888
    (`Pool.image`); where they are not, `draw` makes such a picture of an item, for example with
    boxes. It is called on a thread. Pictures of another size than the first are scaled to it.
    `codec` and its `options` are FFmpeg's.

    Times in the file are those in the media (`Item.media_ns`), so that a file that was read fast
    plays at its own pace; or of capture, where items have no other or `times` is "captured", which
    is right for several sources in one recording. Raises InvalidArgument for other `times`.
    """
    check_times(times)
    or_none(check_function, "draw", draw, "a function of an Item that returns a picture")
    check_kind("codec", codec, str, "a str")
    or_none(check_options, "options", options)
    picture = draw or _data_of

    def begin(name: str, first: Item) -> _Video:
        return _Video(name, first, picture, codec, options, Timeline(first, times))

    return FileSink(path, begin)


def _data_of(item: Item) -> Array:
    data: Array = item.data
    return data


class _Video:
    def __init__(
        self,
        path: str,
        first: Item,
        picture: Callable[[Item], Array],
        codec: str,
        options: dict[str, str] | None,
        timeline: Timeline,
    ) -> None:
        av = import_av()
        frame = frame_of(picture(first))
        self._path = path
        self._picture = picture
        self._timeline = timeline
        self._last_pts = -1
        self._has_begun = False
        with _told(path):
            self._container = av.open(path, "w")
        try:
            with _told(path):
                stream = self._container.add_stream(
                    codec, rate=30, options=options or _options(codec)
                )
                if stream.type != "video":
                    raise ValueError(f"{codec} is no codec for pictures")
        except (OSError, InvalidArgument):
            self._container.close()
            raise
        # Codecs want even sizes for colors of half the size.
        stream.width, stream.height = max(frame.width & ~1, 2), max(frame.height & ~1, 2)
        stream.pix_fmt = _pixels_for(stream.codec_context.codec)
        stream.time_base = stream.codec_context.time_base = Fraction(1, _TICKS_HZ)
        self._stream = stream
        self._scaler = Scaler()

    def write(self, item: Item) -> None:
        """Encode a picture."""
        given = frame_of(self._picture(item))
        stream = self._stream
        pts = self._timeline.position_ns(item) * _TICKS_HZ // 1_000_000_000
        with _told(self._path):
            frame = self._scaler.scaled(given, stream.width, stream.height, stream.pix_fmt)
            self._last_pts = frame.pts = max(pts, self._last_pts + 1)
            frame.time_base = Fraction(1, _TICKS_HZ)
            self._mux(frame)

    def close(self) -> None:
        """Encode what the codec still has, and write the index of the file."""
        with _told(self._path):
            try:
                # A codec that refused the first picture is not open: flushing it ends the process.
                if self._has_begun:
                    self._mux(None)
            finally:
                self._container.close()

    def _mux(self, frame: Any) -> None:
        packets = self._stream.encode(frame)
        self._has_begun = True
        for packet in packets:
            self._container.mux(packet)


def _options(codec: str) -> dict[str, str]:
    """Returns codec options that encode quickly, with a key picture every second for seeking."""
    return {"preset": "veryfast", "g": str(_GROUP)} if codec == "libx264" else {}


def _pixels_for(codec: Any) -> str:
    """Returns the pixel format that a codec names first, since that needs no further options."""
    formats = codec.video_formats
    name: str = formats[0].name if formats else "yuv420p"
    return name


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """Turns errors of FFmpeg that are none of the system into InvalidArgument."""
    try:
        yield
    except (import_av().FFmpegError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise OSError(error.errno, error.strerror, path) from error
        raise InvalidArgument(f"cannot write video to {path}: {error}") from error
