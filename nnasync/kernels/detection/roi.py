"""ROI_ALIGN and ROI_POOLING: parts of a feature map, each brought to the same height and width.

Both divide a region into bins. ROI_ALIGN takes the mean of points in each bin, interpolated between
four cells; ROI_POOLING takes the largest of all cells that the bin touches. For floats the
interpolation is two products with matrices that hold the weights along each axis. The quantized
rule rounds each of the four weights to 1/255, so it gathers the cells and sums integers. Where the
channels come first the feature map is first copied so that they come last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, OperandType, OperationType, Shape, Struct, is_quantized
from nnasync.kernels.detection.boxes import (
    BOX_TYPES,
    check_batches,
    check_box_scale,
    check_boxes,
)
from nnasync.kernels.detection.reals import to_real
from nnasync.kernels.fixed_point import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    rounding_divide_by_pot,
)
from nnasync.kernels.movement.copying import like
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
)
from nnasync.kernels.steps import blocks

_WEIGHT_STEPS = 255
_MAXIMUM_POINTS = 1 << 16
"""Along one axis, where the model states them: it must not make us busy without end."""


class _Points(Struct, frozen=True, eq=False):
    """Points along one axis, bin after bin: each lies between cells `low` and `high`."""

    bins: int
    low: Array
    high: Array
    fraction: Array

    @property
    def per_bin(self) -> int:
        """Points of one bin."""
        return self.low.size // self.bins

    @property
    def cells(self) -> slice:
        """The cells that the points need."""
        return slice(int(self.low[0]), int(self.high[-1]) + 1)

    def matrix(self) -> Array:
        """Weights [bins, cells] that make the means of the bins."""
        width = self.cells.stop - self.cells.start
        row = np.arange(self.low.size) // self.per_bin * width - self.cells.start
        fraction = self.fraction.astype(np.float64)
        places = np.concatenate([row + self.low, row + self.high])
        weights = np.concatenate([1 - fraction, fraction]) / self.per_bin
        table = np.bincount(places, weights, minlength=self.bins * width)
        return table.reshape(self.bins, width).astype(np.float32)


def _points(start: Any, end: Any, size: int, bins: int, samples: int) -> _Points:
    """The points of bins between two coordinates on an axis of `size` cells, all in float32."""
    step = np.maximum(end - start, np.float32(1)) / np.float32(bins)
    count = samples or int(np.ceil(step))
    part = step / np.float32(count)
    begins = start + np.arange(bins, dtype=np.float32) * step
    inside = part / 2 + part * np.arange(count, dtype=np.float32)
    places = (begins[:, None] + inside).reshape(-1)
    low = np.minimum(places.astype(np.intp), size - 1)
    high = np.minimum(low + 1, size - 1)
    fraction = np.where(high > low, places - np.floor(places), np.float32(0))
    return _Points(bins, low, high, fraction)


class _Regions:
    """What both operations read of their arguments, and the checks that need values."""

    def __init__(self, arguments: Arguments) -> None:
        source = arguments.tensor(0)
        shape = source.shape
        self._arguments = arguments
        self.dtype = source.dtype
        self.nchw = arguments.flag(len(arguments) - 1)
        self.batches = shape[0]
        self.sizes = shape[2:] if self.nchw else shape[1:3]
        self.channels = shape[1] if self.nchw else shape[3]
        self.bins = arguments.integer(3, 1), arguments.integer(4, 1)
        self.ratios = arguments.number(5), arguments.number(6)
        for index, ratio in enumerate(self.ratios, 5):
            if not 0 < ratio < np.inf:
                raise arguments.error(index, f"is {ratio}, expected a positive one")
        if 0 in shape[1:]:
            raise arguments.error(0, f"has shape {shape}, which only may have no batches")

    def shape(self, count: int) -> Shape:
        """Shape of the output for a number of regions."""
        if self.nchw:
            return (count, self.channels, *self.bins)
        return (count, *self.bins, self.channels)

    def coordinates(self, rois: Array, batches: Array) -> Array:
        """The regions [n, 4] in cells of the feature map, after all checks."""
        arguments = self._arguments
        boxes = to_real(rois, arguments.tensor(1))
        check_batches(arguments, 2, batches, self.batches)
        check_boxes(arguments, 1, boxes)
        ratios = np.asarray(self.ratios[::-1], np.float32)
        limits = np.asarray(self.sizes[::-1], np.float32) * ratios
        outside = ~((boxes[:, :2] >= 0) & (boxes[:, 2:] <= limits)).all(axis=1)
        if outside.any():
            first = int(np.flatnonzero(outside)[0])
            raise arguments.error(
                1, f"region {first} is {boxes[first].tolist()}, expected within {limits.tolist()}"
            )
        found: Array = boxes / np.tile(ratios, 2)
        return found

    def channels_last(self, array: Array) -> Array:
        """A view of features or outputs with the channels last."""
        return np.moveaxis(array, 1, 3) if self.nchw else array


Fill = Callable[[Array, Array, Array], None]
"""Writes one output [height, width, channels] from an image of that layout and a region [4]."""
Combine = Callable[[Array, Array, _Points, _Points], None]
"""Writes one output from the cells that the points need, and the points along height and width."""


def _kernel(regions: _Regions, fill: Fill) -> Kernel:
    """The kernel that fills an output for each region."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        images, targets = (regions.channels_last(array) for array in (inputs[0], outputs[0]))
        rois, batches = inputs[1:3]
        given = images
        if scratch:
            images = scratch[0]

        def step() -> None:
            if images is not given:
                np.copyto(images, given)
            for index, region in enumerate(regions.coordinates(rois, batches)):
                fill(targets[index], images[batches[index]], region)

        return step

    spec = ArraySpec((regions.batches, *regions.sizes, regions.channels), regions.dtype)
    return Kernel(bind, [spec] if regions.nchw else [])


