"""ELU, HARD_SWISH, LOGISTIC, RELU, RELU1, RELU6 and TANH; quantized values go through a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnasync.hal import (
    Array,
    FusedActivationFunc,
    HalVersion,
    OperandType,
    OperationType,
    is_quantized,
)
from nnasync.kernels import fixed_point
from nnasync.kernels.byte_tables import all_values, lookup_kernel
from nnasync.kernels.elementwise.squashing import logistic_table, tanh_table
from nnasync.kernels.facts import MEDIUM, CriterionClass, Facts
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Step,
    Tensor,
    quantized_range,
)
from nnasync.kernels.steps import Call, blocks, clip, float_bounds, quantized_bounds, sequence
from nnasync.kernels.uniform import FROM_1_0, UP_TO_4, require_scales, signatures

_F32, _F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16

_TANH = {**FROM_1_0, OperandType.TENSOR_QUANT8_ASYMM: HalVersion.V1_2}
_NEWEST = dict.fromkeys(FROM_1_0, HalVersion.V1_3)

FloatCalls = Callable[[Array, Array, Array], list[Call]]
"""Makes calls from source, target and a scratch array like them."""
Table = Callable[[Arguments, Tensor], Array]
"""Makes the outputs of all values of input 0 in ascending order, to be clamped to 8 bits."""


def _activation(
    type: OperationType,
    types: Mapping[OperandType, HalVersion],
    calls: FloatCalls,
    table: Table,
    quantization: Callable[[Tensor], tuple[float, int]] = lambda source: (0.0, 0),
    ranks: tuple[int, ...] = UP_TO_4,
    *,
    facts: Facts,
) -> Operation:
    """An activation; `quantization` is the scale and zero point that the output must have."""

    def infer(arguments: Arguments) -> list[Tensor]:
        source = arguments.tensor(0)
        scale, zero_point = quantization(source) if is_quantized(source.type) else (0.0, 0)
        return [Tensor(type=source.type, shape=source.shape, scale=scale, zero_point=zero_point)]

    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        source, output = arguments.tensor(0), outputs[0]
        if not is_quantized(source.type):
            return _float_kernel(source, calls)
        require_scales(arguments, 0)
        values = np.clip(table(arguments, output), *quantized_range(output.type))
        return lookup_kernel(source, values)

    return Operation(
        type,
        signatures(types, ("input",), ranks=ranks),
        infer,
        prepare,
        empty=True,
        facts=facts,
    )


def _float_kernel(source: Tensor, calls: FloatCalls) -> Kernel:
    parts = list(blocks(source.size, 1))
    spec = ArraySpec((parts[0].stop,))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        values, target = inputs[0].reshape(-1), outputs[0].reshape(-1)
        return sequence(
            [
                call
                for part in parts
                for call in calls(values[part], target[part], scratch[0][: part.stop - part.start])
            ]
        )

    return Kernel(bind, [spec])


def _relu(type: OperationType, fused: FusedActivationFunc, *, facts: Facts) -> Operation:
    lower, upper = (np.asarray(bound, np.float32) for bound in float_bounds(fused))

    def calls(source: Array, target: Array, scratch: Array) -> list[Call]:
        return [(clip, (source, lower, upper, target))]

    def table(arguments: Arguments, output: Tensor) -> Array:
        values = all_values(output) + output.zero_point
        clamped: Array = np.clip(values, *quantized_bounds(fused, output))
        return clamped

    def same(source: Tensor) -> tuple[float, int]:
        return source.scale, source.zero_point

    return _activation(type, FROM_1_0, calls, table, same, facts=facts)


_HALF, _ONE = np.asarray(0.5, np.float32), np.asarray(1.0, np.float32)


def logistic(source: Array, target: Array) -> list[Call]:
    """Calls of 1 / (1 + exp(-x)), as 0.5 + 0.5 tanh(x / 2), which cannot overflow."""
    return [
        (np.multiply, (source, _HALF, target)),
        (np.tanh, (target, target)),
        (np.multiply, (target, _HALF, target)),
        (np.add, (target, _HALF, target)),
    ]


def _logistic_calls(source: Array, target: Array, scratch: Array) -> list[Call]:
    return logistic(source, target)


def _tanh_calls(source: Array, target: Array, scratch: Array) -> list[Call]:
    return [(np.tanh, (source, target))]


_ZERO, _THREE, _SIX = (np.asarray(value, np.float32) for value in (0.0, 3.0, 6.0))
_SIXTH = np.asarray(1 / 6, np.float32)
_INFINITY = np.asarray(np.inf, np.float32)


def _hard_swish_calls(source: Array, target: Array, scratch: Array) -> list[Call]:
    return [
        (np.add, (source, _THREE, scratch)),
        (clip, (scratch, _ZERO, _SIX, scratch)),
        (np.multiply, (scratch, _SIXTH, scratch)),
        (np.multiply, (source, scratch, target)),
    ]


def _hard_swish_table(arguments: Arguments, output: Tensor) -> Array:
    source = arguments.tensor(0)
    if fixed_point.hard_swish_shift(source.scale, output.scale) > 0:
        raise arguments.error(
            0, f"has scale {source.scale}, expected less than 128 times the output's {output.scale}"
        )
    values = all_values(source)
    return fixed_point.hard_swish(values, source.scale, 0, output.scale, output.zero_point)


def _logistic_quantization(source: Tensor) -> tuple[float, int]:
    return 1 / 256, quantized_range(source.type)[0]


def _tanh_quantization(source: Tensor) -> tuple[float, int]:
    return 1 / 128, quantized_range(source.type)[0] + 128


def _infer_elu(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    return [Tensor(type=source.type, shape=source.shape)]


def _prepare_elu(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    """max(0, x) + min(0, alpha * (exp(x) - 1)), where a NaN of 0 * infinity counts as 0."""
    alpha = np.asarray(arguments.number(1), np.float32)

    def calls(source: Array, target: Array, scratch: Array) -> list[Call]:
        return [
            (np.exp, (source, scratch)),
            (np.subtract, (scratch, _ONE, scratch)),
            (np.multiply, (scratch, alpha, scratch)),
            (np.fmin, (scratch, _ZERO, scratch)),
            (clip, (source, _ZERO, _INFINITY, target)),
            (np.add, (target, scratch, target)),
        ]

    return _float_kernel(arguments.tensor(0), calls)


ELU = Operation(
    OperationType.ELU,
    [
        *signatures({_F32: HalVersion.V1_3}, ("input",), Parameter("alpha", OperandType.FLOAT32)),
        *signatures({_F16: HalVersion.V1_3}, ("input",), Parameter("alpha", OperandType.FLOAT16)),
    ],
    _infer_elu,
    _prepare_elu,
    facts=MEDIUM,
)
HARD_SWISH = _activation(
    OperationType.HARD_SWISH,
    _NEWEST,
    _hard_swish_calls,
    _hard_swish_table,
    ranks=(),
    facts=Facts(CriterionClass.MEDIUM, by_channel=True, rounds_reals=True),
)
LOGISTIC = _activation(
    OperationType.LOGISTIC,
    FROM_1_0,
    _logistic_calls,
    logistic_table,
    _logistic_quantization,
    facts=Facts(by_channel=True, rounds_reals=True, non_negative=True),
)
RELU = _relu(
    OperationType.RELU,
    FusedActivationFunc.RELU,
    facts=Facts(CriterionClass.MEDIUM, by_channel=True, non_negative=True),
)
RELU1 = _relu(
    OperationType.RELU1,
    FusedActivationFunc.RELU1,
    facts=Facts(CriterionClass.MEDIUM, by_channel=True),
)
RELU6 = _relu(
    OperationType.RELU6,
    FusedActivationFunc.RELU6,
    facts=Facts(CriterionClass.MEDIUM, by_channel=True, non_negative=True),
)
TANH = _activation(
    OperationType.TANH,
    _TANH,
    _tanh_calls,
    tanh_table,
    _tanh_quantization,
    facts=Facts(by_channel=True, rounds_reals=True),
)
