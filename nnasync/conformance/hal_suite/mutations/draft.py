"""A model under change: one of its subgraphs as lists, from which a mutant is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from nnasync import hal
from nnasync.hal import (
    DataLocation,
    ExecutionPreference,
    Model,
    Operand,
    OperandLifeTime,
    Operation,
    Priority,
    Struct,
    Subgraph,
)

MAIN = -1
"""The place of the main subgraph; that of a referenced one is its index."""

_ALIGNMENT = 8


class Mutant(Struct, frozen=True):
    """A model that a device must refuse, and what was done to it."""

    what: str
    model: Model
    preference: int = ExecutionPreference.FAST_SINGLE_ANSWER
    priority: int = Priority.MEDIUM


def places(model: Model) -> Iterator[int]:
    """The places of a model's subgraphs, the main one first."""
    yield MAIN
    yield from range(len(model.referenced))


def subgraph_of(model: Model, place: int) -> Subgraph:
    """The subgraph at a place."""
    return model.main if place == MAIN else model.referenced[place]


class Draft:
    """A subgraph of a model, to be changed; the model itself stays as it is."""

    def __init__(self, model: Model, place: int = MAIN) -> None:
        subgraph = subgraph_of(model, place)
        self.operands = list(subgraph.operands)
        self.operations = list(subgraph.operations)
        self.inputs = list(subgraph.input_indexes)
        self.outputs = list(subgraph.output_indexes)
        self._values = bytearray(model.operand_values)
        self._model = model
        self._place = place

    def mutant(self, what: str) -> Mutant:
        """The changed model, and in words what was done to it."""
        subgraph = Subgraph(
            tuple(self.operands), tuple(self.operations), tuple(self.inputs), tuple(self.outputs)
        )
        model = msgspec.structs.replace(self._model, operand_values=bytes(self._values))
        if self._place == MAIN:
            return Mutant(what, msgspec.structs.replace(model, main=subgraph))
        referenced = list(model.referenced)
        referenced[self._place] = subgraph
        where = f"referenced subgraph {self._place}, {what}"
        return Mutant(where, msgspec.structs.replace(model, referenced=tuple(referenced)))

    def set_operand(self, index: int, **changes: Any) -> None:
        """Change fields of an operand."""
        self.operands[index] = msgspec.structs.replace(self.operands[index], **changes)

    def set_operation(self, index: int, **changes: Any) -> None:
        """Change fields of an operation."""
        self.operations[index] = msgspec.structs.replace(self.operations[index], **changes)

    def add_operand(self, operand: Operand) -> int:
        """Put an operand behind the others and in the list of its lifetime; returns its index."""
        self.operands.append(operand)
        index = len(self.operands) - 1
        self.enlist(index)
        return index

    def enlist(self, index: int) -> None:
        """Put an operand in the list of inputs or outputs that its lifetime asks for, if any."""
        lifetime = self.operands[index].lifetime
        if lifetime == OperandLifeTime.SUBGRAPH_INPUT:
            self.inputs.append(index)
        elif lifetime == OperandLifeTime.SUBGRAPH_OUTPUT:
            self.outputs.append(index)

    def delist(self, index: int) -> None:
        """Take an operand out of the lists of inputs and outputs."""
        self.inputs = [each for each in self.inputs if each != index]
        self.outputs = [each for each in self.outputs if each != index]

    def count_consumers(self, index: int, change: int) -> None:
        """Have an operand read more or less often."""
        count = self.operands[index].number_of_consumers
        self.set_operand(index, number_of_consumers=count + change)

    def make_constant(self, index: int) -> None:
        """Give an operand of known size zeros as its value."""
        operand = self.operands[index]
        size = hal.byte_size(operand.type, operand.dimensions)
        self._values.extend(bytes(-len(self._values) % _ALIGNMENT))
        location = DataLocation(offset=len(self._values), length=size)
        self._values.extend(bytes(size))
        self.set_operand(index, lifetime=OperandLifeTime.CONSTANT_COPY, location=location)

    def remove_operand(self, index: int) -> None:
        """Take an operand out everywhere; those behind it move up."""
        del self.operands[index]
        self.operations = [
            Operation(each.type, _without(each.inputs, index), _without(each.outputs, index))
            for each in self.operations
        ]
        self.inputs = list(_without(self.inputs, index))
        self.outputs = list(_without(self.outputs, index))


def _without(indexes: Any, removed: int) -> tuple[int, ...]:
    return tuple(each - (each > removed) for each in indexes if each != removed)
