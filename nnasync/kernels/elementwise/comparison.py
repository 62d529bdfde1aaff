"""The six comparisons, and LOGICAL_AND, LOGICAL_OR and LOGICAL_NOT: results are 0 or 1.

Quantized operands are compared by their real values in float32, booleans by their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType, is_quantized
from nnasync.kernels.broadcast import broadcast, ufunc_kernel
from nnasync.kernels.byte_tables import pair_kernel, real_values, same_quantization
from nnasync.kernels.facts import STRICT
from nnasync.kernels.operation import Arguments, Kernel, Operation, Step, Tensor
from nnasync.kernels.steps import sequence
from nnasync.kernels.uniform import NUMBERS, require_scales, same_shape, signatures

_B8 = OperandType.TENSOR_BOOL8
_BOOLEANS = {_B8: HalVersion.V1_2}
_PAIR = ("a", "b")


def _infer_pair(arguments: Arguments) -> list[Tensor]:
    return [Tensor(type=_B8, shape=broadcast(arguments, 0, 1))]


def _comparison(type: OperationType, function: Callable[..., Any]) -> Operation:
    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        a, b = arguments.tensor(0), arguments.tensor(1)
        if not is_quantized(a.type):
            return ufunc_kernel(function, raw=a.type == _B8)
        require_scales(arguments, 0, 1)
        if same_quantization(a, b):
            return ufunc_kernel(function)
        table = function.outer(real_values(a), real_values(b))  # type: ignore[attr-defined]
        return pair_kernel(a, b, outputs[0].shape, table)

    types = {**NUMBERS, **_BOOLEANS}
    return Operation(type, signatures(types, _PAIR, output=_B8), _infer_pair, prepare, facts=STRICT)


def _logical(type: OperationType, function: Callable[..., Any]) -> Operation:
    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        return ufunc_kernel(function, raw=True)

    return Operation(type, signatures(_BOOLEANS, _PAIR), _infer_pair, prepare, facts=STRICT)


def _prepare_not(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        return sequence([(np.logical_not, (inputs[0].view(np.uint8), outputs[0]))])

    return Kernel(bind)


EQUAL = _comparison(OperationType.EQUAL, np.equal)
GREATER = _comparison(OperationType.GREATER, np.greater)
GREATER_EQUAL = _comparison(OperationType.GREATER_EQUAL, np.greater_equal)
LESS = _comparison(OperationType.LESS, np.less)
LESS_EQUAL = _comparison(OperationType.LESS_EQUAL, np.less_equal)
NOT_EQUAL = _comparison(OperationType.NOT_EQUAL, np.not_equal)
LOGICAL_AND = _logical(OperationType.LOGICAL_AND, np.logical_and)
LOGICAL_OR = _logical(OperationType.LOGICAL_OR, np.logical_or)
LOGICAL_NOT = Operation(
    OperationType.LOGICAL_NOT,
    signatures(_BOOLEANS, ("input",)),
    same_shape,
    _prepare_not,
    facts=STRICT,
)
