"""Reductions along dimensions, and the places of extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nnasync._core.drivers.litert.flatbuffer import Options
from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.node import Node
from nnasync._core.drivers.litert.operands import retyped
from nnasync._core.formats.litert_limits import LiteRTUnsupported
from nnasync.hal import OperandType, OperationType, is_quantized
from nnasync.kernels import Tensor

_NAMES = {
    OperationType.MEAN: "MEAN",
    OperationType.REDUCE_ALL: "REDUCE_ALL",
    OperationType.REDUCE_ANY: "REDUCE_ANY",
    OperationType.REDUCE_MAX: "REDUCE_MAX",
    OperationType.REDUCE_MIN: "REDUCE_MIN",
    OperationType.REDUCE_PROD: "REDUCE_PROD",
    OperationType.REDUCE_SUM: "SUM",
}
_INT32 = 2


def _reduction(graph: LiteRTGraph, node: Node) -> None:
    rank = node.tensor(0).rank
    axes = sorted({axis % rank for axis in node.integers("axes")})
    if not axes:
        raise LiteRTUnsupported("no axes")
    keeps = node.integer("keep_dimensions") > 0
    inputs = [graph.input(node, 0), graph.integers(axes)]
    left = tuple(size for axis, size in enumerate(node.tensor(0).shape) if axis not in axes)
    options = {"KeepDims": keeps}
    if node.type == OperationType.MEAN and is_quantized(node.tensor(0).type):
        _mean(graph, node, inputs, options)
        return
    target = graph.output(node) if keeps or left else _single(graph, node)
    graph.emit(_NAMES[OperationType(node.type)], inputs, [target], "ReducerOptions", options)
    if not keeps and not left:
        graph.reshape(target, graph.output(node), graph.result(node).shape)


def _mean(graph: LiteRTGraph, node: Node, inputs: Sequence[int], options: Options) -> None:
    """The mean of quantized numbers is cut off; sums are whole, so half of one settles doubts."""
    given, wanted = node.tensor(0), graph.result(node)
    source = inputs[0]
    unsigned = given.type == OperandType.TENSOR_QUANT8_ASYMM
    if not unsigned:
        source = graph.quantized(source, retyped(given, OperandType.TENSOR_QUANT8_ASYMM))
    real = Tensor(type=OperandType.TENSOR_FLOAT32)
    numbers, mean, sure = (graph.like(real, tensor.shape) for tensor in (given, wanted, wanted))
    graph.emit("CAST", [source], [numbers], "CastOptions")
    loose = graph.like(real, wanted.shape if wanted.size > 1 else ())
    graph.emit("MEAN", [numbers, inputs[1]], [loose], "ReducerOptions", options)
    graph.reshape(loose, mean, wanted.shape)
    half = graph.constant(np.full(1, 0.5 * wanted.size / given.size, np.float32))
    graph.emit("ADD", [mean, half], [sure], "AddOptions")
    if unsigned:
        graph.emit("CAST", [sure], [graph.output(node)], "CastOptions")
        return
    result = graph.like(retyped(wanted, OperandType.TENSOR_QUANT8_ASYMM))
    graph.emit("CAST", [sure], [result], "CastOptions")
    graph.emit("QUANTIZE", [result], [graph.output(node)], "QuantizeOptions")


def _single(graph: LiteRTGraph, node: Node) -> int:
    """A tensor without dimensions, which the HAL does not have."""
    return graph.like(graph.result(node), ())


def _place(graph: LiteRTGraph, node: Node) -> None:
    largest = node.type == OperationType.ARGMAX
    rank = node.tensor(0).rank
    axis = graph.constant(np.asarray(node.integer("axis") % rank, np.int32))
    target = graph.output(node) if rank > 1 else _single(graph, node)
    graph.emit(
        "ARG_MAX" if largest else "ARG_MIN",
        [graph.input(node, 0), axis],
        [target],
        "ArgMaxOptions" if largest else "ArgMinOptions",
        {"OutputType": _INT32},
    )
    if rank == 1:
        graph.reshape(target, graph.output(node), (1,))


LOWERINGS: Mapping[OperationType, Lower] = {
    **dict.fromkeys(_NAMES, _reduction),
    OperationType.ARGMAX: _place,
    OperationType.ARGMIN: _place,
}
