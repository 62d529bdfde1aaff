"""QUANTIZED_16BIT_LSTM: one time step in 8-bit data with 16-bit fixed point inside.

Data is unsigned with scale 1/128 around 128; sums become 16-bit numbers with 3 integer bits, the
cell state has 4. A peculiarity of the rule: the data of a step is joined as [input, last output],
but each gate's weights as [recurrent weights, input weights], and columns meet as they then stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels.facts import Facts, matrices
from nnasync.kernels.fixed_functions import logistic_table, tanh_table
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Signature,
    Step,
    Tensor,
)
from nnasync.kernels.recurrent.directions import named
from nnasync.kernels.recurrent.integer_steps import (
    INT8,
    INT16,
    Multiplier,
    exact_dtype,
    lookup,
    product,
    round_shift,
    saturate,
    scale_of,
    state_exponent,
)
from nnasync.kernels.steps import Call, copy, sequence

_Q8, _Q16 = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT16_SYMM
_SOURCE, _CELL, _OUTPUT = 0, 13, 14
_SCALE, _ZERO, _CELL_EXPONENT = 1 / 128, 128, -11
_GATES = (0, 2, 1, 3)
"""Operands come as input, forget, cell, output; inside the cell's gate is second."""
_HALF = np.asarray(1 << 14)
_OFFSET = np.asarray(128)


def _signature() -> Signature:
    weights = [
        f"{source}_to_{gate}_weights"
        for source in ("input", "recurrent")
        for gate in ("input", "forget", "cell", "output")
    ]
    biases = ("input_gate_bias", "forget_gate_bias", "cell_bias", "output_gate_bias")
    inputs = (
        *named(_Q8, 2, "input", *weights),
        *named(OperandType.TENSOR_INT32, 1, *biases),
        *named(_Q16, 2, "cell_state_in"),
        *named(_Q8, 2, "output_in"),
    )
    return Signature(
        HalVersion.V1_2, inputs, (*named(_Q16, 2, "cell_state"), *named(_Q8, 2, "output"))
    )


def _check_quantization(arguments: Arguments, index: int, scale: float, zero_point: int) -> None:
    tensor = arguments.tensor(index)
    if (tensor.scale, tensor.zero_point) != (scale, zero_point):
        raise arguments.error(
            index,
            f"has scale {tensor.scale} and zero point {tensor.zero_point},"
            f" expected {scale} and {zero_point}",
        )


def _requires(arguments: Arguments, outputs: Sequence[Tensor]) -> HalVersion:
    """All scales and zero points are fixed or follow from those of the first weights."""
    weights, scale = arguments.tensor(1), scale_of(arguments, 1)
    for index in (_SOURCE, _OUTPUT):
        _check_quantization(arguments, index, _SCALE, _ZERO)
    for index in range(1, 9):
        _check_quantization(arguments, index, weights.scale, weights.zero_point)
    bias = arguments.tensor(9)
    if scale_of(arguments, 9) != scale / 128:
        raise arguments.error(9, f"has scale {bias.scale}, expected {weights.scale / 128}")
    for index in range(9, 13):
        _check_quantization(arguments, index, bias.scale, 0)
    exponent = state_exponent(arguments, _CELL)
    if exponent != _CELL_EXPONENT:
        raise arguments.error(_CELL, f"has scale 2**{exponent}, expected 2**{_CELL_EXPONENT}")
    return HalVersion.V1_2


def _infer(arguments: Arguments) -> list[Tensor]:
    _requires(arguments, ())
    batches, features = arguments.tensor(_SOURCE, 2).shape
    units = arguments.tensor(_OUTPUT, 2).shape[1]
    shapes = dict.fromkeys(range(1, 5), (units, features))
    shapes |= dict.fromkeys(range(5, 9), (units, units))
    expected: dict[int, tuple[int, ...]] = {**shapes, _CELL: (batches, units)}
    expected |= {_OUTPUT: (batches, units), **dict.fromkeys(range(9, 13), (units,))}
    for index, shape in expected.items():
        arguments.check_shape(index, shape)
    return [
        Tensor(type=_Q16, shape=(batches, units), scale=arguments.tensor(_CELL).scale),
        Tensor(type=_Q8, shape=(batches, units), scale=_SCALE, zero_point=_ZERO),
    ]


