"""Boxes [x1, y1, x2, y2]: their types, their overlap, and AXIS_ALIGNED_BBOX_TRANSFORM.

Quantized boxes are 16-bit numbers in steps of exactly 1/8 pixel with zero point 0. Whatever the
types, the geometry is that of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType, Struct
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

BOX_SCALE = 0.125
_SIXTEEN_BITS = (OperandType.TENSOR_QUANT16_ASYMM, OperandType.TENSOR_QUANT16_SYMM)


class BoxTypes(Struct, frozen=True):
    """Types that go together: of the data, of boxes, and of floating point scalars."""

    data: OperandType
    boxes: OperandType
    scalar: OperandType
    since: HalVersion


BOX_TYPES: tuple[BoxTypes, ...] = tuple(
    BoxTypes(data, boxes, scalar, since)
    for data, boxes, scalar, since in (
        (
            OperandType.TENSOR_FLOAT32,
            OperandType.TENSOR_FLOAT32,
            OperandType.FLOAT32,
            HalVersion.V1_2,
        ),
        (
            OperandType.TENSOR_FLOAT16,
            OperandType.TENSOR_FLOAT16,
            OperandType.FLOAT16,
            HalVersion.V1_2,
        ),
        (
            OperandType.TENSOR_QUANT8_ASYMM,
            OperandType.TENSOR_QUANT16_ASYMM,
            OperandType.FLOAT32,
            HalVersion.V1_2,
        ),
        (
            OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
            OperandType.TENSOR_QUANT16_ASYMM,
            OperandType.FLOAT32,
            HalVersion.V1_3,
        ),
    )
)


def check_box_scale(arguments: Arguments, *indexes: int) -> None:
    """Raises ModelError where a 16-bit argument is not in steps of 1/8 from zero."""
    for index in indexes:
        tensor = arguments.tensor(index)
        given = (tensor.scale, tensor.zero_point)
        if tensor.type in _SIXTEEN_BITS and given != (BOX_SCALE, 0):
            raise arguments.error(
                index, f"has scale {given[0]} and zero point {given[1]}, expected {BOX_SCALE} and 0"
            )


def check_boxes(arguments: Arguments, index: int, boxes: Array) -> None:
    """Raises ModelError where a box [..., 4] of an argument ends before it begins."""
    fits = (boxes[..., :2] <= boxes[..., 2:]).all(axis=-1)
    if not fits.all():
        first = int(np.flatnonzero(~fits)[0])
        raise arguments.error(index, f"box {first} is {boxes[first].tolist()}: not x1<=x2, y1<=y2")


def check_batches(arguments: Arguments, index: int, batches: Array, count: int) -> None:
    """Raises ModelError where an argument names an image that is not there."""
    outside = np.flatnonzero((batches < 0) | (batches >= count))
    if outside.size:
        first = int(outside[0])
        raise arguments.error(
            index, f"element {first} is {int(batches[first])}, expected within [0, {count})"
        )


def overlap(ones: Array, others: Array) -> Array:
    """Intersection over union [n, m] of boxes with others; both are corners, [4, n] and [4, m].

    It is 0 where there is no union.
    """
    left, top, right, bottom = ones[:, :, None]
    sides = np.minimum(right, others[2]) - np.maximum(left, others[0])
    common: Array = np.maximum(sides, 0)
    sides = np.minimum(bottom, others[3]) - np.maximum(top, others[1])
    common *= np.maximum(sides, 0)
    areas = (others[2] - others[0]) * (others[3] - others[1])
    union = (right - left) * (bottom - top) + areas
    union -= common
    ratio: Array = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return ratio


def transform(boxes: Array, deltas: Array, limits: Array) -> Array:
    """Boxes [n, 4] moved by dx, dy and scaled by dw, dh of deltas [n, classes, 4].

    The result [n, classes, 4] is cut at 0 and at limits [n, 2], which are widths and heights.
    """
    sizes = (boxes[:, 2:] - boxes[:, :2])[:, None]
    centers = ((boxes[:, :2] + boxes[:, 2:]) / 2)[:, None]
    with np.errstate(all="ignore"):
        moved = centers + deltas[..., :2] * sizes
        halves = np.exp(deltas[..., 2:]) * sizes / 2
        corners = np.concatenate([moved - halves, moved + halves], axis=-1)
    bounded: Array = np.minimum(np.maximum(corners, 0), np.tile(limits, 2)[:, None])
    return bounded


def _infer(arguments: Arguments) -> list[Tensor]:
    boxes, deltas = arguments.tensor(0), arguments.tensor(1)
    count, length = deltas.shape
    arguments.check_shape(0, (count, 4))
    arguments.check_shape(2, (count,))
    arguments.check_shape(3, (arguments.tensor(3).shape[0], 2))
    if length % 4 or not length:
        raise arguments.error(1, f"has shape {deltas.shape}, expected 4 deltas for each class")
    check_box_scale(arguments, 0, 3)
    return [Tensor(type=boxes.type, shape=deltas.shape, scale=boxes.scale)]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    boxes, deltas, _, image = (arguments.tensor(index) for index in range(4))
    output = outputs[0]
    each = (deltas.shape[0], -1, 4)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        def step() -> None:
            real, batches = to_real(inputs[0], boxes), inputs[2]
            check_batches(arguments, 2, batches, image.shape[0])
            check_boxes(arguments, 0, real)
            limits = to_real(inputs[3], image)[batches, ::-1]
            moved = transform(real, to_real(inputs[1], deltas).reshape(each), limits)
            outputs[0][...] = from_real(moved, output).reshape(output.shape)

        return step

    return Kernel(bind)


def _signatures() -> list[Signature]:
    return [
        Signature(
            types.since,
            (
                Parameter("rois", types.boxes, ranks=(2,)),
                Parameter("deltas", types.data, ranks=(2,)),
                Parameter("batch_indexes", OperandType.TENSOR_INT32, ranks=(1,)),
                Parameter("image_info", types.boxes, ranks=(2,)),
            ),
            (Parameter("output", types.boxes),),
        )
        for types in BOX_TYPES
    ]


AXIS_ALIGNED_BBOX_TRANSFORM = Operation(
    OperationType.AXIS_ALIGNED_BBOX_TRANSFORM, _signatures(), _infer, _prepare, empty=True
)
