"""Where a picture lies in the input of a network, and the way back.

Three ways to fit a picture into another shape: "letterbox" keeps its proportions and leaves bars,
"crop" keeps them and cuts off what sticks out on two sides, "stretch" does not keep them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
import numpy as np

from nnasync._core.arguments import check_choice, check_size, check_whole
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Struct
from nnasync.vision.boxes import Boxes, check_boxes
from nnasync.vision.pictures import Window, window_of

Fit: TypeAlias = Literal["letterbox", "crop", "stretch"]
"""How a picture gets into another shape: with bars, with parts cut off, or distorted."""
Size: TypeAlias = tuple[int, int]
"""Height and width in pixels."""


class Placement(Struct, frozen=True):
    """The part `source` of a picture fills the part `target` of a network's input.

    `width` and `height` are those of the picture in pixels.
    """

    width: int
    height: int
    source: Window
    target: Window

    @property
    def target_size(self) -> Size:
        """Height and width of what the picture fills of the input."""
        left, top, right, bottom = self.target
        return bottom - top, right - left

    def to_picture(self, boxes: Boxes) -> Boxes:
        """Boxes in the input as boxes in the picture, cut off at its edges."""
        check_boxes("boxes", boxes)
        scale, shift = self._scale_and_shift()
        corners = (boxes.corners - shift) / scale
        limits = np.array([self.width, self.height] * 2, np.float32)
        return msgspec.structs.replace(boxes, corners=np.clip(corners, 0, limits))

    def to_input(self, boxes: Boxes) -> Boxes:
        """Boxes in the picture as boxes in the input."""
        check_boxes("boxes", boxes)
        scale, shift = self._scale_and_shift()
        return msgspec.structs.replace(boxes, corners=boxes.corners * scale + shift)

    def _scale_and_shift(self) -> tuple[Array, Array]:
        """Float32 [4] each: a place in the input is a place in the picture * scale + shift."""
        source, target = np.array(self.source, np.float32), np.array(self.target, np.float32)
        scale = (target[2:] - target[:2]) / (source[2:] - source[:2])
        return np.tile(scale, 2), np.tile(target[:2] - source[:2] * scale, 2)


def placement(
    width: int, height: int, into: Size, *, fit: Fit = "letterbox", window: Window | None = None
) -> Placement:
    """Returns how a picture of `width` by `height`, or a part, fits `into` (height, width).

    Raises InvalidArgument for a window that is outside of the picture, for an unknown fit, and for
    sizes that are none.
    """
    check_whole("width", width, 1)
    check_whole("height", height, 1)
    check_size("into", into)
    check_fit(fit)
    source = (0, 0, width, height) if window is None else window_of(window)
    left, top, right, bottom = source
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise InvalidArgument(
            f"left, top, right, bottom {source} is no part of a picture of {width} by {height}"
        )
    rows, columns = into
    if fit == "stretch":
        return Placement(width, height, source, (0, 0, columns, rows))
    across, down = right - left, bottom - top
    if fit == "letterbox":
        inner = _largest_inside(across, down, columns, rows)
        return Placement(width, height, source, _centered(0, 0, columns, rows, *inner))
    kept = _largest_inside(columns, rows, across, down)
    cut = _centered(left, top, across, down, *kept)
    return Placement(width, height, cut, (0, 0, columns, rows))


def check_fit(fit: object) -> None:
    """Raise InvalidArgument for what is no `Fit`."""
    check_choice("fit", fit, ("letterbox", "crop", "stretch"))


def _largest_inside(across: int, down: int, columns: int, rows: int) -> tuple[int, int]:
    """Width and height of the largest rectangle of these proportions in columns by rows."""
    scale = min(columns / across, rows / down)
    return (
        min(max(round(across * scale), 1), columns),
        min(max(round(down * scale), 1), rows),
    )


def _centered(left: int, top: int, across: int, down: int, width: int, height: int) -> Window:
    """Returns the window of this width and height in the middle of a rectangle."""
    x, y = left + (across - width) // 2, top + (down - height) // 2
    return x, y, x + width, y + height
