"""LSTM, RNN and UNIDIRECTIONAL_SEQUENCE_LSTM.

The weights of all gates stand side by side, so that one step is a product with the input, one with
the last output, and elementwise work; a sequence multiplies all its inputs at once beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels.activation import logistic
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
)
from nnasync.kernels.steps import Call, add_rows, clip, copy, sequence

__all__ = ["OPERATIONS", "LSTM", "RNN", "UNIDIRECTIONAL_SEQUENCE_LSTM"]

_F32, _F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
_SCALARS = {_F32: OperandType.FLOAT32, _F16: OperandType.FLOAT16}

_TENSORS: tuple[tuple[str, bool], ...] = (
    ("input", False),
    ("input_to_input_weights", True),
    ("input_to_forget_weights", False),
    ("input_to_cell_weights", False),
    ("input_to_output_weights", False),
    ("recurrent_to_input_weights", True),
    ("recurrent_to_forget_weights", False),
    ("recurrent_to_cell_weights", False),
    ("recurrent_to_output_weights", False),
    ("cell_to_input_weights", True),
    ("cell_to_forget_weights", True),
    ("cell_to_output_weights", True),
    ("input_gate_bias", True),
    ("forget_gate_bias", False),
    ("cell_bias", False),
    ("output_gate_bias", False),
    ("projection_weights", True),
    ("projection_bias", True),
    ("output_state_in", False),
    ("cell_state_in", False),
)
_LAYER_NORMS = ("input", "forget", "cell", "output")
_ONE = np.asarray(1.0, np.float32)
_EPSILON = np.asarray(1e-8, np.float32)


def _lstm_parameters(type: OperandType) -> tuple[Parameter, ...]:
    tensors = tuple(Parameter(name, type, optional) for name, optional in _TENSORS)
    scalar = _SCALARS[type]
    clips = (Parameter("cell_clip", scalar), Parameter("projection_clip", scalar))
    return (*tensors, Parameter("activation", OperandType.INT32), *clips)


def _norm_parameters(type: OperandType) -> tuple[Parameter, ...]:
    return tuple(Parameter(f"{name}_layer_norm_weights", type, True) for name in _LAYER_NORMS)


def _named(type: OperandType, *names: str) -> tuple[Parameter, ...]:
    return tuple(Parameter(name, type) for name in names)


def _lstm_signatures() -> list[Signature]:
    signatures = []
    for type, since in ((_F32, HalVersion.V1_0), (_F16, HalVersion.V1_2)):
        inputs = _lstm_parameters(type)
        outputs = _named(type, "scratch", "output_state", "cell_state", "output")
        signatures.append(Signature(since, inputs, outputs))
        inputs += _norm_parameters(type)
        signatures.append(Signature(HalVersion.V1_2, inputs, outputs))
    return signatures


def _sequence_signatures() -> list[Signature]:
    signatures = []
    for type in (_F32, _F16):
        major = Parameter("is_time_major", OperandType.BOOL)
        inputs = (*_lstm_parameters(type), major, *_norm_parameters(type))
        outputs = _named(type, "output", "output_state", "cell_state")
        signatures.append(Signature(HalVersion.V1_3, inputs, outputs))
        signatures.append(Signature(HalVersion.V1_2, inputs, outputs[:1]))
    return signatures


def _activate(arguments: Arguments, index: int) -> int:
    value = arguments.integer(index)
    if value not in (0, 1, 2, 3, 4, 6):
        raise arguments.error(
            index,
            f"is {value}, expected 0 (none), 1 (relu), 2 (relu1), 3 (relu6), 4 (tanh), 6 (sigmoid)",
        )
    return value


def _activation_calls(kind: int, source: Array, target: Array) -> list[Call]:
    """Calls of an activation by its number in recurrent operations."""
    if kind == 4:
        return [(np.tanh, (source, target))]
    if kind == 6:
        return logistic(source, target)
    bounds = {1: (0.0, np.inf), 2: (-1.0, 1.0), 3: (0.0, 6.0)}
    if kind in bounds:
        lower, upper = (np.asarray(bound, np.float32) for bound in bounds[kind])
        return [(clip, (source, lower, upper, target))]
    return [] if source is target else [copy(target, source)]


class _Sizes:
    """Sizes of an LSTM and the rules on which operands are there and of which shape."""

    def __init__(self, arguments: Arguments, first_norm: int) -> None:
        self.arguments = arguments
        self.first_norm = first_norm
        self.units, self.input = arguments.tensor(2, 2).shape
        self.output = arguments.tensor(6, 2).shape[1]
        self.cifg = not arguments.has(1)
        self.peephole = arguments.has(10)
        self.projection = arguments.has(16)
        self.norm = arguments.has(first_norm + 1)
        self.gates = 3 if self.cifg else 4
        self._check_presence()
        self._check_shapes()

    def _require(self, index: int, present: bool, why: str) -> None:
        if self.arguments.has(index) != present:
            word = "must not be omitted" if present else "must be omitted"
            raise self.arguments.error(index, f"{word} {why}")

    def _check_presence(self) -> None:
        why = "without input_to_input_weights (CIFG)" if self.cifg else "with an input gate"
        for index in (5, 12):
            self._require(index, not self.cifg, why)
        self._require(11, self.peephole, "to match cell_to_forget_weights")
        self._require(9, self.peephole and not self.cifg, "to match the other peephole weights")
        if not self.projection:
            self._require(17, False, "without projection_weights")
        norms = "to match the other layer norm weights"
        self._require(self.first_norm, self.norm and not self.cifg, norms)
        for index in (2, 3):
            self._require(self.first_norm + index, self.norm, norms)
        if not self.projection and self.output != self.units:
            raise self.arguments.error(6, f"has {self.output} columns, expected {self.units}")

    def _check_shapes(self) -> None:
        units, output = self.units, self.output
        shapes = dict.fromkeys((1, 2, 3, 4), (units, self.input))
        shapes |= dict.fromkeys((5, 6, 7, 8), (units, output))
        expected: dict[int, tuple[int, ...]] = {**shapes}
        expected |= dict.fromkeys(range(9, 16), (units,))
        expected |= {16: (output, units), 17: (output,)}
        expected |= dict.fromkeys(range(self.first_norm, self.first_norm + 4), (units,))
        for index, shape in expected.items():
            tensor = self.arguments.optional(index)
            if tensor is not None and tensor.shape != shape:
                raise self.arguments.error(index, f"has shape {tensor.shape}, expected {shape}")
        source = self.arguments.tensor(0)
        if source.shape[-1] != self.input:
            raise self.arguments.error(
                0, f"has {source.shape[-1]} features, expected the weights' {self.input}"
            )

    def check_state(self, batches: int) -> None:
        """Raises ModelError unless the states in have the right shapes."""
        for index, size in ((18, self.output), (19, self.units)):
            shape = self.arguments.tensor(index).shape
            if shape != (batches, size):
                raise self.arguments.error(index, f"has shape {shape}, expected {(batches, size)}")


class _Cell:
    """A prepared LSTM cell; gates stand in the order [input,] forget, output, cell."""

    def __init__(self, arguments: Arguments, sizes: _Sizes) -> None:
        self.sizes = sizes
        gates = (2, 4, 3) if sizes.cifg else (1, 2, 4, 3)
        value = arguments.value
        self.from_input = np.concatenate([value(gate) for gate in gates]).T.copy()
        self.from_output = np.concatenate([value(gate + 4) for gate in gates]).T.copy()
        biases = [value(gate + 11).reshape(-1) for gate in gates]
        self.bias = None if sizes.norm else np.concatenate(biases)
        first = sizes.first_norm - 1
        self.norms = [
            (value(first + gate), bias) if sizes.norm else None
            for gate, bias in zip(gates, biases, strict=True)
        ]
        self.peepholes = [
            value(index).reshape(-1) if arguments.has(index) else None
            for index in ((10, 11) if sizes.cifg else (9, 10, 11))
        ]
        self.projection = value(16).T.copy() if sizes.projection else None
        self.projection_bias = value(17).reshape(-1) if arguments.has(17) else None
        self.kind = _activate(arguments, 20)
        self.clips = [self._clip(arguments, index) for index in (21, 22)]

    @staticmethod
    def _clip(arguments: Arguments, index: int) -> tuple[Array, Array] | None:
        limit = arguments.number(index)
        if not limit >= 0:
            raise arguments.error(index, f"is {limit}, expected at least 0 (0: no clipping)")
        if limit == 0:
            return None
        return np.asarray(-limit, np.float32), np.asarray(limit, np.float32)

    def scratch(self, batches: int) -> list[ArraySpec]:
        """Scratch of one time step besides the sums of the gates."""
        units = self.sizes.units
        return [
            ArraySpec((batches, self.sizes.gates * units)),
            ArraySpec((batches, units)),
            ArraySpec((batches, 1)),
        ]

    def products(self, rows: Array, sums: Array) -> list[Call]:
        """Calls from inputs [rows, features] to sums [rows, gates * units], with bias."""
        calls: list[Call] = [(rows.dot, (self.from_input, sums))]
        if self.bias is not None:
            calls.append(add_rows(np.add, sums, self.bias))
        return calls

    def step(
        self,
        sums: Array,
        states: tuple[Array, Array],
        targets: tuple[Array, Array],
        scratch: Sequence[Array],
    ) -> list[Call]:
        """Calls of one time step from the input's sums; states and targets are (output, cell)."""
        (last_output, last_cell), (output, cell) = states, targets
        recurrent, work, one = scratch
        units = self.sizes.units
        calls: list[Call] = [
            (last_output.dot, (self.from_output, recurrent)),
            (np.add, (sums, recurrent, sums)),
        ]
        parts = [sums[:, i * units : (i + 1) * units] for i in range(self.sizes.gates)]
        *before, out_gate, candidate = parts
        for part, peephole, norm in zip(before, self.peepholes, self.norms, strict=False):
            calls += self._gate(part, last_cell, peephole, norm, work, one)
        calls += self._gate(candidate, last_cell, None, self.norms[-1], work, one)
        early = sums[:, : len(before) * units]
        calls += logistic(early, early)
        calls += _activation_calls(self.kind, candidate, candidate)
        calls += self._new_cell(before, candidate, last_cell, cell, work)
        calls += self._gate(out_gate, cell, self.peepholes[-1], self.norms[-2], work, one)
        calls += logistic(out_gate, out_gate)
        calls += _activation_calls(self.kind, cell, work)
        return calls + self._new_output(out_gate, work, output, recurrent)

    def _gate(
        self,
        part: Array,
        cell: Array,
        peephole: Array | None,
        norm: tuple[Array, Array] | None,
        work: Array,
        one: Array,
    ) -> list[Call]:
        """Calls of peephole and layer norm on the sums of one gate."""
        calls: list[Call] = []
        if peephole is not None:
            calls += [(np.multiply, (cell, peephole, work)), (np.add, (part, work, part))]
        if norm is not None:
            calls += _layer_norm(part, *norm, work, one)
        return calls

    def _new_cell(
        self, gates: Sequence[Array], candidate: Array, last: Array, cell: Array, work: Array
    ) -> list[Call]:
        forget = gates[-1]
        calls: list[Call] = []
        if self.sizes.cifg:
            calls.append((np.subtract, (_ONE, forget, work)))
            calls.append((np.multiply, (work, candidate, candidate)))
        else:
            calls.append((np.multiply, (gates[0], candidate, candidate)))
        calls.append((np.multiply, (forget, last, forget)))
        calls.append((np.add, (forget, candidate, cell)))
        if self.clips[0] is not None:
            calls.append((clip, (cell, *self.clips[0], cell)))
        return calls

    def _new_output(self, gate: Array, active: Array, output: Array, spare: Array) -> list[Call]:
        if self.projection is None:
            return [(np.multiply, (gate, active, output))]
        calls: list[Call] = [
            (np.multiply, (gate, active, active)),
            (active.dot, (self.projection, output)),
        ]
        if self.projection_bias is not None:
            calls.append(add_rows(np.add, output, self.projection_bias))
        if self.clips[1] is not None:
            calls.append((clip, (output, *self.clips[1], output)))
        return calls


