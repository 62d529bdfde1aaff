"""Concatenation, splitting, repetition, look-up by index, and channels in another order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.lowering.elementwise import in_scale_of_result
from nnasync._core.drivers.litert.node import Node
from nnasync._core.formats.litert_limits import LiteRTUnsupported
from nnasync.hal import OperandType, OperationType


def _concatenation(graph: LiteRTGraph, node: Node) -> None:
    last = len(node.inputs) - 1
    inputs = [in_scale_of_result(graph, node, position) for position in range(last)]
    axis = node.arguments.integer(last)
    options = {"Axis": axis}
    graph.emit("CONCATENATION", inputs, [graph.output(node)], "ConcatenationOptions", options)


def _split(graph: LiteRTGraph, node: Node) -> None:
    axis = graph.integers([node.integer("axis") % node.tensor(0).rank])
    outputs = [graph.output(node, position) for position in range(len(node.outputs))]
    options = {"NumSplits": len(outputs)}
    graph.emit("SPLIT", [axis, graph.input(node, 0)], outputs, "SplitOptions", options)


def _tile(graph: LiteRTGraph, node: Node) -> None:
    multiples = graph.parameter(node, "multiples")
    graph.emit("TILE", [graph.input(node, 0), multiples], [graph.output(node)], "TileOptions")


def _gather(graph: LiteRTGraph, node: Node) -> None:
    options = {"Axis": node.integer("axis") % node.tensor(0).rank}
    inputs = graph.inputs(node, 0, 2)
    graph.emit("GATHER", inputs, [graph.output(node)], "GatherOptions", options)


def _embedding(graph: LiteRTGraph, node: Node) -> None:
    inputs = graph.inputs(node, 1, 0)
    graph.emit("GATHER", inputs, [graph.output(node)], "GatherOptions", {"Axis": 0})


def _hashtable(graph: LiteRTGraph, node: Node) -> None:
    outputs = [graph.output(node, 0), graph.output(node, 1)]
    graph.emit("HASHTABLE_LOOKUP", graph.inputs(node, 0, 1, 2), outputs)


def _shuffle(graph: LiteRTGraph, node: Node) -> None:
    """Seen as groups by elements, the two change places."""
    tensor, groups = node.tensor(0), node.integer("groups")
    axis = node.integer("axis") % tensor.rank
    if tensor.type not in _SHUFFLED:
        raise LiteRTUnsupported("channels of this type")
    before = int(np.prod(tensor.shape[:axis], dtype=np.int64))
    after = int(np.prod(tensor.shape[axis + 1 :], dtype=np.int64))
    size = tensor.shape[axis] // groups
    apart = graph.like(tensor, (before, groups, size, after))
    turned = graph.like(tensor, (before, size, groups, after))
    graph.reshape(graph.input(node, 0), apart, (before, groups, size, after))
    graph.transpose(apart, turned, (0, 2, 1, 3))
    graph.reshape(turned, graph.output(node), tensor.shape)


_SHUFFLED = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
)

LOWERINGS: Mapping[OperationType, Lower] = {
    OperationType.CONCATENATION: _concatenation,
    OperationType.SPLIT: _split,
    OperationType.TILE: _tile,
    OperationType.GATHER: _gather,
    OperationType.EMBEDDING_LOOKUP: _embedding,
    OperationType.HASHTABLE_LOOKUP: _hashtable,
    OperationType.CHANNEL_SHUFFLE: _shuffle,
}
