"""GENERATE_PROPOSALS: the boxes of a feature map that are likely to hold an object."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync.hal import Array, OperandType, OperationType, Shape
from nnasync.kernels.detection.boxes import (
    BOX_SCALE,
    BOX_TYPES,
    check_box_scale,
    check_boxes,
    transform,
)
from nnasync.kernels.detection.nms import best, hard_suppression, settled
from nnasync.kernels.detection.reals import from_real, to_real
from nnasync.kernels.facts import Facts
from nnasync.kernels.movement.copying import like
from nnasync.kernels.operation import (
    Arguments,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Tensor,
)


def _nhwc(arguments: Arguments) -> Shape:
    """Shape of the scores with the anchors last."""
    shape = arguments.tensor(0).shape
    return (shape[0], *shape[2:], shape[1]) if arguments.flag(10) else shape


def _cells(arguments: Arguments, index: int, array: Array) -> Array:
    """Scores or deltas as [batches, cells, values of a cell]."""
    rows = np.moveaxis(array, 1, 3) if arguments.flag(10) else array
    return rows.reshape(rows.shape[0], -1, rows.shape[3])


def _boxes_at(arguments: Arguments, anchors: Array, indexes: Array) -> Array:
    """The anchors at places that count through height, width and anchors."""
    _, _, width, count = _nhwc(arguments)
    strides = np.asarray([arguments.number(5), arguments.number(4)], np.float32)
    cells, anchor = np.divmod(indexes, count)
    places = np.stack([cells % width, cells // width], axis=-1).astype(np.float32)
    boxes: Array = anchors[anchor] + np.tile(places * strides, 2)
    return boxes


def _is_inside(boxes: Array, limits: Array, smallest: float) -> Array:
    """Returns which boxes are larger than `smallest` and have their center before the limits."""
    sizes = boxes[:, 2:] - boxes[:, :2]
    centers = boxes[:, :2] + sizes / 2
    inside: Array = (sizes > smallest) & (centers < limits)
    return np.logical_and(inside[:, 0], inside[:, 1])


def _choose_in_image(
    arguments: Arguments, scores: Array, deltas: Array, anchors: Array, limits: Array
) -> tuple[Array, Array]:
    """Returns the chosen indexes and their boxes for one image's scores [n] and deltas [n, 4]."""
    first, last = arguments.integer(6), arguments.integer(7)
    chosen = best(scores, first) if first > 0 else np.arange(scores.size)
    before = _boxes_at(arguments, anchors, chosen)
    boxes = transform(before, deltas[chosen, None], np.tile(limits, (chosen.size, 1)))[:, 0]
    inside = np.flatnonzero(_is_inside(boxes, limits, arguments.number(9)))
    chosen, boxes = chosen[inside], boxes[inside]
    kept = hard_suppression(scores[chosen], boxes, arguments.number(8), last if last > 0 else -1)
    return chosen[kept], boxes[kept]


@np.errstate(all="ignore")
def _choose(arguments: Arguments) -> tuple[Array, Array, Array]:
    """Scores as they were given, boxes as real numbers, and batches of the proposals."""
    tensors = [arguments.tensor(index) for index in range(4)]
    values = [arguments.value(index) for index in range(4)]
    raw = _cells(arguments, 0, values[0]).reshape(values[0].shape[0], -1)
    scores = to_real(raw, tensors[0])
    deltas = to_real(_cells(arguments, 1, values[1]), tensors[1]).reshape(*raw.shape, 4)
    anchors, sizes = to_real(values[2], tensors[2]), to_real(values[3], tensors[3])
    check_boxes(arguments, 2, anchors)
    found = []
    for batch in range(raw.shape[0]):
        chosen, boxes = _choose_in_image(
            arguments, scores[batch], deltas[batch], anchors, sizes[batch, ::-1]
        )
        found.append((raw[batch, chosen], boxes, np.full(chosen.size, batch, np.int32)))
    first, second, third = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return first, second, third


def _infer(arguments: Arguments) -> list[Tensor]:
    scores, image = arguments.tensor(0), arguments.tensor(3)
    batches, height, width, anchors = _nhwc(arguments)
    nchw = arguments.flag(10)
    sides = (4 * anchors, height, width) if nchw else (height, width, 4 * anchors)
    arguments.check_shape(1, (batches, *sides))
    arguments.check_shape(2, (anchors, 4))
    arguments.check_shape(3, (batches, 2))
    check_box_scale(arguments, 2, 3)
    arguments.memo["chosen"] = _choose(arguments)
    count = arguments.memo["chosen"][0].size
    scale = BOX_SCALE if image.type == OperandType.TENSOR_QUANT16_ASYMM else 0.0
    return [
        like(scores, (count,)),
        Tensor(type=image.type, shape=(count, 4), scale=scale),
        Tensor(type=OperandType.TENSOR_INT32, shape=(count,)),
    ]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    scores, boxes, batches = arguments.memo["chosen"]
    return settled([scores, from_real(boxes, outputs[1]), batches])


def _signatures() -> list[Signature]:
    anchors = {OperandType.TENSOR_QUANT16_ASYMM: OperandType.TENSOR_QUANT16_SYMM}
    return [
        Signature(
            types.since,
            (
                Parameter("scores", types.data, ranks=(4,)),
                Parameter("deltas", types.data, ranks=(4,)),
                Parameter("anchors", anchors.get(types.boxes, types.boxes), ranks=(2,)),
                Parameter("image_info", types.boxes, ranks=(2,)),
                Parameter("height_stride", types.scalar),
                Parameter("width_stride", types.scalar),
                Parameter("pre_nms_top_n", OperandType.INT32),
                Parameter("post_nms_top_n", OperandType.INT32),
                Parameter("iou_threshold", types.scalar),
                Parameter("min_size", types.scalar),
                Parameter("is_nchw", OperandType.BOOL),
            ),
            (
                Parameter("output_scores", types.data),
                Parameter("output_rois", types.boxes),
                Parameter("output_batch_indexes", OperandType.TENSOR_INT32),
            ),
        )
        for types in BOX_TYPES
    ]


GENERATE_PROPOSALS = Operation(
    OperationType.GENERATE_PROPOSALS, _signatures(), _infer, _prepare, facts=Facts(fragile=True)
)
