"""Recurrent cells, one step of them, as matrix products and arithmetic that XNNPACK runs.

The engine's own kernels of cells take twice as long for a small network. Here each gate is one
product of the input and the state, joined, with the weights of both (Hochreiter and Schmidhuber
1997; with a coupled input gate, peepholes and a projection as in Sak et al. 2014). States are usual
inputs and outputs of the file.

A cell with a coupled input gate is mixed as g + f (c - g), one product less than f c + (1 - f) g.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.node import Node
from nnasync._core.formats.litert_limits import LiteRTUnsupported
from nnasync.hal import Array, OperandType, OperationType, Shape
from nnasync.kernels import Tensor

_NUMBERS = OperandType.TENSOR_FLOAT32
_INPUT, _FORGET, _CELL, _OUTPUT = range(4)
_PROJECTION, _PROJECTION_BIAS = 16, 17
_STATE, _CELLS = 18, 19
_SIGMOID = 6
_CURVES = {1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6", 4: "TANH", _SIGMOID: "LOGISTIC"}
_FUSED = (0, 1, 2, 3)
_TABLES = {
    "ADD": "AddOptions",
    "SUB": "SubOptions",
    "MUL": "MulOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "MAXIMUM": "MaximumMinimumOptions",
}


class _Arithmetic:
    """Adds operators on numbers [batches, columns], as an expression is written."""

    def __init__(self, graph: LiteRTGraph, batches: int) -> None:
        self._graph = graph
        self._batches = batches

    def numbers(self, columns: int) -> int:
        return self._graph.like(Tensor(type=_NUMBERS, shape=(self._batches, columns)))

    def columns(self, source: int) -> int:
        return self._graph.file.tensors[source].shape[-1]

    def joined(self, *sources: int) -> int:
        result = self.numbers(sum(map(self.columns, sources)))
        table, options = "ConcatenationOptions", {"Axis": 1}
        self._graph.emit("CONCATENATION", sources, [result], table, options)
        return result

    def product(self, source: int, weights: Array, bias: Array, activation: int = 0) -> int:
        """The product with weights [columns, columns of the source], and a bias."""
        result = self.numbers(len(weights))
        inputs = [source, self._graph.constant(weights), self._graph.constant(bias)]
        options = {"FusedActivationFunction": activation}
        self._graph.emit("FULLY_CONNECTED", inputs, [result], "FullyConnectedOptions", options)
        return result

    def combined(self, name: str, first: int, second: int) -> int:
        result = self.numbers(self.columns(first))
        self._graph.emit(name, [first, second], [result], _TABLES[name])
        return result

    def curve(self, activation: int, source: int) -> int:
        if not activation:
            return source
        result = self.numbers(self.columns(source))
        self._graph.emit(_CURVES[activation], [source], [result])
        return result

    def weighted(self, sum: int, source: int, weights: Array | None) -> int:
        """A sum with the products of a source and weights for each column, if there are any."""
        if weights is None:
            return sum
        scaled = self.combined("MUL", source, self._graph.constant(weights))
        return self.combined("ADD", sum, scaled)

    def clipped(self, source: int, limit: float) -> int:
        """Cut off at a limit on both sides; 0 is none."""
        if limit <= 0:
            return source
        high, low = (self._graph.constant(np.full(1, each, np.float32)) for each in (limit, -limit))
        return self.combined("MAXIMUM", self.combined("MINIMUM", source, high), low)


def _constants(node: Node, positions: Sequence[int]) -> list[Array | None]:
    """Inputs that are constants, or omitted; raises Unsupported for others."""
    found: list[Array | None] = []
    for position in positions:
        tensor = node.arguments.optional(position)
        if tensor is not None and tensor.value is None:
            raise LiteRTUnsupported(f"input {position} is only known in a run")
        value = None if tensor is None else tensor.value
        found.append(None if value is None else value.astype(np.float32))
    return found


class _CellWeights:
    """The constants of an LSTM; raises Unsupported where they are none, and for normalization."""

    def __init__(self, node: Node, norms: int) -> None:
        known = [None, *_constants(node, range(1, 18))]
        of_inputs, of_states, biases = known[1:5], known[5:9], known[12:16]
        self.peepholes = known[9:12]
        self.projection, self.projection_bias = known[_PROJECTION], known[_PROJECTION_BIAS]
        if any(node.arguments.has(position) for position in range(norms, norms + 4)):
            raise LiteRTUnsupported("layer normalization")
        self.is_coupled = of_inputs[_INPUT] is None
        self.gates: dict[int, tuple[Array, Array]] = {}
        for gate in range(self.is_coupled, 4):
            first, second, bias = of_inputs[gate], of_states[gate], biases[gate]
            if first is None or second is None or bias is None:
                raise LiteRTUnsupported("weights of a gate are missing")
            self.gates[gate] = np.concatenate([first, second], axis=1), bias


def _step(
    node: Node, weights: _CellWeights, numbers: _Arithmetic, source: int, state: int, cells: int
) -> tuple[int, int]:
    """State and cells after a step."""
    activation, joined = node.integer("activation"), numbers.joined(source, state)
    of_input, of_forget, of_output = weights.peepholes

    forget = numbers.product(joined, *weights.gates[_FORGET])
    forget = numbers.curve(_SIGMOID, numbers.weighted(forget, cells, of_forget))
    new = numbers.curve(activation, numbers.product(joined, *weights.gates[_CELL]))
    if weights.is_coupled:
        kept = numbers.combined("MUL", forget, numbers.combined("SUB", cells, new))
    else:
        taken = numbers.product(joined, *weights.gates[_INPUT])
        taken = numbers.curve(_SIGMOID, numbers.weighted(taken, cells, of_input))
        kept = numbers.combined("MUL", forget, cells)
        new = numbers.combined("MUL", taken, new)
    cells = numbers.clipped(numbers.combined("ADD", new, kept), node.number("cell_clip"))

    shown = numbers.product(joined, *weights.gates[_OUTPUT])
    shown = numbers.curve(_SIGMOID, numbers.weighted(shown, cells, of_output))
    state = numbers.combined("MUL", shown, numbers.curve(activation, cells))
    if weights.projection is not None:
        bias = weights.projection_bias
        bias = np.zeros(len(weights.projection), np.float32) if bias is None else bias
        state = numbers.product(state, weights.projection, bias)
        state = numbers.clipped(state, node.number("projection_clip"))
    return state, cells


def _lstm(graph: LiteRTGraph, node: Node) -> None:
    weights = _CellWeights(node, norms=23)
    _check_activation(node)
    graph.unwritten(node, 0)
    source, state, cells = graph.inputs(node, 0, _STATE, _CELLS)
    numbers = _Arithmetic(graph, node.tensor(0).shape[0])
    state, cells = _step(node, weights, numbers, source, state, cells)
    for output, tensor in ((1, state), (2, cells), (3, state)):
        graph.define(node, tensor, output)


def _sequence_lstm(graph: LiteRTGraph, node: Node) -> None:
    weights = _CellWeights(node, norms=24)
    _check_activation(node)
    batches = _batches_of_a_step(node, is_time_major=node.flag("is_time_major"))
    source, state, cells = graph.inputs(node, 0, _STATE, _CELLS)
    numbers = _Arithmetic(graph, batches)
    source = _flat(graph, numbers, source, (batches, node.tensor(0).shape[2]))
    state, cells = _step(node, weights, numbers, source, state, cells)
    graph.reshape(state, graph.output(node), graph.result(node).shape)
    if len(node.outputs) > 1:
        graph.define(node, state, 1)
        graph.define(node, cells, 2)


def _rnn_step(graph: LiteRTGraph, node: Node, batches: int, *, is_sequence: bool) -> int:
    """The state of a plain recurrent layer after a step."""
    activation = _check_activation(node)
    weights, of_states, bias = _constants(node, (1, 2, 3))
    if weights is None or of_states is None or bias is None:
        raise LiteRTUnsupported("weights are missing")
    numbers = _Arithmetic(graph, batches)
    source, state = graph.inputs(node, 0, 4)
    if is_sequence:
        source = _flat(graph, numbers, source, (batches, node.tensor(0).shape[2]))
    fused = activation if activation in _FUSED else 0
    both = np.concatenate([weights, of_states], axis=1)
    sum = numbers.product(numbers.joined(source, state), both, bias, fused)
    return sum if fused == activation else numbers.curve(activation, sum)


def _rnn(graph: LiteRTGraph, node: Node) -> None:
    state = _rnn_step(graph, node, node.tensor(0).shape[0], is_sequence=False)
    graph.define(node, state, 0)
    graph.define(node, state, 1)


def _sequence_rnn(graph: LiteRTGraph, node: Node) -> None:
    batches = _batches_of_a_step(node, is_time_major=bool(node.integer("is_time_major")))
    state = _rnn_step(graph, node, batches, is_sequence=True)
    graph.reshape(state, graph.output(node), graph.result(node).shape)
    if len(node.outputs) > 1:
        graph.define(node, state, 1)


def _check_activation(node: Node) -> int:
    activation = node.integer("activation")
    if activation and activation not in _CURVES:
        raise LiteRTUnsupported(f"activation {activation}")
    return activation


def _batches_of_a_step(node: Node, *, is_time_major: bool) -> int:
    """The batches of a sequence of one step; raises Unsupported for a longer one."""
    first, second, _ = node.tensor(0).shape
    steps, batches = (first, second) if is_time_major else (second, first)
    if steps != 1:
        raise LiteRTUnsupported(f"{steps} steps")
    return batches


def _flat(graph: LiteRTGraph, numbers: _Arithmetic, source: int, shape: Shape) -> int:
    result = numbers.numbers(shape[1])
    graph.reshape(source, result, shape)
    return result


PRODUCTS: Mapping[OperationType, Lower] = {
    OperationType.LSTM: _lstm,
    OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM: _sequence_lstm,
    OperationType.RNN: _rnn,
    OperationType.UNIDIRECTIONAL_SEQUENCE_RNN: _sequence_rnn,
}
"""Other forms of operations, which raise Unsupported where they do not suit."""
