"""Pooling, whose padding never counts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.lowering.channel_order import channels_last
from nnasync._core.drivers.litert.lowering.padding import VALID, pad_image, scheme_of
from nnasync._core.drivers.litert.node import Node
from nnasync.hal import Array, OperandType, OperationType, is_quantized
from nnasync.kernels import Tensor, quantized_range
from nnasync.kernels.steps import quantized_bounds
from nnasync.kernels.windows.window import Window, pooling_window

_NUDGE = 2.0**-21
"""How much further from zero averages of bytes are before they are rounded to the nearest.

The four roundings of float32 on their way come to half of that at most, so halves end up
beyond the half; the others of up to 2,048 cells stay on their side of it.
"""


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
    real = Tensor(type=OperandType.TENSOR_FLOAT32, shape=given.shape)
    quantized = is_quantized(given.type)
    if quantized:
        source = _numbers(graph, source, given)
    padded, _ = pad_image(graph, source, real, window, np.zeros(1, np.float32))
    mean = graph.like(real, wanted.shape)
    name = OperationType(node.type).name
    _emit(graph, node, name, padded, mean, VALID, fused=0)
    factors = _factors(window)
    if name == "L2_POOL_2D":
        factors = np.sqrt(factors)
    fused = node.integer("activation")
    if quantized:
        _give_rounded(graph, mean, factors, target, wanted, quantized_bounds(fused, wanted))
        return
    options = {"FusedActivationFunction": fused}
    inputs = [mean, graph.constant(factors.astype(np.float32))]
    graph.emit("MUL", inputs, [target], "MulOptions", options)


def _numbers(graph: LiteRTGraph, source: int, given: Tensor) -> int:
    """Bytes as floats of the same value, whatever a step is worth."""
    if given.value is not None:
        return graph.constant(given.value.astype(np.float32))
    numbers = graph.like(Tensor(type=OperandType.TENSOR_FLOAT32, shape=given.shape))
    graph.emit("CAST", [source], [numbers], "CastOptions")
    return numbers


def _give_rounded(
    graph: LiteRTGraph,
    mean: int,
    factors: Array,
    target: int,
    wanted: Tensor,
    bounds: tuple[int, int],
) -> None:
    """Round multiples of averages of bytes, halves away from zero, and limit them."""
    real = Tensor(type=OperandType.TENSOR_FLOAT32, shape=wanted.shape)
    result = graph.like(real)
    nudged = ((1 + _NUDGE) * factors).astype(np.float32)
    graph.emit("MUL", [mean, graph.constant(nudged)], [result], "MulOptions")
    inputs, result = [result], graph.like(real)
    graph.emit("ROUND", inputs, [result])
    for name, bound, end in zip(
        ("MAXIMUM", "MINIMUM"), bounds, quantized_range(wanted.type), strict=True
    ):
        if bound != end:
            inputs, result = (
                [result, graph.constant(np.full(1, bound, np.float32))],
                graph.like(real),
            )
            graph.emit(name, inputs, [result], "MaximumMinimumOptions")
    graph.emit("CAST", [result], [target], "CastOptions")


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
