"""Boxes and words drawn into pictures, in place: RGB, gray and YCbCr 4:2:0 alike.

A `Canvas` is the planes of a picture, each with its part of a color and the number of pixels that
one of its samples stands for. Whatever is drawn is a rectangle of a color with a coverage, so that
a plane of half the width and height needs no code of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from nnasync._core.arguments import (
    check_function,
    check_kind,
    check_share,
    check_whole,
    entries,
    or_none,
    told,
)
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.memory import Pool
from nnasync.vision.boxes import Box, Boxes, check_boxes
from nnasync.vision.font import text_mask
from nnasync.vision.pictures import Window

Color: TypeAlias = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

PALETTE: tuple[Color, ...] = (
    (230, 85, 13),
    (49, 130, 189),
    (49, 163, 84),
    (197, 27, 125),
    (240, 190, 20),
    (117, 107, 177),
    (0, 170, 170),
    (222, 45, 38),
    (140, 86, 75),
    (90, 160, 255),
    (120, 190, 30),
    (255, 127, 170),
)
"""Colors of boxes, by their identity or else by their label."""

_HIGHEST_LETTER = 4096
_BLACK, _WHITE = (16, 18, 20), (255, 255, 255)


class _Plane(NamedTuple):
    """Samples [h, w] or [h, w, channels], one for `step` by `step` pixels; its part of a color."""

    samples: Array
    step: int
    part: Callable[[Color], Sequence[float]]


def _luma(color: Color) -> tuple[float]:
    return (0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2],)


def _blue_chroma(color: Color) -> tuple[float]:
    return (min((color[2] - _luma(color)[0]) / 1.772 + 128, 255),)


def _red_chroma(color: Color) -> tuple[float]:
    return (min((color[0] - _luma(color)[0]) / 1.402 + 128, 255),)


class Canvas:
    """Draws into a picture, of which it keeps no copy."""

    def __init__(self, picture: Array | Pool) -> None:
        """Takes a uint8 array, gray [h, w(, 1)], RGB [h, w, 3], RGBA [h, w, 4], or a `Pool.image`.

        Raises InvalidArgument for others, and for what cannot be written.
        """
        if isinstance(picture, Pool):
            layout = picture.image_layout
            if layout is None:
                raise InvalidArgument(f"{picture!r} is no image; Pool.image makes one")
            self._planes = _planes_of(picture.planes)
        else:
            self._planes = _planes_of((picture,))
        self.height, self.width = self._planes[0].samples.shape[:2]

    @classmethod
    def of_planes(cls, y: Array, cb: Array, cr: Array) -> Canvas:
        """Takes a picture of YCbCr 4:2:0: uint8 [h, w], and two planes of half of both, rounded up.

        What PyAV calls yuvj420p, full range; colors in yuv420p come out a little stronger. Raises
        InvalidArgument for other shapes.
        """
        canvas = cls.__new__(cls)
        canvas._planes = _planes_of((y, cb, cr))
        canvas.height, canvas.width = y.shape
        return canvas

    def fill(self, window: Window, color: Color, *, opacity: float = 1.0) -> None:
        """Fills a rectangle: left, top, right, bottom in pixels, rounded; cuts off what is outside.

        Raises InvalidArgument for a window of anything but four finite numbers, and for a color of
        anything but three from 0 to 255, and for an opacity that is not from 0 to 1.
        """
        check_share("opacity", opacity)
        left, top, right, bottom = self._inside(window)
        if left < right and top < bottom:
            self._blend((left, top, right, bottom), color, np.asarray(opacity, np.float32))

    def outline(self, window: Window, color: Color, *, thickness: int = 2) -> None:
        """Draws the frame of a rectangle on its inner side; raises InvalidArgument as `fill`."""
        check_whole("thickness", thickness, 1)
        left, top, right, bottom = _pixels(window)
        thick = max(min(thickness, (right - left) // 2, (bottom - top) // 2), 1)
        self.fill((left, top, right, top + thick), color)
        self.fill((left, bottom - thick, right, bottom), color)
        self.fill((left, top + thick, left + thick, bottom - thick), color)
        self.fill((right - thick, top + thick, right, bottom - thick), color)

    def text(self, left: int, top: int, text: str, color: Color, *, height: int = 18) -> int:
        """Draws a line of ASCII with its upper left corner there; returns its width in pixels.

        Raises InvalidArgument for what is no text, place, color or height.
        """
        check_kind("text", text, str, "a str")
        check_whole("height", height, 1, _HIGHEST_LETTER)
        left, top = _pixels((left, top, 0, 0))[:2]
        mask = text_mask(text, height)
        window = (left, top, left + mask.shape[1], top + mask.shape[0])
        inner = self._inside(window)
        if inner[0] < inner[2] and inner[1] < inner[3]:
            part = mask[inner[1] - top : inner[3] - top, inner[0] - left : inner[2] - left]
            self._blend(inner, color, part)
        return int(mask.shape[1])

    def _inside(self, window: Window) -> Window:
        left, top, right, bottom = _pixels(window)
        return max(left, 0), max(top, 0), min(right, self.width), min(bottom, self.height)

    def _blend(self, window: Window, color: Color, cover: Array) -> None:
        left, top, right, bottom = window
        _check_color(color)
        for samples, step, part in self._planes:
            some = samples[top // step : -(-bottom // step), left // step : -(-right // step)]
            share = cover if step == 1 else _thinned(cover, window, step)
            if some.ndim == 3:
                share = share[..., None]
            values = np.array(part(color), np.float32)
            some[...] = np.rint(some + (values - some) * share)


def _pixels(window: Window) -> Window:
    try:
        left, top, right, bottom = (round(float(edge)) for edge in window)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"a window is four finite numbers (left, top, right, bottom), not {window!r}"
        ) from error
    return left, top, right, bottom


def _check_color(color: Color) -> None:
    try:
        is_color = len(color) == 3 and all(0 <= part <= 255 for part in color)
    except (TypeError, ValueError):
        is_color = False
    if not is_color:
        raise InvalidArgument(f"a color is (red, green, blue) from 0 to 255, not {told(color)}")


def draw(
    picture: Array | Pool | Canvas,
    boxes: Boxes,
    *,
    caption: Callable[[Box], str] | None = None,
    colors: Sequence[Color] = PALETTE,
    thickness: int | None = None,
) -> None:
    """Draw boxes and their captions into a picture.

    A caption is the box's name, or the number of its label, and its score in percent, unless
    `caption` says another one ("" for none). The color goes with the identity where there is one,
    else with the label; line and letters go with the size of the picture. Raises InvalidArgument
    for a picture that cannot be drawn into, for what are no `Boxes`, no colors or no function.
    """
    check_boxes("boxes", boxes)
    palette = entries(colors)
    if not palette:
        raise InvalidArgument(f"boxes are drawn in at least one color, not in {told(colors)}")
    for color in palette:
        _check_color(color)
    or_none(check_function, "caption", caption, "a function of a Box that returns a str")
    or_none(check_whole, "thickness", thickness, 1)
    canvas = picture if isinstance(picture, Canvas) else Canvas(picture)
    small = min(canvas.width, canvas.height)
    thick = thickness or max(round(small / 240), 1)
    height = max(round(small / 26), 9)
    for box in boxes.finite():
        color = palette[(box.label if box.identity is None else box.identity) % len(palette)]
        left, top, right, bottom = (
            round(side) for side in (box.left, box.top, box.right, box.bottom)
        )
        canvas.outline((left, top, right, bottom), color, thickness=thick)
        text = _caption(box) if caption is None else caption(box)
        check_kind("a caption", text, str, "a str")
        if text:
            _label(canvas, left, top, text, color, height)


def _caption(box: Box) -> str:
    return f"{box.name or box.label} {box.score:.0%}"


def _label(canvas: Canvas, left: int, top: int, text: str, color: Color, height: int) -> None:
    """Text on a ground of the box's color, above its upper left corner or else below it."""
    width = text_mask(text, height).shape[1]
    left = max(min(left, canvas.width - width), 0)
    top = top - height if top >= height else top
    canvas.fill((left, top, left + width, top + height), color)
    canvas.text(left, top, text, _WHITE if _luma(color)[0] < 150 else _BLACK, height=height)


