"""BOX_WITH_NMS_LIMIT and the suppression of boxes that overlap better ones.

Hard suppression drops a box that overlaps a chosen one. Soft suppression lowers its score instead,
the more the two overlap, and drops it when the score falls below a limit. Of equal scores the
earlier box counts as the better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels.detection.boxes import BOX_TYPES, check_box_scale, overlap
from nnasync.kernels.detection.reals import from_real, to_real
from nnasync.kernels.facts import Facts
from nnasync.kernels.movement.copying import like
from nnasync.kernels.operation import (
    Arguments,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
)
from nnasync.kernels.steps import copy, sequence

_BLOCK = 64
"""So many boxes are compared with all others at once."""
_ALL_PAIRS = 256
"""Up to so many boxes all are compared with all."""

Decay = Callable[[Array], Array]
"""From the overlap with a chosen box to what the scores are multiplied with."""
Suppression = Callable[[Array, Array], tuple[Array, Array]]
"""From scores and boxes of one class to the indexes of those chosen and their scores."""


def best(scores: Array, limit: int) -> Array:
    """Indexes of the `limit` highest scores in falling order; below 0 is no limit."""
    order = np.argsort(-scores, kind="stable")
    return order if limit < 0 else order[:limit]


def hard_suppression(scores: Array, boxes: Array, threshold: float, limit: int) -> Array:
    """Indexes of boxes [n, 4] in falling order of their scores, without those that are dropped.

    A box is dropped when its intersection over union with a better one reaches the threshold. At
    most `limit` are chosen; below 0 is no limit.
    """
    order = best(scores, -1)
    corners = np.ascontiguousarray(boxes[order].T)
    chosen: list[int] = []
    while order.size and len(chosen) != limit:
        block = corners[:, :_BLOCK]
        kept = _first_apart(overlap(block, block) < threshold)
        kept = kept if limit < 0 else kept[: limit - len(chosen)]
        chosen += order[kept].tolist()
        apart = (overlap(block[:, kept], corners[:, _BLOCK:]) < threshold).all(axis=0)
        rest = np.flatnonzero(apart) + block.shape[1]
        order, corners = order[rest], corners[:, rest]
    return np.asarray(chosen, np.intp)


def _first_apart(apart: Array) -> list[int]:
    """Indexes of boxes, from the first on, that are apart [n, n] from all chosen before."""
    chosen: list[int] = []
    free = np.ones(len(apart), np.bool_)
    for index in range(len(apart)):
        if free[index]:
            chosen.append(index)
            free &= apart[index]
    return chosen


def soft_suppression(
    scores: Array, boxes: Array, decay: Decay, lowest: float, limit: int
) -> tuple[Array, Array]:
    """Indexes of chosen boxes [n, 4] in the order of choice, and their scores when chosen.

    Each choice lowers the scores of the others; those below `lowest` are dropped. At most `limit`
    are chosen; below 0 is no limit.
    """
    places = np.arange(scores.size)
    corners = np.ascontiguousarray(boxes.T)
    pairs = overlap(corners, corners) if scores.size <= _ALL_PAIRS else None
    chosen: list[int] = []
    values: list[float] = []
    while places.size and len(chosen) != limit:
        top = int(scores.argmax())
        place = int(places[top])
        chosen.append(place)
        values.append(float(scores[top]))
        if pairs is None:
            near = overlap(corners[:, place, None], corners[:, places])[0]
        else:
            near = pairs[place, places]
        scores = scores * decay(near)
        kept = ~(scores < lowest)
        kept[top] = False
        rest = np.flatnonzero(kept)
        places, scores = places[rest], scores[rest]
    return np.asarray(chosen, np.intp), np.asarray(values, np.float32)


def settled(arrays: Sequence[Array]) -> Kernel:
    """The kernel of an operation whose rule had to compute the outputs to know their shapes."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        return sequence([copy(*pair) for pair in zip(outputs, arrays, strict=True)])

    return Kernel(bind)


