"""The kinds of picture that functions of `nnasync.vision` take, and their pixels.

A picture is

* an array of bytes: gray [height, width] or [height, width, 1], RGB [height, width, 3], RGBA
  [height, width, 4];
* an image in shared memory (`nnasync.memory.Pool.image`), RGB, RGBA or YCbCr 4:2:0;
* a frame of PyAV (`av.VideoFrame`), of any pixel format that its scaler knows: it converts and
  scales in one pass. Who has such a frame has PyAV; nothing here imports it.

Gray is BT.601's luma, (299 R + 587 G + 114 B) / 1000; of YCbCr it is the plane Y as it is.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from nnasync._core.arguments import entries, told
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.memory import Pool, to_rgb
from nnasync.vision.resizing import resized


@runtime_checkable
class VideoFrame(Protocol):
    """The part of a frame of PyAV that is used here."""

    @property
    def width(self) -> int:
        """Returns the width in pixels."""
        ...

    @property
    def height(self) -> int:
        """Returns the height in pixels."""
        ...

    def to_ndarray(self, **options: Any) -> Array:
        """Returns an array, in another format and size if `format`, `width` and `height` say so."""
        ...

    def reformat(self, *arguments: Any, **options: Any) -> Any:
        """Returns a frame of another format and size."""
        ...


Picture: TypeAlias = Array | Pool | VideoFrame
"""What is taken as a picture: pixels [height, width, channels], an image in a pool, a frame."""
Window: TypeAlias = tuple[int, int, int, int]
"""A part of a picture in whole pixels: left, top, right, bottom."""

_FORMATS = {1: "gray", 3: "rgb24"}


def size_of(picture: Picture) -> tuple[int, int]:
    """Width and height in pixels; raises InvalidArgument for what is no picture."""
    if isinstance(picture, Pool):
        layout = picture.image_layout
        if layout is None:
            raise InvalidArgument(f"{picture!r} is no image; Pool.image makes one")
        return layout.width, layout.height
    if isinstance(picture, np.ndarray):
        _check_array(picture)
        return picture.shape[1], picture.shape[0]
    if isinstance(picture, VideoFrame):
        return picture.width, picture.height
    raise InvalidArgument(
        "a picture is a uint8 array [height, width(, 1, 3 or 4)], a Pool.image or an "
        f"av.VideoFrame, not {type(picture).__name__}{_as_array(picture)}"
    )


def pixels_of(
    picture: Picture, channels: int, *, window: Window | None = None, size: tuple[int, int]
) -> Array:
    """Bytes [height, width, channels] of a picture, or of a part of it, in `size` (height, width).

    One channel is gray, three are RGB. The result may be a view of the picture. Raises
    InvalidArgument.
    """
    whole = (0, 0, *size_of(picture))
    part = whole if window is None else window
    if isinstance(picture, VideoFrame):
        height, width = size if part == whole else (picture.height, picture.width)
        array = picture.to_ndarray(format=_FORMATS[channels], width=width, height=height)
        planes: Array = array.reshape(height, width, channels)
        return planes if part == whole else resized(_cut(planes, part), size)
    if isinstance(picture, Pool):
        return resized(_colored(_cut(_plane(picture, channels), part), channels), size)
    # To make it smaller first leaves fewer pixels to be converted.
    small = resized(_cut(picture.reshape(*picture.shape[:2], -1), part), size)
    return _colored(small, channels)


def window_of(window: object) -> Window:
    """Returns a window that is four whole numbers; raises InvalidArgument for anything else."""
    edges = entries(window) or ()
    if len(edges) != 4 or not all(isinstance(edge, int | np.integer) for edge in edges):
        raise InvalidArgument(
            f"window is {told(window)}, it must be (left, top, right, bottom) in whole pixels"
        )
    left, top, right, bottom = map(int, edges)
    return left, top, right, bottom


def _check_array(array: Array) -> None:
    shape = array.shape
    flat = array.ndim == 2 or (array.ndim == 3 and shape[2] in (1, 3, 4))
    if not flat or array.dtype != np.uint8 or not array.size:
        raise InvalidArgument(
            "an array is a picture if it is uint8 [height, width], or [height, width, 1, 3 or 4], "
            f"not {array.dtype} {list(shape)}{_hint(array)}"
        )


def _as_array(thing: object) -> str:
    """Returns advice if numpy makes an array of an object, such as an image of Pillow, else ""."""
    return "; np.asarray(picture) makes one" if hasattr(thing, "__array_interface__") else ""


def _hint(array: Array) -> str:
    """Returns advice on how to make a picture of an array that nearly is one."""
    if array.ndim == 4 and array.shape[0] == 1:
        return "; picture[0] is the only one of this batch"
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        return "; np.moveaxis(picture, 0, 2) puts its channels last"
    if array.dtype.kind == "f":
        return "; (picture * 255).astype(np.uint8) makes bytes of numbers from 0 to 1"
    return ""


def _plane(image: Pool, channels: int) -> Array:
    """Returns the pixels [height, width, 1, 3 or 4] of an image."""
    layout = image.image_layout
    if layout is None or layout.is_rgb:
        return image.planes[0]
    return image.planes[0][..., None] if channels == 1 else to_rgb(image)


def _cut(pixels: Array, window: Window) -> Array:
    left, top, right, bottom = window
    height, width = pixels.shape[:2]
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise InvalidArgument(
            f"left, top, right, bottom {window} is no part of a picture of {width} by {height}"
        )
    return pixels[top:bottom, left:right]


def _colored(pixels: Array, channels: int) -> Array:
    """Returns the pixels with one channel or three."""
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return pixels.repeat(3, 2) if pixels.shape[2] == 1 else pixels[..., :3]
    red, green, blue = (pixels[..., n].astype(np.uint32) for n in range(3))
    luma = (299 * red + 587 * green + 114 * blue + 500) // 1000
    return luma.astype(np.uint8)[..., None]
