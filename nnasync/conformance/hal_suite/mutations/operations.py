"""Mutations of single operations: type, indices, inputs and outputs that lack or are too many."""

from __future__ import annotations

from collections.abc import Iterator

from nnasync.conformance.hal_suite.mutations.draft import MAIN, Draft, Mutant, subgraph_of
from nnasync.conformance.hal_suite.mutations.exemptions import may_lack_input, may_take_int32
from nnasync.hal import (
    ExecutionPreference,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    OperationType,
    Priority,
)

UNKNOWN_OPERATION_TYPES = (
    -1,
    max(type for type in OperationType if type != OperationType.OEM_OPERATION) + 1,
    9_999,
    10_001,
)
"""Before the first type, after the last one, before and after that of OEMs."""


def unknown_operations(model: Model, place: int) -> Iterator[Mutant]:
    """Operations that do not exist."""
    for number in range(len(subgraph_of(model, place).operations)):
        for type in UNKNOWN_OPERATION_TYPES:
            draft = Draft(model, place)
            draft.set_operation(number, type=type)
            yield draft.mutant(f"operation {number} of type {type}")


def indices(model: Model, place: int) -> Iterator[Mutant]:
    """Inputs and outputs that name an operand which is not there."""
    subgraph = subgraph_of(model, place)
    beyond = len(subgraph.operands)
    for number, operation in enumerate(subgraph.operations):
        for kind, operands in (("inputs", operation.inputs), ("outputs", operation.outputs)):
            for position in range(len(operands)):
                changed = (*operands[:position], beyond, *operands[position + 1 :])
                draft = Draft(model, place)
                draft.set_operation(number, **{kind: changed})
                yield draft.mutant(f"{kind}[{position}] of operation {number} is operand {beyond}")


def lacking_inputs(model: Model, place: int) -> Iterator[Mutant]:
    """Operations without one of their inputs."""
    for number, operation in enumerate(subgraph_of(model, place).operations):
        for position, index in enumerate(operation.inputs):
            if not may_lack_input(operation, position):
                draft = Draft(model, place)
                draft.count_consumers(index, -1)
                draft.set_operation(number, inputs=_cut(operation.inputs, position))
                yield draft.mutant(f"operation {number} without input {position}")


def lacking_outputs(model: Model, place: int) -> Iterator[Mutant]:
    """Operations without one of their outputs."""
    for number, operation in enumerate(subgraph_of(model, place).operations):
        for position in range(len(operation.outputs)):
            draft = Draft(model, place)
            draft.set_operation(number, outputs=_cut(operation.outputs, position))
            yield draft.mutant(f"operation {number} without output {position}")


def extra_inputs(model: Model, place: int) -> Iterator[Mutant]:
    """Operations with one more input, an INT32 that is an input of the subgraph."""
    for number, operation in enumerate(subgraph_of(model, place).operations):
        if not may_take_int32(operation):
            draft = Draft(model, place)
            extra = Operand(
                OperandType.INT32, number_of_consumers=1, lifetime=OperandLifeTime.SUBGRAPH_INPUT
            )
            inputs = (*operation.inputs, draft.add_operand(extra))
            draft.set_operation(number, inputs=inputs)
            yield draft.mutant(f"operation {number} with one more input")


def extra_outputs(model: Model, place: int) -> Iterator[Mutant]:
    """Operations with one more output, an INT32 that is an output of the subgraph."""
    for number, operation in enumerate(subgraph_of(model, place).operations):
        draft = Draft(model, place)
        extra = Operand(OperandType.INT32, lifetime=OperandLifeTime.SUBGRAPH_OUTPUT)
        outputs = (*operation.outputs, draft.add_operand(extra))
        draft.set_operation(number, outputs=outputs)
        yield draft.mutant(f"operation {number} with one more output")


def preferences(model: Model, place: int) -> Iterator[Mutant]:
    """Execution preferences that do not exist."""
    if place == MAIN:
        for preference in (min(ExecutionPreference) - 1, max(ExecutionPreference) + 1):
            yield Mutant(f"preference {preference}", model, preference=preference)


def priorities(model: Model, place: int) -> Iterator[Mutant]:
    """Priorities that do not exist."""
    if place == MAIN:
        for priority in (min(Priority) - 1, max(Priority) + 1):
            yield Mutant(f"priority {priority}", model, priority=priority)


def _cut(indexes: tuple[int, ...], position: int) -> tuple[int, ...]:
    return (*indexes[:position], *indexes[position + 1 :])
