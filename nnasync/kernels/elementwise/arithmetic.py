"""ADD, DIV, MUL, SUB and POW of two broadcast operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from nnasync.kernels.broadcast import broadcast, long_rows, ufunc_kernel
from nnasync.kernels.elementwise.quantized_arithmetic import product_kernel, product_scale
from nnasync.kernels.elementwise.quantized_sum import sum_kernel
from nnasync.kernels.facts import RELAXED, CriterionClass, Facts
from nnasync.kernels.fixed_point import single
from nnasync.kernels.operation import Arguments, Kernel, Operation, Parameter, Step, Tensor
from nnasync.kernels.steps import Call, clip, float_bounds, sequence
from nnasync.kernels.uniform import FLOATS, FROM_1_0, UP_TO_4, require_scales, signatures
from nnasync.kernels.windows.linear import activation

_FIRST = {**FROM_1_0, OperandType.TENSOR_INT32: HalVersion.V1_3}
_SUB = {
    **_FIRST,
    OperandType.TENSOR_FLOAT32: HalVersion.V1_1,
    OperandType.TENSOR_QUANT8_ASYMM: HalVersion.V1_2,
}
_DIV = {
    OperandType.TENSOR_FLOAT32: HalVersion.V1_1,
    OperandType.TENSOR_FLOAT16: HalVersion.V1_2,
    OperandType.TENSOR_INT32: HalVersion.V1_3,
}
_FUSED = Parameter("activation", OperandType.INT32)
_LARGEST = float(np.finfo(np.float32).max)


def _infer(arguments: Arguments) -> list[Tensor]:
    shape = broadcast(arguments, 0, 1)
    return [Tensor(type=arguments.tensor(0).type, shape=shape)]


def _plain_kernel(
    arguments: Arguments, output: Tensor, function: Callable[..., Any], fused: int
) -> Kernel:
    """Float and integer arithmetic in place of the output.

    A quotient is clamped to finite numbers without an activation too.
    """
    if output.type == OperandType.TENSOR_INT32:
        if fused != FusedActivationFunc.NONE:
            raise arguments.error(2, f"is {fused}, expected 0 (NONE) for TENSOR_INT32")
        return ufunc_kernel(np.floor_divide if function is np.divide else function)
    if fused == FusedActivationFunc.NONE and function is not np.divide:
        return ufunc_kernel(function)
    bounds = np.clip(float_bounds(fused), -_LARGEST, _LARGEST)
    lower, upper = (np.asarray(bound, np.float32) for bound in bounds)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        a, b, target = long_rows(inputs[0], inputs[1], outputs[0])
        calls: list[Call] = [
            (function, (a, b, target)),
            (clip, (target, lower, upper, target)),
        ]
        return sequence(calls)

    return Kernel(bind)


def _quantized_kernel(
    arguments: Arguments, output: Tensor, function: Callable[..., Any], fused: int
) -> Kernel:
    require_scales(arguments, 0, 1)
    if function is np.multiply:
        return product_kernel(arguments, output, fused)
    return sum_kernel(arguments, output, fused, -1 if function is np.subtract else 1)


def _requires(arguments: Arguments, outputs: Sequence[Tensor]) -> HalVersion:
    """MUL of unsigned values needs an output scale above that of the products."""
    if outputs[0].type == OperandType.TENSOR_QUANT8_ASYMM:
        product = product_scale(arguments)
        if not single(outputs[0].scale) > product:
            raise arguments.fail(
                f"output 0: has scale {outputs[0].scale}, expected more than {product}, the product"
                " of the scales of the inputs"
            )
    return HalVersion.V1_0


def _arithmetic(
    type: OperationType,
    function: Callable[..., Any],
    types: dict[OperandType, HalVersion],
    *,
    facts: Facts = RELAXED,
) -> Operation:
    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        fused = activation(arguments, 2)
        quantized = is_quantized(outputs[0].type)
        kernel = _quantized_kernel if quantized else _plain_kernel
        return kernel(arguments, outputs[0], function, fused)

    return Operation(
        type,
        signatures(types, ("a", "b"), _FUSED, ranks=UP_TO_4),
        _infer,
        prepare,
        empty=True,
        requires=_requires if function is np.multiply else None,
        facts=facts,
    )


def _pow(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    return ufunc_kernel(np.power)


ADD = _arithmetic(
    OperationType.ADD, np.add, _FIRST, facts=Facts(CriterionClass.MEDIUM, by_channel=True)
)
DIV = _arithmetic(OperationType.DIV, np.divide, _DIV)
MUL = _arithmetic(
    OperationType.MUL, np.multiply, _FIRST, facts=Facts(CriterionClass.MEDIUM, by_channel=True)
)
POW = Operation(OperationType.POW, signatures(FLOATS, ("base", "exponent")), _infer, _pow)
SUB = _arithmetic(
    OperationType.SUB, np.subtract, _SUB, facts=Facts(CriterionClass.MEDIUM, by_channel=True)
)
