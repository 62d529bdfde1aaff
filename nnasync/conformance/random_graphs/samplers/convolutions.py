"""Samplers of convolutions, poolings, matrix products and resizing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from nnasync.conformance.random_graphs.graph import GraphOperand
from nnasync.conformance.random_graphs.operands import FLOATS, LARGEST_SCALE
from nnasync.conformance.random_graphs.samplers.elementwise import activation, any_tensor
from nnasync.conformance.random_graphs.samplers.movement import divisors, layout
from nnasync.conformance.random_graphs.sketch import Pick, Sampler
from nnasync.hal import OperandType, OperationType, PaddingScheme

_LARGEST_FILTER = 5
_LARGEST_STRIDE = 3
_SCHEMES = (PaddingScheme.SAME, PaddingScheme.VALID)
_PER_CHANNEL = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL


class _Image:
    """The image that a window slides over, in the order of its layout."""

    def __init__(self, pick: Pick) -> None:
        self.nchw = layout(pick)
        self.operand = any_tensor(pick, "input")
        shape = self.operand.shape
        self.batches = shape[0]
        self.height, self.width = shape[2:] if self.nchw else shape[1:3]
        self.channels = shape[1] if self.nchw else shape[3]


def _extents(pick: Pick, image: _Image) -> tuple[int, int, int, int]:
    """Filter sizes and dilations, height before width, so that the window fits into the image."""
    dilations = [1, 1]
    if pick.has("dilation_width"):
        dilations = [pick.integer(1, 3), pick.integer(1, 3)]
        pick.scalar("dilation_height", dilations[0])
        pick.scalar("dilation_width", dilations[1])
    filters = [
        pick.small(min(_LARGEST_FILTER, (size - 1) // dilation + 1))
        for size, dilation in zip((image.height, image.width), dilations, strict=True)
    ]
    return filters[0], filters[1], dilations[0], dilations[1]


def _slide(pick: Pick, extents: tuple[int, int, int, int]) -> None:
    """Give strides, and paddings that are smaller than the window."""
    rows, columns, down, across = extents
    if pick.has("padding_scheme"):
        pick.scalar("padding_scheme", pick.choose(_SCHEMES))
    else:
        extent = {"left": (columns - 1) * across, "top": (rows - 1) * down}
        extent |= {"right": extent["left"], "bottom": extent["top"]}
        for side, highest in extent.items():
            pick.scalar(f"padding_{side}", pick.integer(0, highest))
    pick.scalar("stride_width", pick.integer(1, _LARGEST_STRIDE))
    pick.scalar("stride_height", pick.integer(1, _LARGEST_STRIDE))


def _filter(
    pick: Pick, shape: tuple[int, ...], outputs: int, *, name: str = "filter", axis: int = 0
) -> None:
    """Give filter and bias, and mostly an output scale that fits the sums."""
    source = pick.given("input")
    terms = math.prod(shape) // outputs
    if pick.type_of(name) == _PER_CHANNEL:
        filter = pick.channels(name, shape, axis)
        pick.tensor("bias", (outputs,), quantization=(0.0, 0))
        scales = filter.channel_quant.scales if filter.channel_quant else ()
        _fit_output(pick, source, max(scales), terms)
        return
    filter = pick.tensor(name, shape)
    product = float(np.float32(source.scale) * np.float32(filter.scale))
    pick.tensor("bias", (outputs,), quantization=(product, 0))
    _fit_output(pick, source, filter.scale, terms)


def _fit_output(pick: Pick, source: GraphOperand, scale: float, terms: int) -> None:
    """A scale with which sums of that many random products are spread over the output's range."""
    if source.type in FLOATS or pick.chance(0.25):
        return
    spread = source.scale * scale * math.sqrt(terms) * pick.uniform(32, 128)
    spread = min(spread, LARGEST_SCALE)
    pick.output(0, (float(np.float32(spread)), pick.quantization(source.type)[1]))


