"""Pictures as JPEG files, encoded by PyAV."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from nnasync.hal import Array

_QUALITY = 4
"""FFmpeg's scale: 2 is best, 31 worst."""


class JpegWriter:
    """Encodes pictures of any size, one after the other; for one thread at a time."""

    def __init__(self) -> None:
        self._codec: Any = None
        self._size = (0, 0)
        self._count = 0

    def encode(self, picture: Array) -> bytes:
        """A uint8 array [height, width] or [height, width, 3] as a file."""
        import av

        height, width = picture.shape[:2]
        source = "gray" if picture.ndim == 2 else "rgb24"
        frame = av.VideoFrame.from_ndarray(picture, format=source)
        frame = frame.reformat(format="yuvj420p")
        frame.pts = self._count = self._count + 1
        if (height, width) != self._size:
            self._codec = _codec(width, height)
            self._size = (height, width)
        return b"".join(bytes(packet) for packet in self._codec.encode(frame))


def _codec(width: int, height: int) -> Any:
    import av

    codec: Any = av.CodecContext.create("mjpeg", "w")
    codec.width, codec.height = width, height
    codec.pix_fmt = "yuvj420p"
    codec.time_base = Fraction(1, 30)
    codec.qmin = codec.qmax = _QUALITY
    return codec
