"""MEAN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType
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
)
from nnasync.kernels.steps import Call, copy, sequence

__all__ = ["OPERATIONS", "MEAN"]

_TYPES = {
    OperandType.TENSOR_FLOAT32: HalVersion.V1_1,
    OperandType.TENSOR_QUANT8_ASYMM: HalVersion.V1_1,
    OperandType.TENSOR_FLOAT16: HalVersion.V1_2,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: HalVersion.V1_3,
}


def _signatures() -> list[Signature]:
    options = (
        Parameter("axes", OperandType.TENSOR_INT32),
        Parameter("keep_dimensions", OperandType.INT32),
    )
    return [
        Signature(since, (Parameter("input", type), *options), (Parameter("output", type),))
        for type, since in _TYPES.items()
    ]


def _axes(arguments: Arguments) -> tuple[int, ...]:
    """The dimensions to reduce, each once."""
    rank = arguments.tensor(0).rank
    axes = arguments.integers(1)
    return tuple(sorted({arguments.checked_axis(1, axis, rank) for axis in axes}))


def _infer(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0, 1, 2, 3, 4)
    axes, keep = _axes(arguments), arguments.integer(2) > 0
    shape = tuple(
        1 if dim in axes else size
        for dim, size in enumerate(source.shape)
        if keep or dim not in axes
    )
    return [
        Tensor(
            type=source.type,
            shape=shape or (1,),
            scale=source.scale,
            zero_point=source.zero_point,
        )
    ]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    source = arguments.tensor(0)
    axes = _axes(arguments)
    kept = tuple(1 if dim in axes else size for dim, size in enumerate(source.shape))
    count = math.prod(source.shape[dim] for dim in axes)
    quantized = is_quantized(source.type)
    specs = [ArraySpec(kept, np.float64)] if quantized else []
    divisor = np.asarray(count, np.float64 if quantized else np.float32)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        target = outputs[0].reshape(kept)
        sums = scratch[0] if quantized else target
        calls: list[Call] = [
            (np.add.reduce, (inputs[0], axes, sums.dtype, sums, True)),
            (np.divide, (sums, divisor, sums)),
        ]
        if quantized:
            calls.append(copy(target, sums))
        return sequence(calls)

    return Kernel(bind, specs)


MEAN = Operation(OperationType.MEAN, _signatures(), _infer, _prepare)

OPERATIONS: tuple[Operation, ...] = (MEAN,)
