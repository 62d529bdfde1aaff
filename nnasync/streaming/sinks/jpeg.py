"""Pictures as JPEG files, encoded by PyAV."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from nnasync._core.arguments import check_whole
from nnasync.hal import Array
from nnasync.streaming.sources.media import import_av
from nnasync.streaming.sources.pictures import frame_of


class JpegWriter:
    """Encodes pictures of any size, one after the other; for one thread at a time.

    `quality` is FFmpeg's, from 2 (best) to 31. Raises InvalidArgument for another one.
    """

    def __init__(self, quality: int = 4) -> None:
        check_whole("quality", quality, 2, 31)
        self._quality = quality
        self._codec: Any = None
        self._count = 0

    def encode(self, picture: Array) -> bytes:
        """A uint8 array [height, width] or [height, width, 3] (RGB) as a file.

        Raises InvalidArgument for what is no picture.
        """
        frame = frame_of(picture).reformat(format="yuvj420p")
        codec = self._codec
        if codec is None or (codec.width, codec.height) != (frame.width, frame.height):
            codec = self._codec = self._codec_for(frame)
        frame.pts = self._count = self._count + 1
        return b"".join(bytes(packet) for packet in codec.encode(frame))

    def _codec_for(self, frame: Any) -> Any:
        codec = import_av().CodecContext.create("mjpeg", "w")
        codec.width, codec.height, codec.pix_fmt = frame.width, frame.height, "yuvj420p"
        codec.time_base = Fraction(1, 30)
        codec.qmin = codec.qmax = self._quality
        return codec
