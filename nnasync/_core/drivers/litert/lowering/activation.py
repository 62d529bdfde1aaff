"""Activations: of one number each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.node import Node
from nnasync._core.formats.litert_limits import LiteRTUnsupported
from nnasync.hal import OperationType, is_quantized

_NAMES = {
    OperationType.RELU: "RELU",
    OperationType.RELU1: "RELU_N1_TO_1",
    OperationType.RELU6: "RELU6",
    OperationType.LOGISTIC: "LOGISTIC",
    OperationType.TANH: "TANH",
    OperationType.HARD_SWISH: "HARD_SWISH",
}

_CURVES = (OperationType.LOGISTIC, OperationType.TANH)
_LARGEST_SCALE = 8


def _activation(graph: LiteRTGraph, node: Node) -> None:
    name, given = _NAMES[OperationType(node.type)], node.tensor(0)
    if is_quantized(given.type) and node.type in _CURVES and given.scale >= _LARGEST_SCALE:
        raise LiteRTUnsupported(f"a scale of {given.scale}, of which the engine's shift overflows")
    graph.emit(name, graph.inputs(node, 0), [graph.output(node)])


def _elu(graph: LiteRTGraph, node: Node) -> None:
    """The engine's alpha is 1; any other scales the negative part alone."""
    source, target, tensor = graph.input(node, 0), graph.output(node), node.tensor(0)
    alpha = node.number("alpha")
    if alpha == 1:
        graph.emit("ELU", [source], [target])
        return
    positive, negative, curved, scaled = (graph.like(tensor) for _ in range(4))
    zero = graph.constant(np.zeros(1, np.float32))
    graph.emit("RELU", [source], [positive])
    graph.emit("MINIMUM", [source, zero], [negative], "MaximumMinimumOptions")
    graph.emit("ELU", [negative], [curved])
    factor = graph.constant(np.full(1, alpha, np.float32))
    graph.emit("MUL", [curved, factor], [scaled], "MulOptions")
    graph.emit("ADD", [positive, scaled], [target], "AddOptions")


LOWERINGS: Mapping[OperationType, Lower] = {
    **dict.fromkeys(_NAMES, _activation),
    OperationType.ELU: _elu,
}
