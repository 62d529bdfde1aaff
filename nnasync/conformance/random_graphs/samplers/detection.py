"""Samplers of operations on regions of images: pooling of regions, keypoints, boxes, proposals.

Boxes are [x1, y1, x2, y2] and lie within their image; quantized ones are in steps of 1/8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nnasync.conformance.random_graphs.operands import FLOATS
from nnasync.conformance.random_graphs.samplers.elementwise import any_tensor, not_too_fine
from nnasync.conformance.random_graphs.samplers.movement import layout
from nnasync.conformance.random_graphs.sketch import Pick, Quantization, Sampler
from nnasync.hal import Array, OperationType, Shape

_STEP = 0.125
_MARGIN = 0.99
"""Boxes end that far before their limits, so that rounding to float16 leaves them inside."""
_MOST_REGIONS = 12
_MOST_CLASSES = 6
_LARGEST_IMAGE = 200.0


def _box_quantization(pick: Pick, name: str) -> Quantization:
    return (0.0, 0) if pick.type_of(name) in FLOATS else (_STEP, 0)


def _give_real(pick: Pick, name: str, values: Array) -> None:
    """Give real numbers in the form of the parameter's type."""
    quantization = _box_quantization(pick, name)
    if quantization[0]:
        values = np.floor(values / _STEP)
    pick.values(name, values, quantization)


def _random_boxes(pick: Pick, shape: Shape, limits: Array) -> Array:
    """Boxes [..., 4] within limits (width, height) that broadcast."""
    corners = pick.numbers.random((*shape, 2, 2)) * limits[..., None, :] * _MARGIN
    corners = np.sort(corners, axis=-2)
    boxes: Array = corners.reshape(*shape, 4)
    return boxes


def _give_image_info(pick: Pick, batches: int) -> Array:
    """Gives the input "image_info" heights and widths of images, and returns these."""
    sizes = np.floor(10 + pick.numbers.random((batches, 2)) * (_LARGEST_IMAGE - 10))
    _give_real(pick, "image_info", sizes)
    return sizes


def _batch_indexes(pick: Pick, count: int, batches: int) -> Array:
    """Give the image of each region; those of one image follow each other."""
    indexes = np.sort(pick.numbers.integers(0, batches, count))
    pick.values("batch_indexes", indexes)
    return indexes


def _regions(pick: Pick) -> None:
    """ROI_ALIGN and ROI_POOLING."""
    nchw = layout(pick)
    source = any_tensor(pick, "input")
    shape = source.shape
    not_too_fine(pick, source)
    height, width = shape[2:] if nchw else shape[1:3]
    channels = shape[1] if nchw else shape[3]
    count = pick.integer(1, _MOST_REGIONS)
    bins = pick.integer(1, 4), pick.integer(1, 4)
    while count > 1 and count * bins[0] * bins[1] * channels > pick.limits.elements:
        count -= 1
    ratios = pick.choose((0.5, 1.0, 2.0, 3.0)), pick.choose((0.5, 1.0, 2.0, 3.0))
    limits = np.asarray([width * ratios[1], height * ratios[0]])
    _give_real(pick, "rois", _random_boxes(pick, (count,), limits))
    _batch_indexes(pick, count, shape[0])
    pick.scalar("output_height", bins[0])
    pick.scalar("output_width", bins[1])
    pick.scalar("height_ratio", ratios[0])
    pick.scalar("width_ratio", ratios[1])
    for name in ("height_sampling", "width_sampling"):
        if pick.has(name):
            pick.scalar(name, pick.integer(0, 3))


def _heatmap(pick: Pick) -> None:
    nchw = layout(pick)

    def sides(shape: Shape) -> tuple[int, int]:
        return (shape[2], shape[3]) if nchw else (shape[1], shape[2])

    def new() -> Shape:
        size = pick.integer(2, 10)
        count, keypoints = pick.integer(1, 4), pick.integer(1, 8)
        return (count, keypoints, size, size) if nchw else (count, size, size, keypoints)

    def fits(shape: Shape) -> bool:
        height, width = sides(shape)
        return height == width > 1

    count = pick.tensor("heatmaps", new, fits=fits).shape[0]
    limits = np.asarray([_LARGEST_IMAGE, _LARGEST_IMAGE])
    _give_real(pick, "boxes", _random_boxes(pick, (count,), limits))


def _transform(pick: Pick) -> None:
    def new() -> Shape:
        return pick.integer(1, _MOST_REGIONS), 4 * pick.integer(1, _MOST_CLASSES)

    count = pick.tensor("deltas", new, fits=lambda shape: shape[1] % 4 == 0).shape[0]
    batches = pick.integer(1, 4)
    sizes = _give_image_info(pick, batches)
    indexes = _batch_indexes(pick, count, batches)
    _give_real(pick, "rois", _random_boxes(pick, (count,), sizes[indexes, ::-1]))


