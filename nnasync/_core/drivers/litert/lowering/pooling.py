"""Pooling, whose padding never counts."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.lowering.channel_order import channels_last
from nnasync._core.drivers.litert.lowering.padding import VALID, pad_image, scheme_of
from nnasync._core.drivers.litert.node import Node
from nnasync._core.drivers.litert.operands import reshaped
from nnasync.hal import Array, OperandType, OperationType, is_quantized
from nnasync.kernels import Tensor, quantized_range
from nnasync.kernels.windows.window import Window, pooling_window


def _pool(graph: LiteRTGraph, node: Node) -> None:
    name = OperationType(node.type).name

    def body(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        window = pooling_window(node.arguments)
        scheme = scheme_of(window)
        if scheme is not None:
            _emit(graph, node, name, source, target, scheme)
        elif name == "MAX_POOL_2D":
            padded = pad_image(graph, source, given, window, _lowest(given))
            _emit(graph, node, name, padded[0], target, VALID)
        else:
            _average(graph, node, window, source, given, target, wanted)

    channels_last(graph, node, body)


def _emit(
    graph: LiteRTGraph,
    node: Node,
    name: str,
    source: int,
    target: int,
    scheme: int,
    fused: int = -1,
) -> None:
    options = {
        "Padding": scheme,
        "StrideW": node.integer("stride_width"),
        "StrideH": node.integer("stride_height"),
        "FilterWidth": node.integer("filter_width"),
        "FilterHeight": node.integer("filter_height"),
        "FusedActivationFunction": node.integer("activation") if fused < 0 else fused,
    }
    graph.emit(name, [source], [target], "Pool2DOptions", options)


def _lowest(tensor: Tensor) -> Array:
    """Returns the lowest value of a tensor's type, which never wins a maximum."""
    if is_quantized(tensor.type):
        return np.full(1, quantized_range(tensor.type)[0], tensor.dtype)
    return np.full(1, np.finfo(np.float32).min, np.float32)


def _average(
    graph: LiteRTGraph,
    node: Node,
    window: Window,
    source: int,
    given: Tensor,
    target: int,
    wanted: Tensor,
) -> None:
    """Explicit padding: zeros count at first, and a factor for each place takes them out again."""
    real = msgspec.structs.replace(
        reshaped(given, given.shape), type=OperandType.TENSOR_FLOAT32, scale=0.0, zero_point=0
    )
    result = reshaped(real, wanted.shape)
    if is_quantized(given.type):
        source = graph.dequantized(source, given)
    padded, _ = pad_image(graph, source, real, window, np.zeros(1, np.float32))
    mean, scaled = graph.like(result), graph.like(result)
    name = OperationType(node.type).name
    _emit(graph, node, name, padded, mean, VALID, fused=0)
    factors = _factors(window).astype(np.float32)
    if name == "L2_POOL_2D":
        factors = np.sqrt(factors)
    fused = {"FusedActivationFunction": node.integer("activation")}
    quantizes = is_quantized(given.type)
    place = scaled if quantizes else target
    graph.emit("MUL", [mean, graph.constant(factors)], [place], "MulOptions", fused)
    if quantizes:
        graph.emit("QUANTIZE", [scaled], [target], "QuantizeOptions")


def _factors(window: Window) -> Array:
    """Cells of the window over cells that are not padding, for each place of the result."""
    size = window.height.filter * window.width.filter
    counts = np.outer(window.height.cells, window.width.cells)
    return (size / counts)[None, :, :, None]


LOWERINGS: Mapping[OperationType, Lower] = {
    OperationType.AVERAGE_POOL_2D: _pool,
    OperationType.MAX_POOL_2D: _pool,
    OperationType.L2_POOL_2D: _pool,
}
