"""LSTM, RNN and GRU layers, forward, backward and both.

The HAL has operations for the first two, which run forward: a layer that runs backward gets its
sequence turned round, and one of both directions becomes two. The HAL has no GRU, so it is written
down step by step, for sequences of a few steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from nnasync._core.importers.onnx.forms import Convert, check_count, is_float
from nnasync._core.importers.onnx.maths import Maths
from nnasync._core.importers.onnx.moving import cut, gathered, joined_along, transposed
from nnasync._core.importers.onnx.onnx_file import OnnxNode
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope
from nnasync._core.model import Value
from nnasync._core.model.graph import Input
from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels.operation import Tensor

_T = OperationType
_TANH = 4
_RELU = 1
_MOST_STEPS = 64
"""Longest sequence that is written down step by step."""
_LSTM_GATES = (0, 2, 3, 1)
"""Input, forget, cell and output gate, where ONNX has input, output, forget and cell."""
_PEEPHOLES = (0, 2, 1)
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_STATE, _CELL_STATE, _LENGTHS, _PEEPHOLE_WEIGHTS = 5, 6, 4, 7


class _Way(msgspec.Struct, frozen=True, eq=False):
    """One direction of a layer: its sequence, its weights by gates, and the states that come in."""

    scope: OnnxScope
    node: OnnxNode
    number: int
    x: Value
    weights: Array
    recurrent: Array
    bias: Array
    hidden: int

    @property
    def times(self) -> int:
        """Returns the number of steps."""
        return self.x.shape[0]

    @property
    def batches(self) -> int:
        """Returns the number of sequences."""
        return self.x.shape[1]

    def state(self, place: int) -> Value:
        """A state that comes in, as [batches, hidden]; zeros where it is left out."""
        shape, scope = (self.batches, self.hidden), self.scope
        if not scope.has(self.node, place):
            check_count(math.prod(shape))
            return scope.builder.constant(np.zeros(shape, self.weights.dtype))
        name = self.node.inputs[place]
        known = scope.array(name)
        axis = 1 if self.node.attribute("layout", 0) else 0
        if known is not None:
            return scope.builder.constant(np.ascontiguousarray(known.take(self.number, axis)))
        x = scope.input(self.node, place)
        chosen = [range(n) for n in x.shape]
        chosen[axis] = range(self.number, self.number + 1)
        return scope.reshape(cut(scope, x, chosen), shape)


Layer = Callable[[_Way], tuple[Value, ...]]
"""Adds one direction; gives the sequence, [times, batches, hidden], and the states at its end."""


def _recurrent(layer: Layer, gates: int) -> Convert:
    def convert(scope: OnnxScope, step: Step) -> None:
        node = step.node
        backward = _DIRECTIONS.get(str(node.attribute("direction", "forward")))
        if backward is None or node.attribute("clip", 0.0):
            raise ModelError("has an unknown direction, or clips its gates")
        is_batch_major = bool(node.attribute("layout", 0))
        x = scope.input(node, 0)
        if len(x.shape) != 3 or not is_float(x):
            raise ModelError(f"has an input of shape {list(x.shape)}")
        x = transposed(scope, x, (1, 0, 2)) if is_batch_major else x
        if scope.has(node, _LENGTHS):
            lengths = scope.integers(node, _LENGTHS, "lengths of the sequences")
            if any(length != x.shape[0] for length in lengths):
                raise ModelError("has sequences of several lengths")
        results = []
        for number, turned in enumerate(backward):
            y = _turned(scope, x) if turned else x
            sequence, *states = layer(_way(scope, node, number, y, gates))
            results.append((_turned(scope, sequence) if turned else sequence, *states))
        _define(scope, node, results, is_batch_major=is_batch_major)

    return convert


def _turned(scope: OnnxScope, x: Value) -> Value:
    """A sequence from its end on."""
    return gathered(scope, x, 0, range(x.shape[0])[::-1]) if x.shape[0] > 1 else x


def _way(scope: OnnxScope, node: OnnxNode, number: int, x: Value, gates: int) -> _Way:
    hidden = int(node.attribute("hidden_size", 0))
    weights = scope.constant(node, 1, "weights")[number].reshape(gates, hidden, -1)
    recurrent = scope.constant(node, 2, "recurrent weights")[number].reshape(gates, hidden, hidden)
    bias = np.zeros((2, gates, hidden), weights.dtype)
    if scope.has(node, 3):
        bias = scope.constant(node, 3, "bias")[number].reshape(2, gates, hidden)
    return _Way(scope, node, number, x, weights, recurrent, bias, hidden)


def _define(
    scope: OnnxScope, node: OnnxNode, results: list[tuple[Value, ...]], *, is_batch_major: bool
) -> None:
    """Make the directions, one beside the other, the outputs."""
    sequences, *states = zip(*results, strict=True)
    ways = len(results)
    times, batches, hidden = sequences[0].shape
    for name, parts, shape in (
        (node.outputs[0], sequences, (times, 1, batches, hidden)),
        *zip(node.outputs[1:], states, [(1, batches, hidden)] * 2, strict=False),
    ):
        if name:
            axis = len(shape) - 3
            wide = [scope.reshape(part, shape) for part in parts]
            y = wide[0] if ways == 1 else joined_along(scope, wide, axis)
            if is_batch_major:
                y = transposed(scope, y, (2, 0, 1, 3) if len(shape) == 4 else (1, 0, 2))
            scope.define(name, y)


def _activations(way: _Way, usual: tuple[str, ...]) -> tuple[str, ...]:
    """The functions of a direction."""
    count = len(usual)
    given = [
        each.decode() if isinstance(each, bytes) else str(each)
        for each in way.node.attribute("activations", [])
    ]
    return tuple(given[way.number * count : (way.number + 1) * count]) or usual


def _lstm(way: _Way) -> tuple[Value, ...]:
    usual = ("Sigmoid", "Tanh", "Tanh")
    if _activations(way, usual) != usual or way.node.attribute("input_forget", 0):
        raise ModelError("has unusual activations, or couples its gates")
    bias = way.bias.sum(0, dtype=way.bias.dtype)
    kind = np.float16 if way.x.type == OperandType.TENSOR_FLOAT16 else float
    real = kind(0.0)
    operands: list[Input] = [
        way.x,
        *(np.ascontiguousarray(way.weights[gate]) for gate in _LSTM_GATES),
        *(np.ascontiguousarray(way.recurrent[gate]) for gate in _LSTM_GATES),
        *_peepholes(way),
        *(np.ascontiguousarray(bias[gate]) for gate in _LSTM_GATES),
        *(None, None, way.state(_STATE), way.state(_CELL_STATE), _TANH, real, real, True),
        *[None] * 4,
    ]
    type = _T.UNIDIRECTIONAL_SEQUENCE_LSTM
    return way.scope.builder.operation_outputs(type, *operands, outputs=[None] * 3)


def _peepholes(way: _Way) -> list[Input]:
    if not way.scope.has(way.node, _PEEPHOLE_WEIGHTS):
        return [None] * 3
    found = way.scope.constant(way.node, _PEEPHOLE_WEIGHTS, "peephole weights")[way.number]
    weights = found.reshape(3, way.hidden)
    return [np.ascontiguousarray(weights[gate]) for gate in _PEEPHOLES]


def _rnn(way: _Way) -> tuple[Value, ...]:
    (function,) = _activations(way, ("Tanh",))
    kinds = {"Tanh": _TANH, "Relu": _RELU}
    if function not in kinds:
        raise ModelError(f"has activation {function}")
    bias = np.ascontiguousarray(way.bias.sum(0, dtype=way.bias.dtype)[0])
    weights = [np.ascontiguousarray(each[0]) for each in (way.weights, way.recurrent)]
    operands: list[Input] = [way.x, *weights, bias, way.state(_STATE), kinds[function], 1]
    type = _T.UNIDIRECTIONAL_SEQUENCE_RNN
    shapes = (way.times, way.batches, way.hidden), (way.batches, way.hidden)
    outputs = [Tensor(type=way.x.type, shape=shape) for shape in shapes]
    return way.scope.builder.operation_outputs(type, *operands, outputs=outputs)


def _gru(way: _Way) -> tuple[Value, ...]:
    """h = (1 - z) * candidate + z * h, for each step.

    What comes from the inputs is worked out for all steps at once.
    """
    usual = ("Sigmoid", "Tanh")
    if _activations(way, usual) != usual or way.times > _MOST_STEPS:
        raise ModelError(f"has unusual activations, or {way.times} steps")
    scope, maths, state = way.scope, Maths(way.scope), way.state(_STATE)
    late = bool(way.node.attribute("linear_before_reset", 0))
    bias = way.bias[0].copy()
    bias[:2] += way.bias[1, :2]
    rows = scope.reshape(way.x, (way.times * way.batches, way.x.shape[2]))
    matrix = way.weights.reshape(3 * way.hidden, -1)
    sums = maths.apply(_T.FULLY_CONNECTED, rows, np.ascontiguousarray(matrix), bias.reshape(-1), 0)
    results = []
    for time in range(way.times):
        place = range(time * way.batches, (time + 1) * way.batches)
        parts = [
            cut(scope, sums, [place, range(gate * way.hidden, (gate + 1) * way.hidden)])
            for gate in range(3)
        ]
        state = _gru_step(way, maths, parts, state, late=late)
        results.append(state)
    shape = (1, way.batches, way.hidden)
    wide = [scope.reshape(each, shape) for each in results]
    return wide[0] if len(wide) == 1 else joined_along(scope, wide, 0), state


def _gru_step(way: _Way, maths: Maths, parts: list[Value], state: Value, *, late: bool) -> Value:
    update, reset = (
        maths.apply(_T.LOGISTIC, maths.add(part, _recurrence(way, maths, state, gate)))
        for gate, part in enumerate(parts[:2])
    )
    offsets = way.bias[1, 2]
    if late:
        before = maths.mul(reset, _recurrence(way, maths, state, 2, offsets))
    else:
        before = _recurrence(way, maths, maths.mul(reset, state), 2, offsets)
    candidate = maths.apply(_T.TANH, maths.add(parts[2], before))
    return maths.add(candidate, maths.mul(update, maths.sub(state, candidate)))


def _recurrence(
    way: _Way, maths: Maths, state: Value, gate: int, offsets: Array | None = None
) -> Value:
    """A state times the recurrent weights of a gate."""
    bias = np.zeros(way.hidden, way.bias.dtype) if offsets is None else offsets
    matrix = np.ascontiguousarray(way.recurrent[gate])
    return maths.apply(_T.FULLY_CONNECTED, state, matrix, np.ascontiguousarray(bias), 0)


CONVERTERS: dict[str, Convert] = {
    "LSTM": _recurrent(_lstm, 4),
    "GRU": _recurrent(_gru, 3),
    "RNN": _recurrent(_rnn, 1),
}
"""How each operator becomes operations."""
