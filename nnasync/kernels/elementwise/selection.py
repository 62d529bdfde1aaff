"""MAXIMUM, MINIMUM, PRELU and SELECT: one of two operands per element.

Quantized operands are requantized to the output before they are chosen from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, OperandType, OperationType, is_quantized
from nnasync.kernels.broadcast import broadcast, ufunc_kernel
from nnasync.kernels.byte_tables import lookup, pair_kernel, requantization, same_quantization
from nnasync.kernels.elementwise.quantized_arithmetic import prelu_kernel
from nnasync.kernels.facts import MEDIUM, STRICT
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
from nnasync.kernels.steps import Call, copy, sequence
from nnasync.kernels.uniform import LATEST, NUMBERS, require_scales, signatures

_ZERO = np.asarray(0.0, np.float32)
_FALSE = np.asarray(0, np.uint8)


def _infer(arguments: Arguments) -> list[Tensor]:
    return [Tensor(type=arguments.tensor(0).type, shape=broadcast(arguments, 0, 1))]


def _named_output(function: Callable[..., Any]) -> Callable[..., Any]:
    """The ufunc for callers that give the output by position, which these two deprecate."""

    def call(a: Array, b: Array, output: Array) -> None:
        function(a, b, out=output)

    return call


def _extreme(type: OperationType, function: Callable[..., Any]) -> Operation:
    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        a, b, output = arguments.tensor(0), arguments.tensor(1), outputs[0]
        if not is_quantized(a.type):
            return ufunc_kernel(_named_output(function))
        require_scales(arguments, 0, 1)
        if same_quantization(a, b, output):
            return ufunc_kernel(_named_output(function))
        first, second = requantization(a, output), requantization(b, output)
        table = function.outer(first, second)  # type: ignore[attr-defined]
        return pair_kernel(a, b, output.shape, table)

    return Operation(type, signatures(NUMBERS, ("a", "b")), _infer, prepare, facts=MEDIUM)


def _prepare_prelu(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    if is_quantized(outputs[0].type):
        require_scales(arguments, 0, 1)
        return prelu_kernel(arguments, outputs)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        x, alpha, target, keep = inputs[0], inputs[1], outputs[0], scratch[0]
        return sequence(
            [
                (np.multiply, (x, alpha, target)),
                (np.greater_equal, (x, _ZERO, keep)),
                (np.copyto, (target, x, "no", keep)),
            ]
        )

    return Kernel(bind, [ArraySpec(arguments.tensor(0).shape, np.bool_)])


def _infer_select(arguments: Arguments) -> list[Tensor]:
    condition, a, b = (arguments.tensor(index) for index in range(3))
    for index, tensor in ((1, a), (2, b)):
        if tensor.shape != condition.shape:
            raise arguments.error(
                index, f"has shape {tensor.shape}, expected that of the condition {condition.shape}"
            )
    return [Tensor(type=a.type, shape=a.shape)]


def _prepare_select(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    """The output is filled with b, then with a where the condition holds."""
    a, b, output = arguments.tensor(1), arguments.tensor(2), outputs[0]
    specs = [ArraySpec(output.shape, np.bool_)]
    tables: list[Array | None] = [None, None]
    if is_quantized(output.type):
        require_scales(arguments, 1, 2)
        tables = [
            None if same_quantization(source, output) else requantization(source, output)
            for source in (a, b)
        ]
        specs.append(ArraySpec(output.shape, output.dtype))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        holds, target, chosen = scratch[0], outputs[0], inputs[1]
        calls: list[Call] = [(np.not_equal, (inputs[0].view(np.uint8), _FALSE, holds))]
        if tables[1] is None:
            calls.append(copy(target, inputs[2]))
        else:
            calls += lookup(tables[1], b, inputs[2], target)
        if tables[0] is not None:
            calls += lookup(tables[0], a, chosen, scratch[1])
            chosen = scratch[1]
        calls.append((np.copyto, (target, chosen, "no", holds)))
        return sequence(calls)

    return Kernel(bind, specs)


def _select_signatures() -> list[Signature]:
    condition = Parameter("condition", OperandType.TENSOR_BOOL8)
    return [
        Signature(signature.since, (condition, *signature.inputs), signature.outputs)
        for signature in signatures(NUMBERS, ("a", "b"))
    ]


MAXIMUM = _extreme(OperationType.MAXIMUM, np.maximum)
MINIMUM = _extreme(OperationType.MINIMUM, np.minimum)
PRELU = Operation(
    OperationType.PRELU,
    signatures(LATEST, ("input", "alpha")),
    _infer,
    _prepare_prelu,
    facts=MEDIUM,
)
SELECT = Operation(
    OperationType.SELECT,
    _select_signatures(),
    _infer_select,
    _prepare_select,
    moves=True,
    facts=STRICT,
)
