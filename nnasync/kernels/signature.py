"""Signatures as data: every legal combination of operand types, ranks and HAL version."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync import hal
from nnasync.hal import HalVersion, Shape, Struct


class Parameter(Struct, frozen=True):
    """One argument position of a signature; an optional one may be an operand without value.

    `ranks` are those that the operation takes, none for any; checked where a rank is known.
    """

    name: str
    type: int
    optional: bool = False
    ranks: tuple[int, ...] = ()


class Signature(Struct, frozen=True):
    """One legal combination of operand types.

    With `variadic`, the first input stands for one or more inputs of the same type; with
    `variadic_outputs`, the last output for one or more outputs.
    """

    since: HalVersion
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    variadic: bool = False
    variadic_outputs: bool = False

    def parameters(self, count: int) -> tuple[Parameter, ...] | None:
        """The parameter of each of `count` inputs, or None when the count is not legal."""
        extra = count - len(self.inputs)
        if extra == 0:
            return self.inputs
        if self.variadic and extra > 0:
            return (self.inputs[0],) * extra + self.inputs
        return None

    def results(self, count: int) -> tuple[Parameter, ...] | None:
        """The parameter of each of `count` outputs, or None when the count is not legal."""
        extra = count - len(self.outputs)
        if extra == 0:
            return self.outputs
        if self.variadic_outputs and extra > 0:
            return self.outputs + (self.outputs[-1],) * extra
        return None

    def accepts(self, inputs: Sequence[int | None], outputs: Sequence[int] = ()) -> bool:
        """Returns whether operand types fit; None is an omitted operand, no outputs means "any"."""
        parameters = self.parameters(len(inputs))
        if parameters is None:
            return False
        for parameter, type in zip(parameters, inputs, strict=True):
            if not (parameter.optional if type is None else parameter.type == type):
                return False
        if not outputs:
            return True
        results = self.results(len(outputs))
        return results is not None and [p.type for p in results] == list(outputs)

    def takes_ranks(self, shapes: Sequence[Shape | None]) -> bool:
        """Returns whether the inputs' ranks fit; unknown ranks and omitted operands do."""
        return self.rank_fault(shapes) is None

    def rank_fault(self, shapes: Sequence[Shape | None]) -> int | None:
        """The first input whose rank does not fit."""
        for index, (parameter, shape) in enumerate(
            zip(self.parameters(len(shapes)) or (), shapes, strict=True)
        ):
            if shape and parameter.ranks and len(shape) not in parameter.ranks:
                return index
        return None


def mismatch(
    signatures: Sequence[Signature], inputs: Sequence[int | None], outputs: Sequence[int]
) -> str:
    """Returns why none of the signatures fits these operand types, for the nearest one."""
    counts = sorted({len(signature.inputs) for signature in signatures})
    if not any(signature.parameters(len(inputs)) for signature in signatures):
        legal = " or ".join(str(count) for count in counts)
        return f"has {len(inputs)} inputs, expected {legal}"
    best = max(signatures, key=lambda signature: _fitting(signature, inputs))
    for index, parameter in enumerate(best.parameters(len(inputs)) or ()):
        type = inputs[index]
        if type is None and not parameter.optional:
            return f"input {index} ({parameter.name}) must not be omitted"
        if type is not None and type != parameter.type:
            expected = sorted(
                {
                    hal.type_name(parameters[index].type)
                    for signature in signatures
                    if (parameters := signature.parameters(len(inputs))) is not None
                }
            )
            return (
                f"input {index} ({parameter.name}) is {hal.type_name(type)}, which does not"
                f" fit the other inputs; expected {' or '.join(expected)}"
            )
    expected = [hal.type_name(parameter.type) for parameter in best.outputs]
    given = [hal.type_name(type) for type in outputs]
    return f"outputs are {given}, expected {expected}"


def _fitting(signature: Signature, inputs: Sequence[int | None]) -> int:
    """Returns how many leading inputs fit; -1 when the count does not."""
    parameters = signature.parameters(len(inputs))
    if parameters is None:
        return -1
    for index, (parameter, type) in enumerate(zip(parameters, inputs, strict=True)):
        if not (parameter.optional if type is None else parameter.type == type):
            return index
    return len(inputs)
