"""Mutations of single operands: type, rank, quantization, lifetime, number of consumers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nnasync import hal
from nnasync.conformance.hal_suite.mutations.draft import Draft, Mutant, subgraph_of
from nnasync.conformance.hal_suite.mutations.exemptions import types_are_free
from nnasync.hal import (
    ChannelQuant,
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
)

UNKNOWN_OPERAND_TYPES = (-1, max(OperandType, key=lambda t: t % OperandType.OEM) + 1, 9_999, 10_002)
"""Before the first type, after the last one, before and after those of OEMs."""

_WRITTEN = (OperandLifeTime.TEMPORARY_VARIABLE, OperandLifeTime.SUBGRAPH_OUTPUT)
_CONSTANT = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)
_OEM = (OperandType.OEM, OperandType.TENSOR_OEM_BYTE)

_WRONG_ZERO_POINTS: dict[int, Sequence[int]] = {
    OperandType.TENSOR_QUANT8_ASYMM: (-1, 256),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: (-129, 128),
    OperandType.TENSOR_QUANT8_SYMM: (-129, -1, 1, 128),
    OperandType.TENSOR_QUANT16_ASYMM: (-1, 65_536),
    OperandType.TENSOR_QUANT16_SYMM: (-32_769, -1, 1, 32_768),
}
_WITH_SCALE = frozenset(_WRONG_ZERO_POINTS)


def unknown_types(model: Model, place: int) -> Iterator[Mutant]:
    """Operands of types that do not exist."""
    for index, _ in _operands(model, place):
        for type in UNKNOWN_OPERAND_TYPES:
            draft = Draft(model, place)
            draft.set_operand(index, type=type)
            yield draft.mutant(f"operand {index} of type {type}")


def ranks(model: Model, place: int) -> Iterator[Mutant]:
    """Scalars with a dimension."""
    for index, operand in _operands(model, place):
        if hal.is_scalar(operand.type):
            draft = Draft(model, place)
            draft.set_operand(index, dimensions=(1,))
            yield draft.mutant(f"operand {index}, a scalar, of rank 1")


def scales(model: Model, place: int) -> Iterator[Mutant]:
    """A scale where there must be none, a negative one, none where there must be one."""
    for index, operand in _operands(model, place):
        scale = 0.0 if operand.type in _WITH_SCALE else 1.0
        if operand.type == OperandType.TENSOR_INT32:
            scale = -1.0
        draft = Draft(model, place)
        draft.set_operand(index, scale=scale)
        yield draft.mutant(f"operand {index} of scale {scale:g}")


def zero_points(model: Model, place: int) -> Iterator[Mutant]:
    """Zero points where there must be none, and those that a type cannot have."""
    for index, operand in _operands(model, place):
        for zero_point in _WRONG_ZERO_POINTS.get(operand.type, (1,)):
            draft = Draft(model, place)
            draft.set_operand(index, zero_point=zero_point)
            yield draft.mutant(f"operand {index} of zero point {zero_point}")


def lifetimes(model: Model, place: int) -> Iterator[Mutant]:
    """Yields models whose constants become inputs and the reverse, with consistent lists."""
    for index, operand in _operands(model, place):
        for lifetime in _other_side(operand):
            draft = Draft(model, place)
            draft.delist(index)
            _set_lifetime(draft, index, lifetime)
            draft.enlist(index)
            yield draft.mutant(f"operand {index} as {lifetime.name}")


def listed_lifetimes(model: Model, place: int) -> Iterator[Mutant]:
    """Lifetimes that the lists of inputs and outputs do not have them in."""
    for index, operand in _operands(model, place):
        lifetime = _same_side(operand)
        if lifetime is not None:
            draft = Draft(model, place)
            _set_lifetime(draft, index, lifetime)
            yield draft.mutant(f"operand {index} as {lifetime.name}, lists as before")


def consumers(model: Model, place: int) -> Iterator[Mutant]:
    """Numbers of consumers that are wrong by one."""
    for index, operand in _operands(model, place):
        for change in (-1, 1):
            if operand.number_of_consumers + change >= 0:
                draft = Draft(model, place)
                draft.count_consumers(index, change)
                count = operand.number_of_consumers + change
                yield draft.mutant(f"operand {index} with {count} consumers")


def other_types(model: Model, place: int) -> Iterator[Mutant]:
    """Operands that operations use, as every other type; a constant stays as long as it must be."""
    subgraph = subgraph_of(model, place)
    used = {
        index
        for operation in subgraph.operations
        for index in (*operation.inputs, *operation.outputs)
    }
    for index, operand in _operands(model, place):
        for type in OperandType:
            skipped = type == operand.type or type in _OEM or index not in used
            if not skipped and not types_are_free(subgraph, index, type):
                draft = Draft(model, place)
                _retype(draft, index, type)
                yield draft.mutant(f"operand {index} as {type.name}")


def _operands(model: Model, place: int) -> Iterator[tuple[int, Operand]]:
    yield from enumerate(subgraph_of(model, place).operands)


def _other_side(operand: Operand) -> Sequence[OperandLifeTime]:
    """Lifetimes of which one has an operation write the operand where the true one has not."""
    if operand.lifetime == OperandLifeTime.SUBGRAPH:
        return ()
    if operand.lifetime not in _WRITTEN:
        return _WRITTEN
    if hal.byte_size(operand.type, operand.dimensions):
        return (OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.CONSTANT_COPY)
    return (OperandLifeTime.SUBGRAPH_INPUT,)


def _same_side(operand: Operand) -> OperandLifeTime | None:
    """A lifetime that leaves it as it is whether an operation writes the operand."""
    lifetime = operand.lifetime
    if lifetime == OperandLifeTime.SUBGRAPH_INPUT:
        known = hal.byte_size(operand.type, operand.dimensions) > 0
        return OperandLifeTime.CONSTANT_COPY if known else None
    if lifetime in _CONSTANT or lifetime == OperandLifeTime.NO_VALUE:
        return OperandLifeTime.SUBGRAPH_INPUT
    return {
        OperandLifeTime.SUBGRAPH_OUTPUT: OperandLifeTime.TEMPORARY_VARIABLE,
        OperandLifeTime.TEMPORARY_VARIABLE: OperandLifeTime.SUBGRAPH_OUTPUT,
    }.get(lifetime)


def _set_lifetime(draft: Draft, index: int, lifetime: OperandLifeTime) -> None:
    if lifetime == OperandLifeTime.CONSTANT_COPY:
        draft.make_constant(index)
    else:
        draft.set_operand(index, lifetime=lifetime, location=DataLocation())


def _retype(draft: Draft, index: int, type: OperandType) -> None:
    """Make an operand of another type, legal by itself."""
    operand = draft.operands[index]
    dimensions = () if hal.is_scalar(type) else operand.dimensions or (1,)
    span = hal.zero_points(type)
    quant = None
    if type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        quant = ChannelQuant((1.0,) * dimensions[0], 0)
    draft.set_operand(
        index,
        type=type,
        dimensions=dimensions,
        scale=(operand.scale or 1.0) if span else 0.0,
        zero_point=operand.zero_point if span and span[0] <= operand.zero_point <= span[1] else 0,
        extra_params=quant,
    )
    if operand.lifetime in _CONSTANT:
        draft.make_constant(index)