def _non_maximum_suppression(pick: Pick) -> None:
    shape = pick.tensor(
        "scores",
        lambda: (pick.integer(1, 30), pick.integer(2, _MOST_CLASSES)),
        fits=lambda found: found[1] > 1 and 4 * found[0] * found[1] <= pick.limits.elements,
    ).shape
    limits = np.asarray([_LARGEST_IMAGE / 4, _LARGEST_IMAGE / 4])
    boxes = _random_boxes(pick, shape, limits)
    _give_real(pick, "rois", boxes.reshape(shape[0], -1))
    _batch_indexes(pick, shape[0], pick.integer(1, 3))
    pick.scalar("score_threshold", pick.uniform(-0.5, 0.5))
    pick.scalar("max_num_detections", pick.choose((-1, pick.integer(1, 20))))
    pick.scalar("soft_nms_kernel", pick.integer(0, 2))
    pick.scalar("iou_threshold", pick.uniform(0.1, 0.9))
    pick.scalar("sigma", pick.uniform(0.1, 1))
    pick.scalar("nms_score_threshold", pick.uniform(0, 0.5))
    _open_results(pick, ((0,), (0, 4), (0,), (0,)))


def _open_results(pick: Pick, shapes: Sequence[Shape]) -> None:
    """Scores, boxes and whatever follows, in numbers that depend on the values."""
    scores = pick.given("scores")
    pick.output(0, (scores.scale, scores.zero_point))
    pick.output(1, _box_quantization(pick, "image_info" if pick.has("image_info") else "rois"))
    for position, dimensions in enumerate(shapes):
        pick.unknown(position, dimensions)


def _proposals(pick: Pick) -> None:
    nchw = layout(pick)
    batches, anchors = pick.integer(1, 2), pick.integer(1, 4)
    height, width = pick.integer(1, 6), pick.integer(1, 6)

    def shape(channels: int) -> Shape:
        return (batches, channels, height, width) if nchw else (batches, height, width, channels)

    pick.tensor("scores", shape(anchors))
    pick.tensor("deltas", shape(4 * anchors))
    limits = np.asarray([_LARGEST_IMAGE / 4, _LARGEST_IMAGE / 4])
    _give_real(pick, "anchors", _random_boxes(pick, (anchors,), limits))
    _give_image_info(pick, batches)
    pick.scalar("height_stride", pick.choose((1.0, 4.0, 10.0)))
    pick.scalar("width_stride", pick.choose((1.0, 4.0, 10.0)))
    pick.scalar("pre_nms_top_n", pick.choose((-1, pick.integer(1, 50))))
    pick.scalar("post_nms_top_n", pick.choose((-1, pick.integer(1, 20))))
    pick.scalar("iou_threshold", pick.uniform(0.1, 0.9))
    pick.scalar("min_size", pick.uniform(0, 10))
    _open_results(pick, ((0,), (0, 4), (0,)))


def _postprocessing(pick: Pick) -> None:
    batches, anchors = pick.integer(1, 3), pick.integer(1, 20)
    pick.tensor("scores", (batches, anchors, pick.integer(2, _MOST_CLASSES)))
    pick.tensor("box_encodings", (batches, anchors, pick.integer(4, 6)))
    centers = pick.numbers.random((anchors, 4)) * 4 + 0.5
    pick.values("anchors", centers)
    for name in ("dy_scale", "dx_scale", "dh_scale", "dw_scale"):
        pick.scalar(name, pick.uniform(1, 10))
    pick.scalar("use_regular_nms", pick.chance(0.5))
    pick.scalar("max_num_detections", pick.integer(1, 10))
    pick.scalar("max_classes_per_detection", pick.integer(1, 3))
    pick.scalar("max_num_detections_per_class", pick.integer(1, 10))
    pick.scalar("score_threshold", pick.uniform(0, 0.5))
    pick.scalar("iou_threshold", pick.uniform(0.1, 0.9))
    pick.scalar("is_background_in_labels", pick.chance(0.5))


SAMPLERS: Mapping[OperationType, Sampler] = {
    OperationType.AXIS_ALIGNED_BBOX_TRANSFORM: _transform,
    OperationType.BOX_WITH_NMS_LIMIT: _non_maximum_suppression,
    OperationType.DETECTION_POSTPROCESSING: _postprocessing,
    OperationType.GENERATE_PROPOSALS: _proposals,
    OperationType.HEATMAP_MAX_KEYPOINT: _heatmap,
    OperationType.ROI_ALIGN: _regions,
    OperationType.ROI_POOLING: _regions,
}
