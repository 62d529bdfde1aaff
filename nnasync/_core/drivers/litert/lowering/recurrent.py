"""Recurrent layers in floating point; their states are variable tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.litert_program import Copy
from nnasync._core.drivers.litert.node import Node
from nnasync._core.formats.litert_limits import LiteRTUnsupported
from nnasync.hal import OperationType

_NONE, _SIGMOID = 0, 6
_STATES = (18, 19)
_RECURRENT = 6
"""Weights [cells, outputs] that every LSTM has."""


def activation_of(node: Node) -> int:
    """The activation, where the file has a number for it."""
    activation = node.integer("activation")
    if activation == _SIGMOID:
        raise LiteRTUnsupported("a sigmoid as activation, which a file cannot say")
    return activation


def _lstm_activation(node: Node) -> int:
    """The activation of cells, of which the engine has no kernel without one."""
    activation = activation_of(node)
    if activation == _NONE:
        raise LiteRTUnsupported("cells without an activation")
    return activation


def _gates(graph: LiteRTGraph, node: Node, outputs: Sequence[int | None]) -> list[int]:
    """The first 20 inputs of an LSTM; `outputs` are those of the new states."""
    cells, results = node.tensor(_RECURRENT).shape
    if results > cells:
        # The engine writes beyond its scratch memory then, if not for all sizes.
        raise LiteRTUnsupported("more outputs than cells")
    inputs = graph.inputs(node, *range(18))
    for position, output in zip(_STATES, outputs, strict=True):
        inputs.append(graph.state(node, position, output, Copy.BYTES))
    return inputs


def _norm(graph: LiteRTGraph, node: Node, first: int) -> list[int]:
    """The weights of layer normalization, or nothing."""
    weights = [
        graph.input(node, position) if node.arguments.has(position) else -1
        for position in range(first, first + 4)
    ]
    return weights if any(weight >= 0 for weight in weights) else []


def _clips(node: Node) -> dict[str, float]:
    return {"CellClip": node.number("cell_clip"), "ProjClip": node.number("projection_clip")}


def _lstm(graph: LiteRTGraph, node: Node) -> None:
    options = {"FusedActivationFunction": _lstm_activation(node), **_clips(node)}
    graph.unwritten(node, 0)
    inputs = [*_gates(graph, node, (1, 2)), *_norm(graph, node, 23)]
    graph.emit("LSTM", inputs, [graph.output(node, 3)], "LSTMOptions", options)


def _sequence_lstm(graph: LiteRTGraph, node: Node) -> None:
    options = {
        "FusedActivationFunction": _lstm_activation(node),
        **_clips(node),
        "TimeMajor": node.flag("is_time_major"),
    }
    states = (1, 2) if len(node.outputs) > 1 else (None, None)
    inputs = [*_gates(graph, node, states), *_norm(graph, node, 24)]
    table = "UnidirectionalSequenceLSTMOptions"
    name = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    graph.emit(name, inputs, [graph.output(node)], table, options)


def _both_lstm(graph: LiteRTGraph, node: Node) -> None:
    merges, count = node.flag("merge_outputs"), len(node.outputs)
    results = 1 if merges else 2
    if any(node.arguments.has(position) for position in range(53, 61)):
        raise LiteRTUnsupported("layer normalization in both directions")
    if node.arguments.has(39) and not node.arguments.has(41):
        raise LiteRTUnsupported("an auxiliary input in place of the backward one")
    if node.arguments.has(39) and not node.flag("is_time_major"):
        raise LiteRTUnsupported("an auxiliary input that is batch-major")
    options = {
        "FusedActivationFunction": _lstm_activation(node),
        **_clips(node),
        "MergeOutputs": merges,
        "TimeMajor": node.flag("is_time_major"),
    }
    inputs = graph.inputs(node, *range(35))
    for offset in range(4):
        output = results + offset if count > results else None
        inputs.append(graph.state(node, 35 + offset, output, Copy.BYTES))
    inputs += graph.inputs(node, *range(39, 48))
    outputs = [graph.output(node, position) for position in range(results)]
    table = "BidirectionalSequenceLSTMOptions"
    graph.emit("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, outputs, table, options)


def _rnn(graph: LiteRTGraph, node: Node) -> None:
    options = {"FusedActivationFunction": activation_of(node)}
    inputs = [*graph.inputs(node, *range(4)), graph.state(node, 4, 0, Copy.BYTES)]
    graph.emit("RNN", inputs, [graph.output(node, 1)], "RNNOptions", options)


def _sequence_rnn(graph: LiteRTGraph, node: Node) -> None:
    options = {
        "FusedActivationFunction": activation_of(node),
        "TimeMajor": bool(node.integer("is_time_major")),
    }
    state = 1 if len(node.outputs) > 1 else None
    inputs = [*graph.inputs(node, *range(4)), graph.state(node, 4, state, Copy.BYTES)]
    output = [graph.output(node)]
    graph.emit("UNIDIRECTIONAL_SEQUENCE_RNN", inputs, output, "SequenceRNNOptions", options)


def _both_rnn(graph: LiteRTGraph, node: Node) -> None:
    merges, count = node.flag("merge_outputs"), len(node.outputs)
    results = 1 if merges else 2
    options = {
        "FusedActivationFunction": activation_of(node),
        "TimeMajor": node.flag("is_time_major"),
        "MergeOutputs": merges,
    }
    if node.arguments.has(9) and not node.arguments.has(10):
        raise LiteRTUnsupported("an auxiliary input in place of the backward one")
    with_states = count > results
    inputs = graph.inputs(node, *range(4))
    inputs.append(graph.state(node, 4, results if with_states else None, Copy.BYTES))
    inputs += graph.inputs(node, 5, 6, 7)
    inputs.append(graph.state(node, 8, results + 1 if with_states else None, Copy.BYTES))
    inputs += graph.inputs(node, 9, 10, 11)
    outputs = [graph.output(node, position) for position in range(results)]
    table = "BidirectionalSequenceRNNOptions"
    graph.emit("BIDIRECTIONAL_SEQUENCE_RNN", inputs, outputs, table, options)


def _svdf(graph: LiteRTGraph, node: Node) -> None:
    options = {
        "Rank": node.integer("rank"),
        "FusedActivationFunction": activation_of(node),
    }
    columns = node.tensor(2).shape[1]
    state = graph.state(node, 4, 0, Copy.SHIFT, columns)
    inputs = [*graph.inputs(node, *range(4)), state]
    graph.emit("SVDF", inputs, [graph.output(node, 1)], "SVDFOptions", options)


LOWERINGS: Mapping[OperationType, Lower] = {
    OperationType.LSTM: _lstm,
    OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM: _sequence_lstm,
    OperationType.BIDIRECTIONAL_SEQUENCE_LSTM: _both_lstm,
    OperationType.RNN: _rnn,
    OperationType.UNIDIRECTIONAL_SEQUENCE_RNN: _sequence_rnn,
    OperationType.BIDIRECTIONAL_SEQUENCE_RNN: _both_rnn,
    OperationType.SVDF: _svdf,
}