def _largest(pick: Pick, terms: int, pixels: int) -> int:
    """Returns how many outputs a filter may have: filter and output keep to the limits."""
    return min(pick.limits.dimension, pick.limits.elements // max(terms, pixels))


def _convolution(pick: Pick) -> None:
    image = _Image(pick)
    extents = _extents(pick, image)
    channels, groups = image.channels, 1
    if pick.has("groups"):
        groups = pick.choose(divisors(channels))
        pick.scalar("groups", groups)
    terms = extents[0] * extents[1] * channels // groups
    pixels = image.batches * image.height * image.width
    outputs = groups * pick.small(_largest(pick, terms, pixels) // groups)
    _filter(pick, (outputs, extents[0], extents[1], channels // groups), outputs)
    _slide(pick, extents)
    activation(pick)


def _depthwise(pick: Pick) -> None:
    image = _Image(pick)
    extents = _extents(pick, image)
    terms = extents[0] * extents[1] * image.channels
    pixels = image.batches * image.height * image.width * image.channels
    multiplier = pick.small(min(8, _largest(pick, terms, pixels)))
    outputs = image.channels * multiplier
    _filter(pick, (1, extents[0], extents[1], outputs), outputs, axis=3)
    pick.scalar("depth_multiplier", multiplier)
    _slide(pick, extents)
    activation(pick)


def _transpose_convolution(pick: Pick) -> None:
    """The output's size follows from padding and strides; the shape that is given just pads."""
    image = _Image(pick)
    rows, columns = pick.integer(1, _LARGEST_FILTER), pick.integer(1, _LARGEST_FILTER)
    strides = pick.integer(1, _LARGEST_STRIDE), pick.integer(1, _LARGEST_STRIDE)
    sizes = [
        (size - 1) * stride + filter
        for size, stride, filter in zip(
            (image.height, image.width), strides, (rows, columns), strict=True
        )
    ]
    pixels = image.batches * sizes[0] * sizes[1]
    outputs = pick.small(_largest(pick, rows * columns * image.channels, pixels))
    _filter(pick, (outputs, rows, columns, image.channels), outputs)
    if pick.has("output_shape"):
        _give_output_shape(pick, image, strides, outputs)
    else:
        left, top = pick.integer(0, (columns - 1) // 2), pick.integer(0, (rows - 1) // 2)
        ends = {"left": left, "right": pick.integer(-1, (columns - 1) // 2)}
        ends |= {"top": top, "bottom": pick.integer(-1, (rows - 1) // 2)}
        for side, padding in ends.items():
            pick.scalar(f"padding_{side}", padding)
    pick.scalar("stride_height", strides[0])
    pick.scalar("stride_width", strides[1])
    activation(pick)


def _give_output_shape(pick: Pick, image: _Image, strides: tuple[int, int], outputs: int) -> None:
    """A shape that SAME padding would have come from, and the scheme."""
    height, width = (
        size * stride - pick.integer(0, stride - 1)
        for size, stride in zip((image.height, image.width), strides, strict=True)
    )
    shape = [image.batches, height, width, outputs]
    if image.nchw:
        shape = [image.batches, outputs, height, width]
    pick.integers("output_shape", shape)
    pick.scalar("padding_scheme", pick.choose(_SCHEMES))


def _fully_connected(pick: Pick) -> None:
    shape = any_tensor(pick, "input").shape
    size = math.prod(shape)
    terms = pick.choose((shape[-1], pick.choose(divisors(size, 100))))
    units = pick.small(_largest(pick, terms, size // terms))
    _filter(pick, (units, terms), units, name="weights")
    activation(pick)


def _pooling(pick: Pick) -> None:
    image = _Image(pick)
    extents = _extents(pick, image)
    pick.scalar("filter_height", extents[0])
    pick.scalar("filter_width", extents[1])
    _slide(pick, extents)
    activation(pick)


def _resize(pick: Pick) -> None:
    image = _Image(pick)
    room = pick.limits.elements // (image.batches * image.channels)
    height = pick.small(min(room, 4 * image.height))
    width = pick.small(min(room // height, 4 * image.width))
    for name, size, before in (("height", height, image.height), ("width", width, image.width)):
        if pick.type_of(name) == OperandType.INT32:
            pick.scalar(name, size)
        else:
            pick.scalar(name, (size + pick.uniform(0.25, 0.75)) / before)
    aligned = pick.chance(0.4)
    if pick.has("align_corners"):
        pick.scalar("align_corners", aligned)
    if pick.has("half_pixel_centers"):
        pick.scalar("half_pixel_centers", not aligned and pick.chance(0.5))


SAMPLERS: Mapping[OperationType, Sampler] = {
    OperationType.AVERAGE_POOL_2D: _pooling,
    OperationType.CONV_2D: _convolution,
    OperationType.DEPTHWISE_CONV_2D: _depthwise,
    OperationType.FULLY_CONNECTED: _fully_connected,
    OperationType.GROUPED_CONV_2D: _convolution,
    OperationType.L2_POOL_2D: _pooling,
    OperationType.MAX_POOL_2D: _pooling,
    OperationType.RESIZE_BILINEAR: _resize,
    OperationType.RESIZE_NEAREST_NEIGHBOR: _resize,
    OperationType.TRANSPOSE_CONV_2D: _transpose_convolution,
}