def _infer(arguments: Arguments) -> tuple[_Regions, Shape]:
    count = arguments.tensor(1).shape[0]
    arguments.check_shape(1, (count, 4))
    arguments.check_shape(2, (count,))
    check_box_scale(arguments, 1)
    regions = _Regions(arguments)
    return regions, regions.shape(count)


def _infer_pooling(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    _, shape = _infer(arguments)
    return [like(source, shape)]


def _bins(start: Any, end: Any, size: int, bins: int) -> tuple[Array, Array]:
    """First cells of the bins, and those after their last, cut at the size of the map."""
    first, last = np.floor(np.asarray([start, end], np.float64) + 0.5)
    step = np.float32(max(last - first + 1, 1)) / np.float32(bins)
    edges = np.arange(bins + 1, dtype=np.float32) * step + np.float32(first)
    starts, stops = np.floor(edges[:-1]), np.ceil(edges[1:])
    return np.minimum(starts, size).astype(np.intp), np.minimum(stops, size).astype(np.intp)


def _largest(array: Array, starts: Array, stops: Array, axis: int) -> Array:
    """The largest elements of ranges along an axis; arbitrary where a range is empty."""
    offsets = np.arange(max(int((stops - starts).max()), 1))
    places = np.minimum(starts[:, None] + offsets, np.maximum(stops - 1, 0)[:, None])
    largest: Array = np.take(array, places, axis=axis).max(axis=axis + 1)
    return largest


def _prepare_pooling(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    regions = _Regions(arguments)
    empty = np.asarray(outputs[0].zero_point, outputs[0].dtype)
    (height, width), (rows, columns) = regions.sizes, regions.bins

    def fill(target: Array, image: Array, region: Array) -> None:
        vertical = _bins(region[1], region[3], height, rows)
        horizontal = _bins(region[0], region[2], width, columns)
        left = min(horizontal[0][0], width - 1)
        part = image[:, left : max(horizontal[1][-1], left + 1)]
        largest = _largest(part, *vertical, axis=0)
        largest = _largest(largest, horizontal[0] - left, horizontal[1] - left, axis=1)
        filled = np.logical_and.outer(*(stops > starts for starts, stops in (vertical, horizontal)))
        target[...] = np.where(filled[..., None], largest, empty)

    return _kernel(regions, fill)


def _samples(arguments: Arguments) -> tuple[int, int]:
    """Points of a bin along height and width; 0 for as many as the bin has cells."""
    samples = arguments.integer(7, 0), arguments.integer(8, 0)
    for index, count in enumerate(samples):
        points = max(count, 1) * arguments.integer(3 + index)
        if points > _MAXIMUM_POINTS:
            raise arguments.error(
                7 + index, f"asks for {points} points in a row, expected at most {_MAXIMUM_POINTS}"
            )
    return samples


def _infer_align(arguments: Arguments) -> list[Tensor]:
    _, shape = _infer(arguments)
    _samples(arguments)
    return [Tensor(type=arguments.tensor(0).type, shape=shape)]


def _prepare_align(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    regions, samples = _Regions(arguments), _samples(arguments)
    (height, width), (rows, columns) = regions.sizes, regions.bins
    combine: Combine = _combine_floats
    if is_quantized(outputs[0].type):
        combine = _combine_quantized(arguments, outputs[0])

    def fill(target: Array, image: Array, region: Array) -> None:
        y = _points(region[1], region[3], height, rows, samples[0])
        x = _points(region[0], region[2], width, columns, samples[1])
        combine(target, image[y.cells, x.cells], y, x)

    return _kernel(regions, fill)


def _combine_floats(target: Array, part: Array, y: _Points, x: _Points) -> None:
    """Means of the points of each bin; `part` holds just the cells that they need."""
    across = np.matmul(x.matrix(), part)
    means = np.matmul(y.matrix(), across.reshape(part.shape[0], -1))
    target[...] = means.reshape(target.shape)


def _combine_quantized(arguments: Arguments, output: Tensor) -> Combine:
    source = arguments.tensor(0)
    limits = np.iinfo(output.dtype)
    scale = float(np.float32(source.scale)) / _WEIGHT_STEPS / float(np.float32(output.scale))
    farthest = max(source.zero_point - limits.min, limits.max - source.zero_point)

    def combine(target: Array, part: Array, y: _Points, x: _Points) -> None:
        points = y.per_bin * x.per_bin
        if not scale / points < 1:
            raise arguments.fail(
                f"input scale / 255 / output scale / {points} points is {scale / points},"
                " expected less than 1"
            )
        q, shift = quantize_multiplier(scale / points)
        spare = max((points * (_WEIGHT_STEPS + 2) * farthest).bit_length() - 31, 0)
        sums = _weighted_sums(part.astype(np.int32) - source.zero_point, y, x)
        sums = rounding_divide_by_pot(sums, spare)
        steps = multiply_by_quantized_multiplier(sums, q, shift + spare) + output.zero_point
        target[...] = np.clip(steps, limits.min, limits.max)

    return combine


def _weighted_sums(part: Array, y: _Points, x: _Points) -> Array:
    """Sums [height, width, channels] over the points of each bin, of cells times weights."""
    channels = part.shape[2]
    sums = np.empty((y.low.size, x.bins, channels), np.int64)
    for rows in blocks(y.low.size, x.low.size * channels):
        points = np.zeros((rows.stop - rows.start, x.low.size, channels), np.int32)
        for row, row_weight in _sides(y, rows):
            cells = part[row]
            for column, column_weight in _sides(x, slice(None)):
                exact = np.multiply.outer(row_weight, column_weight) * np.float32(_WEIGHT_STEPS)
                weights = np.floor(exact + np.float32(0.5)).astype(np.int32)
                points += cells[:, column] * weights[..., None]
        sums[rows] = points.reshape(-1, x.bins, x.per_bin, channels).sum(axis=2)
    total: Array = sums.reshape(y.bins, y.per_bin, x.bins, channels).sum(axis=1)
    return total


def _sides(points: _Points, part: slice) -> list[tuple[Array, Array]]:
    """The two cells beside each point, as indexes into the cells needed, and their weights."""
    first, fraction = points.cells.start, points.fraction[part]
    return [
        (points.low[part] - first, np.float32(1) - fraction),
        (points.high[part] - first, fraction),
    ]


def _signatures(*options: str) -> list[Signature]:
    return [
        Signature(
            types.since,
            (
                Parameter("input", types.data, ranks=(4,)),
                Parameter("rois", types.boxes, ranks=(2,)),
                Parameter("batch_indexes", OperandType.TENSOR_INT32, ranks=(1,)),
                Parameter("output_height", OperandType.INT32),
                Parameter("output_width", OperandType.INT32),
                Parameter("height_ratio", types.scalar),
                Parameter("width_ratio", types.scalar),
                *(Parameter(name, OperandType.INT32) for name in options),
                Parameter("is_nchw", OperandType.BOOL),
            ),
            (Parameter("output", types.data),),
        )
        for types in BOX_TYPES
    ]


ROI_ALIGN = Operation(
    OperationType.ROI_ALIGN,
    _signatures("height_sampling", "width_sampling"),
    _infer_align,
    _prepare_align,
    empty=True,
)
ROI_POOLING = Operation(OperationType.ROI_POOLING, _signatures(), _infer_pooling, _prepare_pooling)