def _suppression(arguments: Arguments) -> Suppression:
    threshold, limit, lowest = arguments.number(3), arguments.integer(4), arguments.number(8)
    kernel, apart, sigma = arguments.integer(5), arguments.number(6), arguments.number(7)
    if kernel not in (0, 1, 2):
        raise arguments.error(5, f"is {kernel}, expected 0 (hard), 1 (linear) or 2 (gaussian)")
    if kernel == 2 and not sigma > 0:
        raise arguments.error(7, f"is {sigma}, expected a positive one")

    def hard(scores: Array, boxes: Array) -> tuple[Array, Array]:
        chosen = hard_suppression(scores, boxes, apart, limit)
        return chosen, scores[chosen]

    def decay(near: Array) -> Array:
        if kernel == 2:
            return np.exp(-(near * near) / np.float32(sigma))
        return np.where(near < apart, np.float32(1), 1 - near if kernel else np.float32(0))

    def soft(scores: Array, boxes: Array) -> tuple[Array, Array]:
        return soft_suppression(scores, boxes, decay, lowest, limit)

    return hard if kernel == 0 and 0 < lowest <= threshold else soft


def _choose_in_image(
    arguments: Arguments, suppress: Suppression, scores: Array, boxes: Array
) -> tuple[Array, ...]:
    """Returns boxes, classes and scores for one image's scores and boxes [n, classes, 4]."""
    threshold, limit = arguments.number(3), arguments.integer(4)
    rows, classes, values = [], [], []
    for label in range(1, scores.shape[1]):
        candidates = np.flatnonzero(scores[:, label] > threshold)
        chosen, decayed = suppress(scores[candidates, label], boxes[candidates, label])
        rows.append(candidates[chosen])
        classes.append(np.full(chosen.size, label, np.int32))
        values.append(decayed)
    found = [np.concatenate(parts) for parts in (rows, classes, values)]
    kept = best(found[2], limit)
    kept = kept[np.lexsort((-found[2][kept], found[1][kept]))]
    return tuple(part[kept] for part in found)


@np.errstate(all="ignore")
def _choose(arguments: Arguments) -> tuple[Array, ...]:
    """Boxes, classes, scores and images of all that is put out."""
    tensors = arguments.tensor(0), arguments.tensor(1)
    batches = arguments.value(2)
    scores = to_real(arguments.value(0), tensors[0])
    boxes = to_real(arguments.value(1), tensors[1]).reshape(*scores.shape, 4)
    starts = [0, *(np.flatnonzero(np.diff(batches)) + 1).tolist()]
    suppress = _suppression(arguments)
    found = []
    for start, stop in zip(starts, [*starts[1:], batches.size], strict=True):
        rows, *rest = _choose_in_image(arguments, suppress, scores[start:stop], boxes[start:stop])
        found.append((rows + start, *rest, np.full(rows.size, batches[start])))
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


def _infer(arguments: Arguments) -> list[Tensor]:
    scores, boxes = arguments.tensor(0), arguments.tensor(1)
    rows, classes = scores.shape
    if classes < 2:
        raise arguments.error(0, f"has shape {scores.shape}, expected a background and a class")
    arguments.check_shape(1, (rows, 4 * classes))
    arguments.check_shape(2, (rows,))
    check_box_scale(arguments, 1)
    count = 0
    if rows:
        arguments.memo["chosen"] = _choose(arguments)
        count = arguments.memo["chosen"][0].size
    labels = Tensor(type=OperandType.TENSOR_INT32, shape=(count,))
    return [
        like(scores, (count,)),
        Tensor(type=boxes.type, shape=(count, 4), scale=boxes.scale),
        labels,
        labels,
    ]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    rows, classes, scores, batches = arguments.memo["chosen"]
    boxes = arguments.value(1).reshape(*arguments.tensor(0).shape, 4)[rows, classes]
    return settled([from_real(scores, outputs[0]), boxes, classes, batches])


def _signatures() -> list[Signature]:
    labels = OperandType.TENSOR_INT32
    return [
        Signature(
            types.since,
            (
                Parameter("scores", types.data, ranks=(2,)),
                Parameter("rois", types.boxes, ranks=(2,)),
                Parameter("batch_indexes", labels, ranks=(1,)),
                Parameter("score_threshold", types.scalar),
                Parameter("max_num_detections", OperandType.INT32),
                Parameter("soft_nms_kernel", OperandType.INT32),
                Parameter("iou_threshold", types.scalar),
                Parameter("sigma", types.scalar),
                Parameter("nms_score_threshold", types.scalar),
            ),
            (
                Parameter("output_scores", types.data),
                Parameter("output_rois", types.boxes),
                Parameter("output_classes", labels),
                Parameter("output_batch_indexes", labels),
            ),
        )
        for types in BOX_TYPES
    ]


BOX_WITH_NMS_LIMIT = Operation(
    OperationType.BOX_WITH_NMS_LIMIT,
    _signatures(),
    _infer,
    _prepare,
    empty=True,
    facts=Facts(fragile=True),
)
