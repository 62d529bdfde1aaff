"""GATHER, EMBEDDING_LOOKUP and HASHTABLE_LOOKUP: slices chosen by number or by key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels.facts import STRICT
from nnasync.kernels.movement.copying import like
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
from nnasync.kernels.uniform import NUMBERS, signatures

_I32 = OperandType.TENSOR_INT32
_Q8 = OperandType.TENSOR_QUANT8_ASYMM

_EMBEDDED = {
    OperandType.TENSOR_FLOAT32: HalVersion.V1_0,
    _I32: HalVersion.V1_2,
    _Q8: HalVersion.V1_2,
    OperandType.TENSOR_FLOAT16: HalVersion.V1_3,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: HalVersion.V1_3,
}
_HASHED = (OperandType.TENSOR_FLOAT32, _I32, _Q8)


def _taking(arguments: Arguments, data: int, axis: int, position: int) -> Kernel:
    """Takes slices of argument `data` along `axis`; argument `position` holds their numbers.

    Numbers that come when the network runs are checked at each run.
    """
    shape, numbers = arguments.tensor(data).shape, arguments.tensor(position)
    limit = shape[axis]
    folded = (math.prod(shape[:axis]), limit, math.prod(shape[axis + 1 :]))
    constant: Array | None = None
    if numbers.value is not None:
        constant = numbers.value.reshape(-1).astype(np.intp)
        _check_numbers(arguments, position, constant, limit)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        wide = constant if constant is not None else scratch[0]
        target = outputs[0].reshape(folded[0], wide.size, folded[2])
        take: Call = inputs[data].reshape(folded).take, (wide, 1, target, "clip")
        if constant is not None:
            return sequence([take])
        check: Call = _check_numbers, (arguments, position, wide, limit)
        return sequence([copy(wide, inputs[position].reshape(-1)), check, take])

    return Kernel(bind, [] if constant is not None else [ArraySpec((numbers.size,), np.intp)])


def _check_numbers(arguments: Arguments, position: int, numbers: Array, limit: int) -> None:
    lowest, highest = int(numbers.min()), int(numbers.max())
    if lowest < 0 or highest >= limit:
        wrong = lowest if lowest < 0 else highest
        raise arguments.error(position, f"has {wrong}, expected within [0, {limit})")


def _gathered(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    axis = arguments.axis(1, source.rank)
    indices = arguments.tensor(2).shape
    return [like(source, (*source.shape[:axis], *indices, *source.shape[axis + 1 :]))]


def _gather(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    return _taking(arguments, 0, arguments.axis(1, arguments.tensor(0).rank), 2)


def _embedded(arguments: Arguments) -> list[Tensor]:
    (count,) = arguments.tensor(0, 1).shape
    values = arguments.tensor(1)
    if values.rank < 2:
        raise arguments.error(1, f"has shape {values.shape}, expected rank 2 or more")
    return [like(values, (count, *values.shape[1:]))]


def _embed(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    return _taking(arguments, 1, 0, 0)


def _looked_up(arguments: Arguments) -> list[Tensor]:
    (count,) = arguments.tensor(0, 1).shape
    keys, values = arguments.tensor(1, 1), arguments.tensor(2)
    if values.shape[:1] != keys.shape:
        raise arguments.error(
            2, f"has shape {values.shape}, expected {keys.size} rows, as many as keys"
        )
    return [like(values, (count, *values.shape[1:])), Tensor(type=_Q8, shape=(count,), scale=1.0)]


def _look_up(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    rows = arguments.tensor(2).shape[0]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        lookups, keys, values = inputs
        found, hits = outputs

        def step() -> None:
            places = np.minimum(np.searchsorted(keys, lookups), rows - 1)
            missed = keys[places] != lookups
            values.take(places, 0, found, "clip")
            found[missed] = 0
            np.logical_not(missed, hits)

        return step

    return Kernel(bind)


EMBEDDING_LOOKUP = Operation(
    OperationType.EMBEDDING_LOOKUP,
    [
        Signature(
            since,
            (Parameter("lookups", _I32, ranks=(1,)), Parameter("values", type)),
            (Parameter("output", type),),
        )
        for type, since in _EMBEDDED.items()
    ],
    _embedded,
    _embed,
    moves=True,
    facts=STRICT,
)
GATHER = Operation(
    OperationType.GATHER,
    signatures(
        NUMBERS, ["input"], Parameter("axis", OperandType.INT32), Parameter("indices", _I32)
    ),
    _gathered,
    _gather,
    moves=True,
    facts=STRICT,
)
HASHTABLE_LOOKUP = Operation(
    OperationType.HASHTABLE_LOOKUP,
    [
        Signature(
            HalVersion.V1_0,
            (
                Parameter("lookups", _I32, ranks=(1,)),
                Parameter("keys", _I32, ranks=(1,)),
                Parameter("values", type),
            ),
            (Parameter("output", type), Parameter("hits", _Q8)),
        )
        for type in _HASHED
    ],
    _looked_up,
    _look_up,
    moves=True,
    facts=STRICT,
)
