"""HARD_SWISH, LOGISTIC, RELU, RELU1, RELU6 and TANH; quantised values go through a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, FusedActivationFunc, HalVersion, OperandType, OperationType
from nnasync.kernels import fixed_point
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
    is_quantized,
    quantized_range,
)
from nnasync.kernels.steps import Call, blocks, clip, float_bounds, quantized_bounds, sequence

__all__ = [
    "OPERATIONS",
    "HARD_SWISH",
    "LOGISTIC",
    "RELU",
    "RELU1",
    "RELU6",
    "TANH",
    "logistic",
    "table_kernel",
]

_F32, _F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
_Q8, _Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED

_FIRST = {
    _F32: HalVersion.V1_0,
    _Q8: HalVersion.V1_0,
    _F16: HalVersion.V1_2,
    _Q8S: HalVersion.V1_3,
}
_TANH = {**_FIRST, _Q8: HalVersion.V1_2}
_LATEST = dict.fromkeys(_FIRST, HalVersion.V1_3)

FloatCalls = Callable[[Array, Array, Array], list[Call]]
"""Makes calls from source, target and a scratch array like them."""
Table = Callable[[Array, Tensor, Tensor], Array]
"""Makes the outputs of quantised values (int64), to be clamped to the output's range."""


def _signatures(types: dict[OperandType, HalVersion]) -> list[Signature]:
    return [
        Signature(since, (Parameter("input", type),), (Parameter("output", type),))
        for type, since in types.items()
    ]


def table_kernel(source: Tensor, output: Tensor, table: Table) -> Kernel:
    """A kernel that looks each 8-bit value up in a table made with `table`."""
    lowest, highest = quantized_range(source.type)
    values = table(np.arange(lowest, highest + 1), source, output)
    values = np.clip(values, *quantized_range(output.type)).astype(output.dtype)
    by_byte = np.roll(values, lowest).copy()

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        raw = inputs[0].view(np.uint8)
        return sequence([(by_byte.take, (raw, None, outputs[0], "clip"))])

    return Kernel(bind)


def _activation(
    type: OperationType,
    types: dict[OperandType, HalVersion],
    calls: FloatCalls,
    table: Table,
    quantization: Callable[[Tensor], tuple[float, int]] = lambda source: (0.0, 0),
) -> Operation:
    """An activation; `quantization` is the scale and zero point that the output must have."""

    def infer(arguments: Arguments) -> list[Tensor]:
        source = arguments.tensor(0)
        scale, zero_point = quantization(source) if is_quantized(source.type) else (0.0, 0)
        return [Tensor(type=source.type, shape=source.shape, scale=scale, zero_point=zero_point)]

    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        source = arguments.tensor(0)
        if not is_quantized(source.type):
            return _float_kernel(source, calls)
        if not source.scale > 0:
            raise arguments.error(0, f"has scale {source.scale}, expected a positive one")
        return table_kernel(source, outputs[0], table)

    return Operation(type, _signatures(types), infer, prepare)


def _float_kernel(source: Tensor, calls: FloatCalls) -> Kernel:
    parts = list(blocks(source.size, 1))
    spec = ArraySpec((parts[0].stop if parts else 0,))

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


def _relu(type: OperationType, fused: FusedActivationFunc) -> Operation:
    lower, upper = (np.asarray(bound, np.float32) for bound in float_bounds(fused))

    def calls(source: Array, target: Array, scratch: Array) -> list[Call]:
        return [(clip, (source, lower, upper, target))]

    def table(values: Array, source: Tensor, output: Tensor) -> Array:
        return np.clip(values, *quantized_bounds(fused, output))

    def same(source: Tensor) -> tuple[float, int]:
        return source.scale, source.zero_point

    return _activation(type, _FIRST, calls, table, same)


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


def _hard_swish_calls(source: Array, target: Array, scratch: Array) -> list[Call]:
    return [
        (np.add, (source, _THREE, scratch)),
        (clip, (scratch, _ZERO, _SIX, scratch)),
        (np.multiply, (scratch, _SIXTH, scratch)),
        (np.multiply, (source, scratch, target)),
    ]


def _real_table(function: Callable[[Array], Array]) -> Table:
    """A table of a real function, rounded to nearest, halves away from zero."""

    def table(values: Array, source: Tensor, output: Tensor) -> Array:
        real = function((values - source.zero_point) * source.scale) / output.scale
        return np.copysign(np.floor(np.abs(real) + 0.5), real) + output.zero_point

    return table


def _hard_swish_table(values: Array, source: Tensor, output: Tensor) -> Array:
    return fixed_point.hard_swish(
        values, source.scale, source.zero_point, output.scale, output.zero_point
    )


def _logistic_quantization(source: Tensor) -> tuple[float, int]:
    return 1 / 256, quantized_range(source.type)[0]


def _tanh_quantization(source: Tensor) -> tuple[float, int]:
    return 1 / 128, quantized_range(source.type)[0] + 128


HARD_SWISH = _activation(OperationType.HARD_SWISH, _LATEST, _hard_swish_calls, _hard_swish_table)
LOGISTIC = _activation(
    OperationType.LOGISTIC,
    _FIRST,
    _logistic_calls,
    _real_table(lambda x: 0.5 + 0.5 * np.tanh(0.5 * x)),
    _logistic_quantization,
)
RELU = _relu(OperationType.RELU, FusedActivationFunc.RELU)
RELU1 = _relu(OperationType.RELU1, FusedActivationFunc.RELU1)
RELU6 = _relu(OperationType.RELU6, FusedActivationFunc.RELU6)
TANH = _activation(OperationType.TANH, _TANH, _tanh_calls, _real_table(np.tanh), _tanh_quantization)

OPERATIONS: tuple[Operation, ...] = (
    HARD_SWISH,
    LOGISTIC,
    RELU,
    RELU1,
    RELU6,
    TANH,
)
