"""Decoded pictures as arrays or images: converted and scaled by PyAV's scaler.

The scaler writes to memory of its own only. An array is a view of that memory, so nothing is copied
on the way to it; a network copies it into the memory of each call, on the event loop. An image
(`Pool.image`) is shared memory: here it is written once, on the thread of the decoder, and every
network, also one in another process, reads it in place. Memory of images is not used again: whoever
has a view of one, or a device that has not let go of it, must never see another picture in it.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from nnasync._core.arguments import check_choice, check_size
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.memory import ImageFormat, Pool
from nnasync.streaming.sources.media import Scaler, import_av

PixelFormat = Literal["gray", "rgb24", "image", "decoded"]
"""What a picture is: an array, an RGB image in shared memory, or PyAV's frame as it was decoded."""

Size = tuple[int, int]

_SCALED = {"gray": "gray", "rgb24": "rgb24", "image": "rgb24"}


def check_pixels(pixels: str, size: Size | None) -> None:
    """Raise InvalidArgument for a format that is not one of ours, or for a size that is none."""
    check_choice("pixels", pixels, (*_SCALED, "decoded"))
    if size is not None:
        check_size("size", size)
        if pixels == "decoded":
            raise InvalidArgument(f'size is {size}: frames that are "decoded" keep their own')


class Pictures:
    """Makes pictures of the decoded frames of one stream, whose size and format may change.

    Arrays are uint8 [height, width] for "gray" and [height, width, 3] for "rgb24", scaled to `size`
    (height, width) if there is one. They are views of what the scaler wrote where rows follow each
    other without padding, and nobody else has that memory. "image" is a `Pool.image` of RGB_888
    without padding, which ends with its last user. "decoded" leaves frames as they are.
    """

    def __init__(self, size: Size | None, pixels: PixelFormat) -> None:
        check_pixels(pixels, size)
        self._size = size
        self._pixels = pixels
        self._scaler = Scaler()

    def picture(self, frame: Any) -> Any:
        """Returns the picture that a frame of PyAV becomes.

        Raises ResourceExhaustedTransient where there is no memory or descriptor for an image.
        """
        if self._pixels == "decoded":
            return frame
        height, width = self._size or (frame.height, frame.width)
        scaled = self._scaler.scaled(frame, width, height, _SCALED[self._pixels])
        pixels = _pixels_of_frame(scaled)
        if self._pixels == "image":
            image = Pool.image(ImageFormat.RGB_888, width, height)
            np.copyto(image.planes[0], pixels)
            return image
        # Where the format was right already, nothing was converted: the memory is the decoder's.
        return pixels.copy() if scaled is frame else np.ascontiguousarray(pixels)


def _pixels_of_frame(frame: Any) -> Array:
    """A gray or RGB frame as a view [height, width] or [height, width, 3]; rows may be padded."""
    plane = frame.planes[0]
    is_gray = frame.format.name == "gray"
    shape = (frame.height, frame.width) if is_gray else (frame.height, frame.width, 3)
    strides = (plane.line_size, 1 if is_gray else 3, 1)[: len(shape)]
    return np.ndarray(shape, np.uint8, buffer=plane, strides=strides)


def check_picture(picture: Any) -> None:
    """Raise InvalidArgument unless it is a gray or RGB array of bytes, or an RGB image."""
    _checked(picture)


def _checked(picture: Any) -> Array:
    """The pixels of a picture."""
    if isinstance(picture, Pool) and picture.image_layout is not None:
        picture = picture.planes[0] if picture.image_layout.is_rgb else picture
    is_array = isinstance(picture, np.ndarray) and picture.dtype == np.uint8
    if not is_array or picture.ndim not in (2, 3) or picture.shape[2:] not in ((), (3,)):
        found = getattr(picture, "dtype", type(picture).__name__)
        raise InvalidArgument(
            "a picture is a uint8 array [height, width] or [height, width, 3], or an image "
            f"of RGB_888, not {found} {list(getattr(picture, 'shape', ()))}"
        )
    array: Array = picture
    return array


def frame_of(picture: Any) -> Any:
    """The frame of PyAV with a picture; raises InvalidArgument for what is none."""
    array = _checked(picture)
    pixels = "gray" if array.ndim == 2 else "rgb24"
    return import_av().VideoFrame.from_ndarray(np.ascontiguousarray(array), format=pixels)
