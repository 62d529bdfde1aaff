"""Convolutions of images with one channel as products of whole rows.

The engine's kernels are slow where an image has only one channel, as a spectrogram has: bands took
0.4 of their time for a network of such a layer. An image of [height, width, 1] is also one of
[height, 1, width], whose channels are the columns. A window that slides over columns is then a band
in the weights [columns of the output x filters, taps in height, 1, columns of the input], zero
beside the taps. Those are more multiplications, by the columns over the taps, but all of them in
the engine's matrix kernels. The sums are the same; for integers to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.lowering.channel_order import channels_last
from nnasync._core.drivers.litert.lowering.padding import windowed
from nnasync._core.drivers.litert.lowering.windows import (
    data_type,
    in_type,
    scaled_bias,
)
from nnasync._core.drivers.litert.node import Node
from nnasync._core.drivers.litert.operands import reshaped, retyped
from nnasync._core.formats.litert_limits import LiteRTUnsupported
from nnasync.hal import Array, ChannelQuant, OperationType
from nnasync.kernels import Tensor
from nnasync.kernels.windows.window import Axis, Window, filter_window

_MOST_GROWTH = 8
_MOST_WEIGHTS = 1 << 21


def _banded(graph: LiteRTGraph, node: Node) -> None:
    """Raises Unsupported where rows are no gain, before it adds anything."""
    taps, window = _suited(node)
    type, bias = data_type(node), node.tensor(2)
    filter = _weights(node.tensor(1), taps, window.width)
    if type is not None:
        filter = filter if filter.channel_quant else retyped(filter, type)
    columns = window.width.output

    def body(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        batches, height, width, _ = given.shape
        rows = reshaped(given, (batches, height, 1, width))
        turned = graph.like(rows)
        graph.reshape(source, turned, rows.shape)
        one = Axis(input=1, filter=1, stride=1, dilation=1, head=0, tail=0)
        turned, scheme = windowed(graph, turned, rows, Window(window.height, one))
        flat = graph.like(wanted, (batches, wanted.shape[1], 1, columns * wanted.shape[3]))
        options = {
            "Padding": scheme,
            "StrideW": 1,
            "StrideH": window.height.stride,
            "DilationWFactor": 1,
            "DilationHFactor": window.height.dilation,
            "FusedActivationFunction": node.integer("activation"),
        }
        sums = scaled_bias(node.tensor(0), filter, _repeated(bias, columns))
        inputs = [turned, graph.add(filter), graph.add(sums)]
        graph.emit("CONV_2D", inputs, [flat], "Conv2DOptions", options)
        graph.reshape(flat, target, wanted.shape)

    channels_last(graph, node, in_type(graph, type, body))


def _suited(node: Node) -> tuple[Array, Window]:
    """The filters [height, width, filters], and the window."""
    given, filter, bias = node.tensor(0), node.tensor(1), node.tensor(2)
    if filter.value is None or bias.value is None:
        raise LiteRTUnsupported("weights that only the run tells")
    sizes = given.shape[2:4] if node.flag("is_nchw") else given.shape[1:3]
    channels = given.shape[1] if node.flag("is_nchw") else given.shape[3]
    window = filter_window(node.arguments)
    if channels != 1 or filter.shape[2] == 1 or sizes[1] > _MOST_GROWTH * filter.shape[2]:
        raise LiteRTUnsupported("rows are no gain")
    is_depthwise = node.type == OperationType.DEPTHWISE_CONV_2D
    taps = filter.value[0] if is_depthwise else np.moveaxis(filter.value[..., 0], 0, -1)
    if taps.size * sizes[1] // filter.shape[2] * window.width.output > _MOST_WEIGHTS:
        raise LiteRTUnsupported("too many weights")
    return taps, window


def _weights(filter: Tensor, taps: Array, axis: Axis) -> Tensor:
    """The band [columns of the output x filters, height, 1, columns of the input]."""
    height, width, filters = taps.shape
    nothing = 0 if filter.channel_quant else filter.zero_point
    band = np.full((axis.output, filters, height, 1, axis.input), nothing, taps.dtype)
    for column in range(axis.output):
        for tap in range(width):
            at = column * axis.stride - axis.head + tap * axis.dilation
            if 0 <= at < axis.input:
                band[column, :, :, 0, at] = taps[:, tap].T
    quant = filter.channel_quant
    if quant is not None:
        quant = ChannelQuant(quant.scales * axis.output, 0)
    value = band.reshape(-1, height, 1, axis.input)
    return msgspec.structs.replace(filter, shape=value.shape, value=value, channel_quant=quant)


def _repeated(bias: Tensor, columns: int) -> Tensor:
    value = None if bias.value is None else np.tile(bias.value, columns)
    return msgspec.structs.replace(bias, shape=(bias.shape[0] * columns,), value=value)


PRODUCTS: Mapping[OperationType, Lower] = {
    OperationType.CONV_2D: _banded,
    OperationType.DEPTHWISE_CONV_2D: _banded,
}
"""Other forms of operations, which raise Unsupported where they do not suit."""