def _layer_norm(x: Array, weights: Array, bias: Array, work: Array, one: Array) -> list[Call]:
    """Calls of (x - mean) / deviation * weights + bias over the last dimension, in place."""
    share = np.asarray(1 / x.shape[-1], np.float32)
    return [
        (np.add.reduce, (x, -1, None, one, True)),
        (np.multiply, (one, share, one)),
        (np.subtract, (x, one, x)),
        (np.multiply, (x, x, work)),
        (np.add.reduce, (work, -1, None, one, True)),
        (np.multiply, (one, share, one)),
        (np.add, (one, _EPSILON, one)),
        (np.sqrt, (one, one)),
        (np.divide, (x, one, x)),
        (np.multiply, (x, weights, x)),
        (np.add, (x, bias, x)),
    ]


def _infer_lstm(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0, 2)
    sizes = _Sizes(arguments, 23)
    batches = source.shape[0]
    sizes.check_state(batches)
    shapes = (sizes.gates * sizes.units, sizes.output, sizes.units, sizes.output)
    return [Tensor(type=source.type, shape=(batches, size)) for size in shapes]


def _prepare_lstm(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    cell = _Cell(arguments, _Sizes(arguments, 23))
    batches = arguments.tensor(0).shape[0]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        rows, last_output, last_cell = inputs[0], inputs[18], inputs[19]
        sums, output_state, cell_state, output = outputs
        calls = cell.products(rows, sums)
        targets = (output, cell_state)
        calls += cell.step(sums, (last_output, last_cell), targets, scratch)
        return sequence([*calls, copy(output_state, output)])

    return Kernel(bind, cell.scratch(batches))


def _times(arguments: Arguments) -> tuple[int, int]:
    """Number of time steps and of batches."""
    first, second, _ = arguments.tensor(0, 3).shape
    return (first, second) if arguments.flag(23) else (second, first)


def _infer_sequence_lstm(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0, 3)
    sizes = _Sizes(arguments, 24)
    _, batches = _times(arguments)
    sizes.check_state(batches)
    shapes = (
        (*source.shape[:2], sizes.output),
        (batches, sizes.output),
        (batches, sizes.units),
    )
    count = len(arguments.signature.outputs)
    return [Tensor(type=source.type, shape=shape) for shape in shapes[:count]]


def _prepare_sequence_lstm(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    sizes = _Sizes(arguments, 24)
    cell = _Cell(arguments, sizes)
    times, batches = _times(arguments)
    turned = not arguments.flag(23) and batches > 1
    specs = [
        ArraySpec((times, batches, sizes.gates * sizes.units)),
        ArraySpec((batches, sizes.units)),
    ]
    specs += cell.scratch(batches)
    if turned:
        specs.append(ArraySpec((times, batches, sizes.input)))
        specs.append(ArraySpec((times, batches, sizes.output)))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, last_output, last_cell = inputs[0], inputs[18], inputs[19]
        calls: list[Call] = []
        results = outputs[0].reshape(times, batches, sizes.output)
        if turned:
            calls.append(copy(scratch[5], source.transpose(1, 0, 2)))
            source, results = scratch[5], scratch[6]
        sums = scratch[0]
        cells = outputs[2] if len(outputs) > 1 else scratch[1]
        rows = source.reshape(times * batches, sizes.input)
        calls += cell.products(rows, sums.reshape(times * batches, -1))
        for time in range(times):
            targets = (results[time], cells)
            calls += cell.step(sums[time], (last_output, last_cell), targets, scratch[2:5])
            last_output, last_cell = targets
        if turned:
            calls.append(copy(outputs[0], results.transpose(1, 0, 2)))
        if len(outputs) > 1:
            calls.append(copy(outputs[1], results[-1]))
        return sequence(calls)

    return Kernel(bind, specs)


def _rnn_signatures() -> list[Signature]:
    names = ("input", "weights", "recurrent_weights", "bias", "hidden_state_in")
    return [
        Signature(
            since,
            (*_named(type, *names), Parameter("activation", OperandType.INT32)),
            _named(type, "hidden_state", "output"),
        )
        for type, since in ((_F32, HalVersion.V1_0), (_F16, HalVersion.V1_2))
    ]


def _infer_rnn(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0, 2)
    units = arguments.tensor(1, 2).shape[0]
    shape = (source.shape[0], units)
    expected = {1: (units, source.shape[1]), 2: (units, units), 3: (units,), 4: shape}
    for index, wanted in expected.items():
        given = arguments.tensor(index).shape
        if given != wanted:
            raise arguments.error(index, f"has shape {given}, expected {wanted}")
    return [Tensor(type=source.type, shape=shape)] * 2


def _prepare_rnn(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    weights, recurrent = arguments.value(1).T, arguments.value(2).T
    bias = arguments.value(3).reshape(-1)
    kind = _activate(arguments, 5)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, hidden = inputs[0], inputs[4]
        state, output = outputs
        calls: list[Call] = [
            (source.dot, (weights, output)),
            (hidden.dot, (recurrent, state)),
            (np.add, (output, state, output)),
            add_rows(np.add, output, bias),
            *_activation_calls(kind, output, output),
            copy(state, output),
        ]
        return sequence(calls)

    return Kernel(bind)


LSTM = Operation(OperationType.LSTM, _lstm_signatures(), _infer_lstm, _prepare_lstm)
RNN = Operation(OperationType.RNN, _rnn_signatures(), _infer_rnn, _prepare_rnn)
UNIDIRECTIONAL_SEQUENCE_LSTM = Operation(
    OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM,
    _sequence_signatures(),
    _infer_sequence_lstm,
    _prepare_sequence_lstm,
)

OPERATIONS: tuple[Operation, ...] = (
    LSTM,
    RNN,
    UNIDIRECTIONAL_SEQUENCE_LSTM,
)
