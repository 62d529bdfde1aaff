"""FULLY_CONNECTED."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnasync.hal import Array, HalVersion, OperandType, OperationType, is_quantized
from nnasync.kernels.facts import Facts, each_output
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
from nnasync.kernels.windows.linear import activation, check_quantization, pack, product_scale

_TYPES: dict[OperandType, tuple[OperandType, HalVersion]] = {
    OperandType.TENSOR_FLOAT32: (OperandType.TENSOR_FLOAT32, HalVersion.V1_0),
    OperandType.TENSOR_QUANT8_ASYMM: (OperandType.TENSOR_INT32, HalVersion.V1_0),
    OperandType.TENSOR_FLOAT16: (OperandType.TENSOR_FLOAT16, HalVersion.V1_2),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: (OperandType.TENSOR_INT32, HalVersion.V1_3),
}


def _infer(arguments: Arguments) -> list[Tensor]:
    source, weights = arguments.tensor(0, 2, 3, 4), arguments.tensor(1, 2)
    units, terms = weights.shape
    if 0 in weights.shape:
        raise arguments.error(1, f"has shape {weights.shape}, which has no elements")
    if source.size % terms:
        raise arguments.error(
            0, f"has {source.size} elements, expected a multiple of the weights' {terms}"
        )
    bias = arguments.tensor(2, 1)
    if bias.size != units:
        raise arguments.error(2, f"has {bias.size} elements, expected {units}")
    return [Tensor(type=source.type, shape=(source.size // terms, units))]


def _requires(arguments: Arguments, outputs: Sequence[Tensor]) -> HalVersion:
    """Before 1.2 the output's scale is above the product of the others."""
    check_quantization(arguments)
    quantized = is_quantized(arguments.tensor(0).type)
    narrow = quantized and outputs[0].scale <= product_scale(arguments)
    return HalVersion.V1_2 if narrow else HalVersion.V1_0


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    linear = pack(arguments, arguments.value(1).T, outputs[0], activation(arguments, 3))
    terms, units = linear.weights.shape
    rows = outputs[0].shape[0]
    specs = linear.scratch((rows, units))
    if linear.quantized:
        specs.append(ArraySpec((rows, terms), linear.dtype))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        calls: list[Call] = []
        matrix = inputs[0].reshape(rows, terms)
        if linear.quantized:
            calls.append(copy(scratch[-1], matrix))
            matrix = scratch[-1]
        sums, rest = linear.sums(outputs[0], scratch)
        calls.append((matrix.dot, (linear.weights, sums)))
        return sequence([*calls, *linear.finish(sums, outputs[0], rest)])

    return Kernel(bind, specs)


def _signatures() -> list[Signature]:
    return [
        Signature(
            since,
            (
                Parameter("input", data, ranks=(2, 3, 4)),
                Parameter("weights", data, ranks=(2,)),
                Parameter("bias", bias, ranks=(1,)),
                Parameter("activation", OperandType.INT32),
            ),
            (Parameter("output", data, ranks=(2,)),),
        )
        for data, (bias, since) in _TYPES.items()
    ]


FULLY_CONNECTED = Operation(
    OperationType.FULLY_CONNECTED,
    _signatures(),
    _infer,
    _prepare,
    empty=True,
    requires=_requires,
    facts=Facts(multiply_adds=each_output),
)
