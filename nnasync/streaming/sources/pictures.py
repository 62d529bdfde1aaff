"""Decoded pictures as arrays: converted and scaled by PyAV's scaler, not copied afterwards."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.streaming.sources.media import import_av

PixelFormat = Literal["gray", "rgb24", "decoded"]
"""What the data of a picture is: an array, or the frame of PyAV as the decoder gave it."""

Size = tuple[int, int]

_CHANNELS = {"gray": 1, "rgb24": 3}


def check_pixels(pixels: str, size: Size | None) -> None:
    """Raise InvalidArgument for a format that is not one of ours, or for a size that is none."""
    if pixels not in _CHANNELS and pixels != "decoded":
        raise InvalidArgument(f'pixels is {pixels!r}, it must be "gray", "rgb24" or "decoded"')
    if size is not None and (pixels == "decoded" or len(size) != 2 or min(size) < 1):
        raise InvalidArgument(
            f'size is {size!r}: (height, width) of 1 at least is wanted, and none for "decoded"'
        )


class Pictures:
    """Makes arrays of the decoded frames of one stream, whose size and format may change.

    Arrays are uint8 [height, width] for "gray" and [height, width, 3] for "rgb24", scaled to `size`
    (height, width) if there is one. They are views of what the scaler wrote where rows follow each
    other without padding, and nobody else has that memory. "decoded" leaves frames as they are.
    """

    def __init__(self, size: Size | None, pixels: PixelFormat) -> None:
        check_pixels(pixels, size)
        self._size = size
        self._pixels = pixels
        self._reformatter = import_av().video.reformatter.VideoReformatter()

    def picture(self, frame: Any) -> Any:
        """What a frame of PyAV becomes."""
        return frame if self._pixels == "decoded" else self._array(frame)

    def _array(self, frame: Any) -> Array:
        height, width = self._size or (frame.height, frame.width)
        scaled = self._reformatter.reformat(frame, width, height, self._pixels)
        plane = scaled.planes[0]
        rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:height]
        channels = _CHANNELS[self._pixels]
        shape = (height, width) if channels == 1 else (height, width, channels)
        array = np.ascontiguousarray(rows[:, : width * channels]).reshape(shape)
        # Where the format was right already, nothing was converted: the memory is the decoder's.
        return array.copy() if scaled is frame else array


def check_picture(picture: Any) -> None:
    """Raise InvalidArgument for what is no uint8 array [height, width] or [height, width, 3]."""
    is_array = isinstance(picture, np.ndarray) and picture.dtype == np.uint8
    if not is_array or picture.ndim not in (2, 3) or picture.shape[2:] not in ((), (3,)):
        found = getattr(picture, "dtype", type(picture).__name__)
        raise InvalidArgument(
            "a picture is a uint8 array [height, width] or [height, width, 3], not "
            f"{found} {list(getattr(picture, 'shape', ()))}"
        )


def frame_of(picture: Any) -> Any:
    """The frame of PyAV with a picture; raises InvalidArgument for what is none."""
    check_picture(picture)
    pixels = "gray" if picture.ndim == 2 else "rgb24"
    return import_av().VideoFrame.from_ndarray(np.ascontiguousarray(picture), format=pixels)
