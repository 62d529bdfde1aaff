"""The operations of org.nnasync.common, most of which are single operators of the engine."""

from __future__ import annotations

from collections.abc import Mapping

from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.node import Node
from nnasync._core.formats.litert_limits import LiteRTUnsupported
from nnasync.extensions import CommonOperation
from nnasync.hal import OperandType

_MOST_DIMENSIONS = 5
_UNSIGNED = OperandType.TENSOR_QUANT8_ASYMM


def _batch_matmul(graph: LiteRTGraph, node: Node) -> None:
    a, b = node.tensor(0), node.tensor(1)
    if a.type == _UNSIGNED:
        raise LiteRTUnsupported("unsigned bytes")
    if max(a.rank, b.rank) > _MOST_DIMENSIONS:
        raise LiteRTUnsupported(f"more than {_MOST_DIMENSIONS} dimensions")
    options = {"AdjX": node.flag("transpose_a"), "AdjY": node.flag("transpose_b")}
    inputs, output = graph.inputs(node, 0, 1), [graph.output(node)]
    graph.emit("BATCH_MATMUL", inputs, output, "BatchMatMulOptions", options)


def _gelu(graph: LiteRTGraph, node: Node) -> None:
    options = {"Approximate": node.flag("approximate")}
    graph.emit("GELU", graph.inputs(node, 0), [graph.output(node)], "GeluOptions", options)


def _cumulative_sum(graph: LiteRTGraph, node: Node) -> None:
    axis = graph.integers([node.integer("axis")])
    options = {"Exclusive": node.flag("exclusive"), "Reverse": node.flag("reverse")}
    inputs = [graph.input(node, 0), axis]
    graph.emit("CUMSUM", inputs, [graph.output(node)], "CumsumOptions", options)


def _round(graph: LiteRTGraph, node: Node) -> None:
    graph.emit("ROUND", graph.inputs(node, 0), [graph.output(node)])


LOWERINGS: Mapping[CommonOperation, Lower] = {
    CommonOperation.BATCH_MATMUL: _batch_matmul,
    CommonOperation.GELU: _gelu,
    CommonOperation.CUMSUM: _cumulative_sum,
    CommonOperation.ROUND: _round,
}
