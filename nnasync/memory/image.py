"""Images in shared memory: how their planes lie, and YCbCr as RGB.

A row of an image may be longer than its pixels, which is what cameras and decoders deliver:
`row_stride` counts in bytes, and every row has all of them, the last one too. RGB is one plane of
three or four bytes a pixel. YCbCr 4:2:0 is three planes one after the other, Y, Cb and Cr; the last
two have half the width and height, rounded up, and half the row stride, rounded up.

No device of ours takes YCbCr, and nobody converts it unasked: applications call `to_rgb`. It is
BT.601 with the full range of values, as in JPEG files, each chroma sample used for its four pixels:

    R = Y + 1.402 (Cr - 128)
    G = Y - 0.344136 (Cb - 128) - 0.714136 (Cr - 128)
    B = Y + 1.772 (Cb - 128)

rounded to the nearest, halves up, and clamped. Chroma of a video of limited range, or between two
samples, is the application's to care for.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from nnasync._core.arguments import check_kind, check_whole, or_none
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Struct

_LONGEST_SIDE = 1 << 16
_MOST_BYTES = (1 << 32) - 1


class ImageFormat(enum.IntEnum):
    """Formats of image buffers, with the numbers that Android gives them."""

    RGBA_8888 = 1
    RGB_888 = 3
    YCBCR_420 = 0x23


_CHANNELS = {ImageFormat.RGBA_8888: 4, ImageFormat.RGB_888: 3}


class Plane(NamedTuple):
    """A plane in the bytes of an image; `shape` is (rows, columns) or (rows, columns, channels)."""

    offset: int
    shape: tuple[int, ...]
    row_stride: int


class ImageLayout(Struct, frozen=True):
    """Format and size of an image; `row_stride` in bytes, of Y where the format is YCbCr."""

    format: ImageFormat
    width: int
    height: int
    row_stride: int

    @classmethod
    def of(
        cls, format: ImageFormat, width: int, height: int, row_stride: int | None = None
    ) -> ImageLayout:
        """A layout, without padding unless a row stride is given; raises InvalidArgument."""
        try:
            kind = ImageFormat(format)
        except ValueError:
            known = ", ".join(each.name for each in ImageFormat)
            raise InvalidArgument(f"{format!r} is no image format; known are {known}") from None
        check_whole("width", width, 1, _LONGEST_SIDE)
        check_whole("height", height, 1, _LONGEST_SIDE)
        or_none(check_whole, "row_stride", row_stride, 1)
        if row_stride is None:
            row_stride = width * _CHANNELS.get(kind, 1)
        layout = cls(kind, width, height, row_stride)
        layout.check()
        return layout

    @property
    def channels(self) -> int:
        """Bytes of a pixel in the first plane."""
        return _CHANNELS.get(self.format, 1)

    @property
    def is_rgb(self) -> bool:
        """Returns whether it is one plane of pixels, RGB or RGBA."""
        return self.format in _CHANNELS

    @property
    def planes(self) -> tuple[Plane, ...]:
        """Returns the places of the planes."""
        if self.is_rgb:
            return (Plane(0, (self.height, self.width, self.channels), self.row_stride),)
        half = ((self.height + 1) // 2, (self.width + 1) // 2)
        stride = (self.row_stride + 1) // 2
        begin = self.height * self.row_stride
        return (
            Plane(0, (self.height, self.width), self.row_stride),
            Plane(begin, half, stride),
            Plane(begin + half[0] * stride, half, stride),
        )

    @property
    def size(self) -> int:
        """Bytes of all planes, padding included."""
        last = self.planes[-1]
        return last.offset + last.shape[0] * last.row_stride

    def check(self) -> None:
        """Raise InvalidArgument unless this describes an image."""
        for what, side in (("width", self.width), ("height", self.height)):
            if not 1 <= side <= _LONGEST_SIDE:
                raise InvalidArgument(
                    f"an image has a {what} of 1 to {_LONGEST_SIDE} pixels, not {side}"
                )
        least = self.width * self.channels
        if self.row_stride < least:
            raise InvalidArgument(
                f"a row of {self.width} pixels takes {least} bytes, more than the row stride, "
                f"{self.row_stride}"
            )
        if self.size > _MOST_BYTES:
            raise InvalidArgument(
                f"an image of {self.size} bytes is too large: at most {_MOST_BYTES} are possible"
            )


def rgb_of(planes: tuple[Array, ...], out: Array | None) -> Array:
    """Planes of YCbCr 4:2:0 as (height, width, 3) uint8, in `out` if given: the formulas above."""
    luma, blue, red = planes
    shape = (*luma.shape, 3)
    if out is None:
        out = np.empty(shape, np.uint8)
    check_kind("out", out, np.ndarray, "an array")
    if out.shape != shape or out.dtype != np.uint8 or not out.flags.writeable:
        raise InvalidArgument(f"out must be a writable uint8 array of shape {list(shape)}")
    cb, cr = blue.astype(np.int32) - 128, red.astype(np.int32) - 128
    # Integers: what is exactly a half in decimals must not depend on a binary fraction.
    offsets = (
        (1402 * cr + 500) // 1000,
        (-344136 * cb - 714136 * cr + 500_000) // 1_000_000,
        (1772 * cb + 500) // 1000,
    )
    rows, columns = luma.shape
    for channel, offset in enumerate(offsets):
        wide = offset.astype(np.int16).repeat(2, 0)[:rows].repeat(2, 1)[:, :columns]
        np.clip(luma + wide, 0, 255, out=out[..., channel], casting="unsafe")
    return out
