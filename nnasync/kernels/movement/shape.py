"""RESHAPE, SQUEEZE and EXPAND_DIMS: the same data in another shape; RANK, and FILL from a shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels.facts import STRICT
from nnasync.kernels.movement.copying import like, moving
from nnasync.kernels.operation import (
    Arguments,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
)
from nnasync.kernels.steps import copy, sequence
from nnasync.kernels.uniform import FROM_1_0, FROM_1_1, NUMBERS, UP_TO_4, signatures

_I32 = OperandType.TENSOR_INT32

_FILLED: dict[OperandType, OperandType] = {
    OperandType.FLOAT32: OperandType.TENSOR_FLOAT32,
    OperandType.FLOAT16: OperandType.TENSOR_FLOAT16,
    OperandType.INT32: OperandType.TENSOR_INT32,
}
_RANKED = (
    OperandType.TENSOR_FLOAT16,
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT16_SYMM,
    OperandType.TENSOR_BOOL8,
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
    OperandType.TENSOR_QUANT16_ASYMM,
    OperandType.TENSOR_QUANT8_SYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
)


def _reshaped(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    target = list(arguments.integers(1))
    unknown = [index for index, size in enumerate(target) if size == -1]
    if len(unknown) > 1 or any(size < -1 for size in target) or not target:
        raise arguments.error(1, f"is {target}, expected sizes of which at most one is -1")
    known = math.prod(size for size in target if size != -1)
    if unknown and known and source.size % known == 0:
        target[unknown[0]] = source.size // known
    if math.prod(target) != source.size or -1 in target:
        raise arguments.error(1, f"is {target}, which does not fit {source.size} elements")
    return [like(source, tuple(target))]


def _squeezed(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    removed = {axis for axis, size in enumerate(source.shape) if size == 1}
    if arguments.has(1):
        axes = [arguments.checked_axis(1, axis, source.rank) for axis in arguments.integers(1)]
        if not removed.issuperset(axes):
            raise arguments.error(1, f"is {axes}, but the input has shape {source.shape}")
        removed = set(axes)
    kept = tuple(size for axis, size in enumerate(source.shape) if axis not in removed)
    return [like(source, kept or (1,))]


def _expanded(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    axis = arguments.axis(1, source.rank + 1)
    return [like(source, (*source.shape[:axis], 1, *source.shape[axis:]))]


def _viewed(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    return moving(lambda target, source: (target.reshape(-1), source.reshape(-1)), view_of=0)


def _filled(arguments: Arguments) -> list[Tensor]:
    dims = arguments.integers(0)
    if any(size < 0 for size in dims):
        raise arguments.error(0, f"is {list(dims)}, expected sizes that are >= 0")
    return [Tensor(type=arguments.signature.outputs[0].type, shape=dims)]


def _fill(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        return sequence([copy(outputs[0], inputs[1])])

    return Kernel(bind)


def _rank(arguments: Arguments) -> list[Tensor]:
    return [Tensor(type=OperandType.INT32)]


def _count_dimensions(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    rank = np.asarray(arguments.tensor(0).rank, np.int32)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        return sequence([copy(outputs[0], rank)])

    return Kernel(bind)


EXPAND_DIMS = Operation(
    OperationType.EXPAND_DIMS,
    signatures(NUMBERS, ["input"], Parameter("axis", OperandType.INT32)),
    _expanded,
    _viewed,
    moves=True,
    facts=STRICT,
)
FILL = Operation(
    OperationType.FILL,
    [
        Signature(
            HalVersion.V1_3,
            (Parameter("dims", _I32, ranks=(1,)), Parameter("value", value)),
            (Parameter("output", data),),
        )
        for value, data in _FILLED.items()
    ],
    _filled,
    _fill,
    moves=True,
    facts=STRICT,
)
RANK = Operation(
    OperationType.RANK,
    [
        Signature(
            HalVersion.V1_3,
            (Parameter("input", type),),
            (Parameter("output", OperandType.INT32),),
        )
        for type in _RANKED
    ],
    _rank,
    _count_dimensions,
    moves=True,
    facts=STRICT,
)
RESHAPE = Operation(
    OperationType.RESHAPE,
    signatures(FROM_1_0, ["input"], Parameter("shape", _I32, ranks=(1,)), ranks=UP_TO_4),
    _reshaped,
    _viewed,
    moves=True,
    facts=STRICT,
)
SQUEEZE = Operation(
    OperationType.SQUEEZE,
    signatures(
        FROM_1_1, ["input"], Parameter("dims", _I32, optional=True, ranks=(1,)), ranks=UP_TO_4
    ),
    _squeezed,
    _viewed,
    moves=True,
    facts=STRICT,
)
