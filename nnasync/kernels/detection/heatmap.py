"""HEATMAP_MAX_KEYPOINT: the highest point of each heatmap, to a fraction of a cell.

Around the highest cell the heatmap is taken for a surface of second order: its top is where the
gradient is zero, at most 1.5 cells away. Beyond the border the heatmap is its mirror image. Where
the surface is nearly flat in some direction the cell itself is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels.detection.boxes import BOX_TYPES, check_box_scale, check_boxes
from nnasync.kernels.detection.reals import from_real, to_real
from nnasync.kernels.operation import (
    Arguments,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
)

_FLAT, _FLAT_FLOAT16 = 1e-5, 1e-3
_FARTHEST = 1.5


def _infer(arguments: Arguments) -> list[Tensor]:
    maps, boxes = arguments.tensor(0), arguments.tensor(1)
    shape = maps.shape
    count, height, width, keypoints = shape
    if arguments.flag(2):
        keypoints, height, width = shape[1:]
    if height != width or height < 2:
        raise arguments.error(0, f"has maps of {height} x {width}, expected squares from 2 x 2 on")
    arguments.check_shape(1, (count, 4))
    check_box_scale(arguments, 1)
    return [
        Tensor(type=maps.type, shape=(count, keypoints)),
        Tensor(type=boxes.type, shape=(count, keypoints, 2), scale=boxes.scale),
    ]


def _neighbors(maps: Array) -> tuple[Array, Array]:
    """The highest cells of maps [n, keypoints, size, size] and the 3 x 3 cells around them.

    The cells are x, y [n, keypoints, 2]; the surroundings are [n, keypoints, 3, 3].
    """
    size = maps.shape[2]
    flat = maps.reshape(*maps.shape[:2], -1)
    highest = flat.argmax(axis=2)
    cells = np.stack([highest % size, highest // size], axis=-1)
    around = np.abs(cells[..., None] + np.arange(-1, 2))
    around = np.where(around == size, size - 2, around)
    places = around[:, :, 1, :, None] * size + around[:, :, 0, None, :]
    found = np.take_along_axis(flat, places.reshape(*places.shape[:2], 9), axis=2)
    return cells, found.reshape(places.shape)


def _tops(around: Array, flat: float) -> tuple[Array, Array]:
    """Returns how far the top of 3 x 3 surroundings is, as x, y [..., 2], and its height."""
    (a, b, c), (d, center, f), (g, h, i) = np.moveaxis(around, (-2, -1), (0, 1))
    slope_x, slope_y = -(f - d) / 2, -(h - b) / 2
    bend_x, bend_y, twist = d - 2 * center + f, b - 2 * center + h, (i - g - c + a) / 4
    product = bend_x * bend_y
    determinant = product - twist * twist
    curved = ~(np.abs(determinant) < np.float32(flat) + np.float32(flat) * product)
    divisor = np.where(curved, determinant, 1)
    x = np.where(curved, (bend_y * slope_x - twist * slope_y) / divisor, 0)
    y = np.where(curved, (bend_x * slope_y - twist * slope_x) / divisor, 0)
    shrink = _FARTHEST / np.maximum(np.maximum(np.abs(x), np.abs(y)), _FARTHEST)
    x, y = x * shrink, y * shrink
    rise = (bend_x * x + twist * y) * x + (twist * x + bend_y * y) * y
    return np.stack([x, y], axis=-1), center - slope_x * x - slope_y * y + rise / 2


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    maps, boxes = arguments.tensor(0), arguments.tensor(1)
    scores, keypoints = outputs
    flat = _FLAT_FLOAT16 if maps.widened else _FLAT
    first = 2 if arguments.flag(2) else 1
    size = np.float32(maps.shape[first])

    @np.errstate(all="ignore")
    def find(heat: Array, corners: Array) -> tuple[Array, Array]:
        squares = np.moveaxis(to_real(heat, maps), (first, first + 1), (2, 3))
        cells, around = _neighbors(squares)
        moved, height = _tops(around, flat)
        places = (cells.astype(np.float32) + moved + np.float32(0.5)) / size
        starts = corners[:, None, :2]
        return height, places * (corners[:, None, 2:] - starts) + starts

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        def step() -> None:
            corners = to_real(inputs[1], boxes)
            check_boxes(arguments, 1, corners)
            height, places = find(inputs[0], corners)
            outputs[0][...] = from_real(height, scores)
            outputs[1][...] = from_real(places, keypoints)

        return step

    return Kernel(bind)


def _signatures() -> list[Signature]:
    return [
        Signature(
            types.since,
            (
                Parameter("heatmaps", types.data, ranks=(4,)),
                Parameter("boxes", types.boxes, ranks=(2,)),
                Parameter("is_nchw", OperandType.BOOL),
            ),
            (Parameter("output_scores", types.data), Parameter("output_keypoints", types.boxes)),
        )
        for types in BOX_TYPES
    ]


HEATMAP_MAX_KEYPOINT = Operation(
    OperationType.HEATMAP_MAX_KEYPOINT, _signatures(), _infer, _prepare
)
