"""PAD and PAD_V2: a border of one value around the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels.facts import STRICT
from nnasync.kernels.movement.copying import like, needs_zero_point, sizes
from nnasync.kernels.operation import Arguments, Kernel, Operation, Parameter, Step, Tensor
from nnasync.kernels.steps import copy, sequence
from nnasync.kernels.uniform import FROM_1_1, LATEST, UP_TO_4, signatures

_PADDINGS = Parameter("paddings", OperandType.TENSOR_INT32, ranks=(2,))
_VALUES: dict[OperandType, OperandType] = {
    OperandType.TENSOR_FLOAT32: OperandType.FLOAT32,
    OperandType.TENSOR_FLOAT16: OperandType.FLOAT16,
    OperandType.TENSOR_QUANT8_ASYMM: OperandType.INT32,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: OperandType.INT32,
}


def _paddings(arguments: Arguments) -> list[tuple[int, int]]:
    rank = arguments.tensor(0).rank
    arguments.check_shape(1, (rank, 2))
    values = sizes(arguments, 1, 0, 2 * rank)
    return list(zip(values[::2], values[1::2], strict=True))


def _padded(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    pads = _paddings(arguments)
    shape = [
        size + before + after for size, (before, after) in zip(source.shape, pads, strict=True)
    ]
    return [like(source, tuple(shape))]


def _pad(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    source = arguments.tensor(0)
    zero = np.asarray(source.zero_point, source.dtype)
    part = tuple(
        slice(before, before + size)
        for size, (before, _) in zip(source.shape, _paddings(arguments), strict=True)
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        value = inputs[2] if len(inputs) > 2 else zero
        return sequence([copy(outputs[0], value), copy(outputs[0][part], inputs[0])])

    return Kernel(bind)


PAD = Operation(
    OperationType.PAD,
    signatures(FROM_1_1, ["input"], _PADDINGS, ranks=UP_TO_4),
    _padded,
    _pad,
    moves=True,
    requires=needs_zero_point,
    facts=STRICT,
)
PAD_V2 = Operation(
    OperationType.PAD_V2,
    [
        signature
        for type, version in LATEST.items()
        for signature in signatures(
            {type: version}, ["input"], _PADDINGS, Parameter("value", _VALUES[type]), ranks=UP_TO_4
        )
    ],
    _padded,
    _pad,
    moves=True,
    facts=STRICT,
)