class _PackedCell:
    """Packed weights [features + units, 4 * units] and what follows their sums."""

    def __init__(self, arguments: Arguments) -> None:
        value = arguments.value
        from_input = np.concatenate([value(1 + gate) for gate in _GATES])
        from_output = np.concatenate([value(5 + gate) for gate in _GATES])
        weights = np.concatenate([from_output, from_input], axis=1).astype(np.int64).T
        weights = weights - arguments.tensor(1).zero_point
        self.weights = np.ascontiguousarray(weights, exact_dtype(weights, 255))
        bias = np.concatenate([value(9 + gate) for gate in _GATES])
        self.bias = (bias - _ZERO * weights.sum(axis=0)).reshape(4, 1, -1)
        self.multiplier = Multiplier([4096 * scale_of(arguments, 9)])

    def scratch(self, batches: int) -> list[ArraySpec]:
        terms, columns = self.weights.shape
        gates = (4, batches, columns // 4)
        return [
            ArraySpec((batches, terms), self.weights.dtype),
            ArraySpec((batches, columns), self.weights.dtype),
            *[ArraySpec(gates, np.int64)] * 2,
            *[ArraySpec(gates, np.int16)] * 2,
        ]

    def calls(
        self,
        sources: Sequence[Array],
        cell: tuple[Array, Array],
        output: Array,
        scratch: Sequence[Array],
    ) -> list[Call]:
        """Calls from input and last output to the new cell state and output."""
        rows, sums, wide, work, words, active = scratch
        source, last = sources
        features = source.shape[1]
        logistic, tanh = logistic_table(), tanh_table(3)
        return [
            copy(rows[:, :features], source),
            copy(rows[:, features:], last),
            (rows.dot, (self.weights, sums)),
            copy(wide, sums.reshape(len(sums), 4, -1).transpose(1, 0, 2)),
            (np.add, (wide, self.bias, wide)),
            *self.multiplier.calls(wide, work),
            saturate(wide, INT16),
            copy(words, wide),
            lookup(logistic, words, active),
            lookup(tanh, words[1], active[1]),
            *_new_cell(active, cell, wide, work),
            (np.left_shift, (wide[0], np.asarray(1), wide[0])),
            saturate(wide[0], INT16),
            copy(words[0], wide[0]),
            lookup(tanh, words[0], words[1]),
            *_fraction_product(active[3], words[1], wide[0]),
            *round_shift(wide[0], 8, work[0]),
            saturate(wide[0], INT8),
            (np.add, (wide[0], _OFFSET, wide[0])),
            copy(output, wide[0]),
        ]


def _fraction_product(a: Array, b: Array, target: Array) -> list[Call]:
    """Calls of the product of 16-bit fractions a and b, rounded, halves up."""
    return [
        product(a, b, target),
        (np.add, (target, _HALF, target)),
        (np.right_shift, (target, np.asarray(15), target)),
    ]


def _new_cell(active: Array, cell: tuple[Array, Array], wide: Array, work: Array) -> list[Call]:
    """Calls that leave the new cell state in wide[0] too."""
    last, new = cell
    return [
        *_fraction_product(active[0], active[1], wide[0]),
        *round_shift(wide[0], 4, work[0]),
        *_fraction_product(active[2], last, wide[1]),
        (np.add, (wide[0], wide[1], wide[0])),
        saturate(wide[0], INT16),
        copy(new, wide[0]),
    ]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    cell = _PackedCell(arguments)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        sources, states = (inputs[_SOURCE], inputs[_OUTPUT]), (inputs[_CELL], outputs[0])
        return sequence(cell.calls(sources, states, outputs[1], scratch))

    return Kernel(bind, cell.scratch(outputs[0].shape[0]))


QUANTIZED_16BIT_LSTM = Operation(
    OperationType.QUANTIZED_16BIT_LSTM,
    [_signature()],
    _infer,
    _prepare,
    requires=_requires,
    facts=Facts(multiply_adds=matrices),
)
