"""How an operation is lowered: one function that checks its operands and says how to build it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nnasync import hal
from nnasync._core.drivers.openvino.graph_scope import Result, Scope
from nnasync.hal import OperandType, Struct
from nnasync.kernels import Arguments, Tensor

REALS = (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16)
BYTES = (OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED)
INTEGERS = (OperandType.TENSOR_INT32,)
BOOLEANS = (OperandType.TENSOR_BOOL8,)

Build = Callable[[Scope], Sequence[Result]]
"""Builds the outputs of an operation."""

Lower = Callable[[Arguments, Sequence[Tensor]], Build]
"""Checks arguments and outputs; raises Unsupported or NotConstant."""


class OpenVinoUnsupported(Exception):
    """An operation that this device does not take, and why."""


class Rule(Struct, frozen=True):
    """The function that lowers an operation, and the types that its first input may have."""

    lower: Lower
    types: tuple[OperandType, ...] = (*REALS, *BYTES)

    def apply(self, arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
        """Check everything and say how to build it; raises Unsupported."""
        first = arguments.tensor(0)
        if first.type not in self.types:
            raise OpenVinoUnsupported(f"{hal.type_name(first.type)} is not lowered")
        return self.lower(arguments, outputs)


def one(build: Callable[[Scope], Result]) -> Build:
    """A build of a single output."""
    return lambda scope: (build(scope),)


Rules = Mapping[int | tuple[str, int], Rule]
"""By type of operation, or by extension and the type within it."""
