"""Mutations of how operations hang together: order, writers, operands and operations that lack."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from nnasync.conformance.hal_suite.mutations.draft import Draft, Mutant, subgraph_of
from nnasync.conformance.hal_suite.mutations.exemptions import may_lack_input, may_lack_output
from nnasync.hal import Model, OperandLifeTime, Operation, Subgraph


def orders(model: Model, place: int) -> Iterator[Mutant]:
    """Operations moved before one whose result they read, or behind one that reads theirs."""
    operations = subgraph_of(model, place).operations
    for reader, operation in enumerate(operations):
        for writer in range(reader):
            if set(operations[writer].outputs).isdisjoint(operation.inputs):
                continue
            for source, target in ((reader, writer), (writer, reader)):
                draft = Draft(model, place)
                draft.operations.insert(target, draft.operations.pop(source))
                yield draft.mutant(f"operation {source} moved to {target}")


def second_writers(model: Model, place: int) -> Iterator[Mutant]:
    """Operands written by a copy of their operation as well, whose other outputs are fresh."""
    for number, operation in enumerate(subgraph_of(model, place).operations):
        for position, written in enumerate(operation.outputs):
            draft = Draft(model, place)
            outputs = [
                output if output == written else _fresh(draft, output)
                for output in operation.outputs
            ]
            for index in operation.inputs:
                draft.count_consumers(index, 1)
            draft.operations.append(Operation(operation.type, operation.inputs, tuple(outputs)))
            yield draft.mutant(f"output {position} of operation {number} written a second time")


def unwritten(model: Model, place: int) -> Iterator[Mutant]:
    """Operands that nobody writes, as their operation writes a fresh one instead."""
    for number, operation in enumerate(subgraph_of(model, place).operations):
        for position, written in enumerate(operation.outputs):
            draft = Draft(model, place)
            outputs = list(operation.outputs)
            outputs[position] = _fresh(draft, written)
            draft.set_operation(number, outputs=tuple(outputs))
            yield draft.mutant(f"output {position} of operation {number} goes elsewhere")


def lacking_operands(model: Model, place: int) -> Iterator[Mutant]:
    """Models without one of their operands."""
    subgraph = subgraph_of(model, place)
    for index in range(len(subgraph.operands)):
        if not _is_dispensable(subgraph, index):
            draft = Draft(model, place)
            draft.remove_operand(index)
            yield draft.mutant(f"operand {index} removed")


def lacking_operations(model: Model, place: int) -> Iterator[Mutant]:
    """Models without one of their operations, whose inputs are read less often."""
    for number, operation in enumerate(subgraph_of(model, place).operations):
        draft = Draft(model, place)
        for index in operation.inputs:
            draft.count_consumers(index, -1)
        del draft.operations[number]
        yield draft.mutant(f"operation {number} removed")


def _fresh(draft: Draft, index: int) -> int:
    """A new temporary like an operand."""
    operand = msgspec.structs.replace(
        draft.operands[index],
        lifetime=OperandLifeTime.TEMPORARY_VARIABLE,
        number_of_consumers=0,
        name="",
    )
    return draft.add_operand(operand)


def _is_dispensable(subgraph: Subgraph, index: int) -> bool:
    """Returns whether a model may be legal without an operand."""
    used = False
    for operation in subgraph.operations:
        reads = [position for position, each in enumerate(operation.inputs) if each == index]
        if any(may_lack_input(operation, position) for position in reads):
            return True
        if index in operation.outputs and may_lack_output(operation):
            return True
        used = used or bool(reads) or index in operation.outputs
    return not used