def _planes_of(arrays: Sequence[Array]) -> tuple[_Plane, ...]:
    for array in arrays:
        if not isinstance(array, np.ndarray):
            raise InvalidArgument(
                f"an array or an image can be drawn into, not a {type(array).__name__}"
            )
        if array.dtype != np.uint8 or not array.flags.writeable:
            kind = "read-only " if not array.flags.writeable else ""
            raise InvalidArgument(
                f"a writable uint8 array can be drawn into, not a {kind}one of {array.dtype}"
            )
    shape = arrays[0].shape
    if len(arrays) == 3 and len(shape) == 2:
        half = ((shape[0] + 1) // 2, (shape[1] + 1) // 2)
        if arrays[1].shape != half or arrays[2].shape != half:
            raise InvalidArgument(
                f"Y {list(shape)} goes with Cb and Cr {list(half)}, not {arrays[1].shape} and "
                f"{arrays[2].shape}"
            )
        parts = (_luma, _blue_chroma, _red_chroma)
        return tuple(
            _Plane(array, step, part)
            for array, step, part in zip(arrays, (1, 2, 2), parts, strict=True)
        )
    if (
        len(arrays) != 1
        or len(shape) not in (2, 3)
        or (len(shape) == 3 and shape[2] not in _DEPTHS)
    ):
        raise InvalidArgument(
            "a picture to draw into is [height, width], or [height, width, 1, 3 or 4], not "
            f"{list(shape)}"
        )
    gray = len(shape) == 2 or shape[2] == 1
    samples = arrays[0] if len(shape) == 2 else arrays[0][..., : min(shape[2], 3)]
    return (_Plane(samples, 1, _luma if gray else _rgb),)


_DEPTHS = (1, 3, 4)


def _rgb(color: Color) -> Color:
    return color


def _thinned(cover: Array, window: Window, step: int) -> Array:
    """Returns the mean coverage for samples that stand for `step` by `step` pixels each."""
    left, top, right, bottom = window
    around = ((top % step, -bottom % step), (left % step, -right % step))
    wide = np.pad(np.broadcast_to(cover, (bottom - top, right - left)), around)
    rows, columns = wide.shape[0] // step, wide.shape[1] // step
    thin: Array = wide.reshape(rows, step, columns, step).mean(axis=(1, 3))
    return thin
