"""ABS, EXP, FLOOR, LOG, NEG, RSQRT, SIN and SQRT: mathematics on single elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels.facts import MEDIUM, RELAXED, CriterionClass, Facts
from nnasync.kernels.operation import Arguments, Kernel, Operation, Step, Tensor
from nnasync.kernels.steps import Call, sequence
from nnasync.kernels.uniform import FLOATS, UP_TO_4, same_shape, signatures

_ABS = {**FLOATS, OperandType.TENSOR_INT32: HalVersion.V1_3}
_NEG = {**FLOATS, OperandType.TENSOR_INT32: HalVersion.V1_2}
_FLOOR = {**FLOATS, OperandType.TENSOR_FLOAT32: HalVersion.V1_0}


def _unary(
    type: OperationType,
    *functions: Callable[..., Any],
    types: Mapping[OperandType, HalVersion] = FLOATS,
    ranks: tuple[int, ...] = (),
    facts: Facts = RELAXED,
) -> Operation:
    """An operation that applies ufuncs one after the other."""

    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
            target = outputs[0]
            calls: list[Call] = [(functions[0], (inputs[0], target))]
            calls += [(function, (target, target)) for function in functions[1:]]
            return sequence(calls)

        return Kernel(bind)

    return Operation(
        type, signatures(types, ("input",), ranks=ranks), same_shape, prepare, facts=facts
    )


ABS = _unary(
    OperationType.ABS,
    np.absolute,
    types=_ABS,
    facts=Facts(CriterionClass.MEDIUM, non_negative=True),
)
EXP = _unary(OperationType.EXP, np.exp, facts=Facts(non_negative=True))
FLOOR = _unary(OperationType.FLOOR, np.floor, types=_FLOOR, ranks=UP_TO_4, facts=MEDIUM)
LOG = _unary(OperationType.LOG, np.log)
NEG = _unary(OperationType.NEG, np.negative, types=_NEG, facts=MEDIUM)
RSQRT = _unary(OperationType.RSQRT, np.sqrt, np.reciprocal)
SIN = _unary(OperationType.SIN, np.sin)
SQRT = _unary(OperationType.SQRT, np.sqrt, facts=Facts(non_negative=True))
