"""DETECTION_POSTPROCESSING: from scores and encoded boxes to a fixed number of detections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, OperandType, OperationType, Struct
from nnasync.kernels.detection.boxes import BOX_TYPES
from nnasync.kernels.detection.nms import best, hard_suppression
from nnasync.kernels.facts import Facts
from nnasync.kernels.operation import (
    Arguments,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
)

_SCALES = ("dy_scale", "dx_scale", "dh_scale", "dw_scale")
_LIMITS = ("max_num_detections", "max_classes_per_detection", "max_num_detections_per_class")


class _Options(Struct, frozen=True):
    """The scalars; `classes` is the number of classes that a detection of the fast mode states."""

    scales: tuple[float, ...]
    regular: bool
    detections: int
    classes: int
    per_class: int
    score_threshold: float
    iou_threshold: float
    first_label: int


def _options(arguments: Arguments) -> _Options:
    scales = tuple(arguments.number(index) for index in range(3, 7))
    for index, scale in enumerate(scales, 3):
        if not scale > 0:
            raise arguments.error(index, f"is {scale}, expected a positive one")
    thresholds = arguments.number(11), arguments.number(12)
    for index, threshold in enumerate(thresholds, 11):
        if not threshold >= 0:
            raise arguments.error(index, f"is {threshold}, expected at least 0")
    regular = arguments.flag(7)
    return _Options(
        scales,
        regular,
        arguments.integer(8, 1),
        arguments.integer(9, None if regular else 1),
        arguments.integer(10, 1 if regular else None),
        *thresholds,
        0 if arguments.flag(13) else 1,
    )


def _infer(arguments: Arguments) -> list[Tensor]:
    scores, encodings = arguments.tensor(0), arguments.tensor(1)
    batches, anchors, classes = scores.shape
    if classes < 2:
        raise arguments.error(0, f"has shape {scores.shape}, expected a background and a class")
    if encodings.shape[:2] != (batches, anchors) or encodings.shape[2] < 4:
        raise arguments.error(
            1, f"has shape {encodings.shape}, expected ({batches}, {anchors}, 4 or more)"
        )
    arguments.check_shape(2, (anchors, 4))
    options = _options(arguments)
    count = options.detections if options.regular else options.detections * options.classes
    return [
        Tensor(type=scores.type, shape=(batches, count)),
        Tensor(type=scores.type, shape=(batches, count, 4)),
        Tensor(type=OperandType.TENSOR_INT32, shape=(batches, count)),
        Tensor(type=OperandType.TENSOR_INT32, shape=(batches,)),
    ]


def _decode(encodings: Array, anchors: Array, scales: Array) -> Array:
    """Boxes [n, 4] as y1, x1, y2, x2 from encodings dy, dx, dh, dw relative to the anchors."""
    sizes = anchors[:, 2:]
    centers = anchors[:, :2] + sizes * encodings[:, :2] / scales[:2]
    halves = sizes * np.exp(encodings[:, 2:4] / scales[2:]) / 2
    return np.concatenate([centers - halves, centers + halves], axis=1)


def _choose_by_class(options: _Options, scores: Array, boxes: Array) -> tuple[Array, Array]:
    """Anchors and classes of the detections, each class suppressed for itself."""
    anchors, labels = [], []
    for label in range(1, scores.shape[1]):
        candidates = np.flatnonzero(scores[:, label] > options.score_threshold)
        chosen = hard_suppression(
            scores[candidates, label], boxes[candidates], options.iou_threshold, options.per_class
        )
        anchors.append(candidates[chosen])
        labels.append(np.full(chosen.size, label))
    found = np.concatenate(anchors), np.concatenate(labels)
    kept = best(scores[found], options.detections)
    return found[0][kept], found[1][kept]


def _choose_by_anchor(options: _Options, scores: Array, boxes: Array) -> tuple[Array, Array]:
    """Anchors and classes of the detections: anchors compete, and the best state some classes."""
    objects = scores[:, 1:]
    highest = objects.max(axis=1)
    candidates = np.flatnonzero(highest > options.score_threshold)
    chosen = candidates[
        hard_suppression(
            highest[candidates], boxes[candidates], options.iou_threshold, options.detections
        )
    ]
    classes = min(objects.shape[1], options.classes)
    labels = np.argsort(-objects[chosen], axis=1, kind="stable")[:, :classes] + 1
    return np.repeat(chosen, classes), labels.reshape(-1)


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    options = _options(arguments)
    scales = np.asarray(options.scales, np.float32)
    choose = _choose_by_class if options.regular else _choose_by_anchor

    @np.errstate(all="ignore")
    def detect(scores: Array, encodings: Array, anchors: Array, outputs: list[Array]) -> None:
        boxes = _decode(encodings, anchors, scales)
        chosen, labels = choose(options, scores, boxes)
        count = chosen.size
        outputs[0][:count] = scores[chosen, labels]
        outputs[1][:count] = boxes[chosen]
        outputs[2][:count] = labels - options.first_label
        for output in outputs[:3]:
            output[count:] = 0
        outputs[3][...] = count

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        scores, encodings, anchors = inputs[:3]

        def step() -> None:
            for batch in range(scores.shape[0]):
                targets = [*(output[batch] for output in outputs[:3]), outputs[3][batch:][:1]]
                detect(scores[batch], encodings[batch], anchors, targets)

        return step

    return Kernel(bind)


def _signatures() -> list[Signature]:
    integers = OperandType.TENSOR_INT32
    return [
        Signature(
            types.since,
            (
                Parameter("scores", types.data, ranks=(3,)),
                Parameter("box_encodings", types.data, ranks=(3,)),
                Parameter("anchors", types.data, ranks=(2,)),
                *(Parameter(name, types.scalar) for name in _SCALES),
                Parameter("use_regular_nms", OperandType.BOOL),
                *(Parameter(name, OperandType.INT32) for name in _LIMITS),
                Parameter("score_threshold", types.scalar),
                Parameter("iou_threshold", types.scalar),
                Parameter("is_background_in_labels", OperandType.BOOL),
            ),
            (
                Parameter("output_scores", types.data),
                Parameter("output_boxes", types.data),
                Parameter("output_classes", integers),
                Parameter("output_counts", integers),
            ),
        )
        for types in BOX_TYPES
        if types.data == types.boxes
    ]


DETECTION_POSTPROCESSING = Operation(
    OperationType.DETECTION_POSTPROCESSING,
    _signatures(),
    _infer,
    _prepare,
    facts=Facts(fragile=True),
)
