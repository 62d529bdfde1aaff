"""CAST: the same numbers in another type; scales and zero points play no part.

Floats are cut towards zero. What a type cannot hold becomes its nearest value, and NaN its lowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels.facts import MEDIUM
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
from nnasync.kernels.steps import Call, blocks, copy, sequence
from nnasync.kernels.uniform import same_shape

_NUMBERS = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_QUANT8_ASYMM,
)
_KEPT = (
    OperandType.TENSOR_BOOL8,
    OperandType.TENSOR_QUANT16_ASYMM,
    OperandType.TENSOR_QUANT16_SYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_QUANT8_SYMM,
)
"""Types that are only cast to themselves."""


def _signature(since: HalVersion, source: OperandType, target: OperandType) -> Signature:
    return Signature(since, (Parameter("input", source),), (Parameter("output", target),))


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    source, output = arguments.tensor(0), outputs[0]
    if source.dtype == output.dtype:
        return Kernel(_bind_bytes, view_of=0)
    if np.can_cast(source.dtype, output.dtype, "same_kind"):
        return Kernel(_bind_copy)
    return _saturating(output)


def _bind_bytes(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
    return sequence([copy(outputs[0].view(np.uint8), inputs[0].view(np.uint8))])


def _bind_copy(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
    return sequence([copy(outputs[0], inputs[0])])


def _saturating(output: Tensor) -> Kernel:
    """Through float64, which holds all the numbers of the types exactly."""
    limits = np.iinfo(output.dtype)
    lowest, highest = (np.asarray(bound, np.float64) for bound in (limits.min, limits.max))
    parts = tuple(blocks(output.size, 1))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, target = inputs[0].reshape(-1), outputs[0].reshape(-1)
        calls: list[Call] = []
        for part in parts:
            wide = scratch[0][: part.stop - part.start]
            calls += [
                copy(wide, source[part]),
                (np.fmax, (wide, lowest, wide)),
                (np.fmin, (wide, highest, wide)),
                copy(target[part], wide),
            ]
        return sequence(calls)

    return Kernel(bind, [ArraySpec((parts[0].stop,), np.float64)])


CAST = Operation(
    OperationType.CAST,
    [
        *(_signature(HalVersion.V1_2, source, to) for source in _NUMBERS for to in _NUMBERS),
        *(_signature(HalVersion.V1_3, kept, kept) for kept in _KEPT),
    ],
    same_shape,
    _prepare,
    moves=True,
    facts=MEDIUM,
)
