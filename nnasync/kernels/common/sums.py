"""CUMSUM: running sums along an axis, from either end, with or without the number itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.extensions import CommonOperation
from nnasync.hal import Array, HalVersion, OperandType
from nnasync.kernels.common import common_operation
from nnasync.kernels.operation import Arguments, Kernel, Parameter, Step, Tensor
from nnasync.kernels.steps import Call, sequence
from nnasync.kernels.uniform import FLOATS, same_shape, signatures

_TYPES = {**FLOATS, OperandType.TENSOR_INT32: HalVersion.V1_2}


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    axis = arguments.axis(1, arguments.tensor(0).rank)
    exclusive, reverse = arguments.flag(2), arguments.flag(3)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, target = (array.swapaxes(0, axis) for array in (inputs[0], outputs[0]))
        if reverse:
            source, target = source[::-1], target[::-1]
        calls: list[Call] = []
        if exclusive:
            calls.append((target[:1].fill, (0,)))
            source, target = source[:-1], target[1:]
        if source.size:
            calls.append((np.add.accumulate, (source, 0, None, target)))
        return sequence(calls)

    return Kernel(bind)


CUMSUM = common_operation(
    CommonOperation.CUMSUM,
    signatures(
        _TYPES,
        ("input",),
        Parameter("axis", OperandType.INT32),
        Parameter("exclusive", OperandType.BOOL),
        Parameter("reverse", OperandType.BOOL),
    ),
    same_shape,
    _prepare,
)
