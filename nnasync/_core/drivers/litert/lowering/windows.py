"""Convolutions, fully connected layers and resizing.

The engine's kernels take int8 weights whose zero point is 0, and per-channel weights only with int8
data. Where a model has it otherwise, data (and weights) are shifted by 128 to the other 8-bit type,
which changes no value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.lowering.channel_order import Body, channels_last
from nnasync._core.drivers.litert.lowering.padding import VALID, windowed
from nnasync._core.drivers.litert.node import Node
from nnasync._core.drivers.litert.operands import reshaped, retyped
from nnasync.hal import ChannelQuant, OperandType, OperationType, is_quantized
from nnasync.kernels import Tensor
from nnasync.kernels.windows.resize import Places
from nnasync.kernels.windows.window import filter_window

_Q8, _Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_QPC = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL


def data_type(node: Node) -> OperandType | None:
    """The 8-bit type in which the engine convolves; None for real numbers."""
    data, filter = node.tensor(0), node.tensor(1)
    if not is_quantized(data.type):
        return None
    if filter.type == _QPC:
        return _Q8S
    if filter.type == _Q8S and filter.zero_point:
        return _Q8
    return OperandType(filter.type)


def _weights(graph: LiteRTGraph, node: Node, type: OperandType | None) -> int:
    """The tensor of the weights in a form that goes with data of this type."""
    filter = node.tensor(1)
    if type is None or filter.type in (type, _QPC):
        return graph.input(node, 1)
    other = retyped(filter, type)
    if other.value is not None:
        return graph.add(other)
    return graph.quantized(graph.input(node, 1), other)


def _bias(graph: LiteRTGraph, node: Node) -> int:
    """The tensor of the bias, with the scales that the engine wants to see."""
    bias, filter = node.tensor(2), node.tensor(1)
    if filter.channel_quant is None or bias.value is None:
        return graph.input(node, 2)
    return graph.add(scaled_bias(node.tensor(0), filter, bias))


def scaled_bias(data: Tensor, filter: Tensor, bias: Tensor) -> Tensor:
    """A bias with a scale for each channel where the weights have that."""
    quant = filter.channel_quant
    if quant is None:
        return bias
    scales = tuple(data.scale * scale for scale in quant.scales)
    return msgspec.structs.replace(bias, channel_quant=ChannelQuant(scales, 0))


def in_type(graph: LiteRTGraph, type: OperandType | None, body: Body) -> Body:
    """A body that works in an 8-bit type, and what brings its input there and its result back."""
    if type is None:
        return body

    def whole(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        inner, outer = retyped(given, type), retyped(wanted, type)
        if given.type != type:
            source = graph.quantized(source, reshaped(inner, given.shape))
        result = target if wanted.type == type else graph.like(outer)
        body(source, inner, result, outer)
        if result != target:
            graph.emit("QUANTIZE", [result], [target], "QuantizeOptions")

    return whole


def _convolution(graph: LiteRTGraph, node: Node) -> None:
    depthwise = node.type == OperationType.DEPTHWISE_CONV_2D
    type = data_type(node)

    def body(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        window = filter_window(node.arguments)
        source, scheme = windowed(graph, source, given, window)
        options = {
            "Padding": scheme,
            "StrideW": window.width.stride,
            "StrideH": window.height.stride,
            "DilationWFactor": window.width.dilation,
            "DilationHFactor": window.height.dilation,
            "FusedActivationFunction": node.integer("activation"),
        }
        if depthwise:
            options["DepthMultiplier"] = node.integer("depth_multiplier")
        inputs = [source, _weights(graph, node, type), _bias(graph, node)]
        table = "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions"
        name = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
        graph.emit(name, inputs, [target], table, options)

    channels_last(graph, node, in_type(graph, type, body))


def _transpose_convolution(graph: LiteRTGraph, node: Node) -> None:
    """The whole result, of which padding leaves a part; where it adds, the image gets zeros."""
    type = data_type(node)
    filter, activation = node.tensor(1), node.integer("activation")
    stride = (node.integer("stride_height"), node.integer("stride_width"))

    def body(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        heads = _heads(node, wanted.shape[1:3], stride)
        taps = filter.shape[1:3]
        sizes = [
            max(size, -(-(head + out - tap) // step) + 1)
            for size, head, out, tap, step in zip(
                given.shape[1:3], heads, wanted.shape[1:3], taps, stride, strict=True
            )
        ]
        source = _extended(graph, source, given, sizes)
        whole = (
            wanted.shape[0],
            *((size - 1) * step + tap for size, step, tap in zip(sizes, stride, taps, strict=True)),
            wanted.shape[3],
        )
        cut = whole != wanted.shape
        full = graph.like(wanted, whole) if cut else target
        inputs = [
            graph.integers(whole),
            _weights(graph, node, type),
            source,
            _bias(graph, node),
        ]
        options = {
            "Padding": VALID,
            "StrideW": stride[1],
            "StrideH": stride[0],
            "FusedActivationFunction": activation,
        }
        graph.emit("TRANSPOSE_CONV", inputs, [full], "TransposeConvOptions", options)
        if cut:
            parts = [graph.integers((0, *heads, 0)), graph.integers(wanted.shape)]
            graph.emit("SLICE", [full, *parts], [target], "SliceOptions")

    channels_last(graph, node, in_type(graph, type, body))


def _extended(graph: LiteRTGraph, source: int, given: Tensor, sizes: Sequence[int]) -> int:
    """An image with zeros behind it, up to this height and width."""
    shape = (given.shape[0], *sizes, given.shape[3])
    if shape == given.shape:
        return source
    pads = [(0, size - old) for size, old in zip(shape, given.shape, strict=True)]
    target = graph.like(given, shape)
    paddings = graph.constant(np.asarray(pads, np.int32))
    graph.emit("PAD", [source, paddings], [target], "PadOptions")
    return target


def _heads(node: Node, size: tuple[int, ...], stride: tuple[int, int]) -> tuple[int, int]:
    """Padding before, of height and width."""
    if node.index("padding_scheme") is None:
        return node.integer("padding_top"), node.integer("padding_left")
    if node.integer("padding_scheme") != 1:
        return 0, 0
    found = []
    given = node.integers("output_shape")
    sizes = given[2:4] if node.flag("is_nchw") else given[1:3]
    for wanted, step, taps in zip(sizes, stride, node.tensor(1).shape[1:3], strict=True):
        found.append(max((-(-wanted // step) - 1) * step + taps - wanted, 0) // 2)
    return found[0], found[1]


def _dense(graph: LiteRTGraph, node: Node) -> None:
    inputs = [graph.input(node, 0), graph.input(node, 1), _bias(graph, node)]
    options = {"FusedActivationFunction": node.integer("activation")}
    output = [graph.output(node)]
    graph.emit("FULLY_CONNECTED", inputs, output, "FullyConnectedOptions", options)


_RESIZES = {
    OperationType.RESIZE_BILINEAR: "ResizeBilinearOptions",
    OperationType.RESIZE_NEAREST_NEIGHBOR: "ResizeNearestNeighborOptions",
}


def _resize(graph: LiteRTGraph, node: Node) -> None:
    """Quantized pixels are mixed as real numbers and cut off, where the engine would round."""
    type = OperationType(node.type)
    options = {
        "AlignCorners": node.flag("align_corners"),
        "HalfPixelCenters": node.flag("half_pixel_centers"),
    }

    def resized(source: int, target: int, wanted: Tensor) -> None:
        size = graph.integers(wanted.shape[1:3])
        graph.emit(type.name, [source, size], [target], _RESIZES[type], options)

    def body(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        if type == OperationType.RESIZE_NEAREST_NEIGHBOR:
            sides = zip(given.shape[1:3], wanted.shape[1:3], strict=True)
            axes = [
                Places(*each, options["AlignCorners"], options["HalfPixelCenters"])
                for each in sides
            ]
            if all(_takes_nearest(axis, given) for axis in axes):
                resized(source, target, wanted)
            else:
                _look_up(graph, source, given, target, axes)
        elif not is_quantized(given.type):
            resized(source, target, wanted)
        else:
            in_type(graph, _Q8, interpolated)(source, given, target, wanted)

    def interpolated(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        real = Tensor(type=OperandType.TENSOR_FLOAT32)
        numbers, mixed = graph.like(real, given.shape), graph.like(real, wanted.shape)
        graph.emit("CAST", [source], [numbers], "CastOptions")
        resized(numbers, mixed, wanted)
        graph.emit("CAST", [mixed], [target], "CastOptions")

    channels_last(graph, node, body)


def _takes_nearest(axis: Places, image: Tensor) -> bool:
    """Returns whether the engine, with 16 bits for the scale of bytes, takes the right pixels."""
    if not is_quantized(image.type) or axis.align_corners or axis.half_pixel_centers:
        return True
    taken = np.arange(axis.output) * ((axis.input << 16) // axis.output + 1) >> 16
    return bool((np.minimum(taken, axis.input - 1) == axis.nearest).all())


def _look_up(
    graph: LiteRTGraph, source: int, image: Tensor, target: int, axes: Sequence[Places]
) -> None:
    """Copy the pixels at known places, row by row and then column by column."""
    height, width = axes
    rows = graph.like(image, (image.shape[0], height.output, *image.shape[2:]))
    for dimension, axis, given, taken in ((1, height, source, rows), (2, width, rows, target)):
        places = graph.constant(axis.nearest.astype(np.int32))
        graph.emit("GATHER", [given, places], [taken], "GatherOptions", {"Axis": dimension})


LOWERINGS: Mapping[OperationType, Lower] = {
    OperationType.CONV_2D: _convolution,
    OperationType.DEPTHWISE_CONV_2D: _convolution,
    OperationType.GROUPED_CONV_2D: _convolution,
    OperationType.TRANSPOSE_CONV_2D: _transpose_convolution,
    OperationType.FULLY_CONNECTED: _dense,
    **dict.fromkeys(_RESIZES, _resize),
}
