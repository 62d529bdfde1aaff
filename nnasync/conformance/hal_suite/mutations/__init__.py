"""Mutations of legal models, each of which a device must refuse as not legal.

They are the eighteen kinds of the HAL's own suite, applied to referenced subgraphs as well. What a
mutation would leave legal (`exemptions`) is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from nnasync.conformance.hal_suite.mutations import operands, operations, structure
from nnasync.conformance.hal_suite.mutations.draft import Mutant as Mutant
from nnasync.conformance.hal_suite.mutations.draft import places
from nnasync.hal import Model

__all__ = ["KINDS", "Mutant", "mutants"]

KINDS: Mapping[str, Callable[[Model, int], Iterator[Mutant]]] = {
    "execution order": structure.orders,
    "operand type unknown": operands.unknown_types,
    "operand rank": operands.ranks,
    "operand scale": operands.scales,
    "operand zero point": operands.zero_points,
    "operand lifetime": operands.lifetimes,
    "inputs and outputs": operands.listed_lifetimes,
    "number of consumers": operands.consumers,
    "second writer": structure.second_writers,
    "operand type": operands.other_types,
    "operation type unknown": operations.unknown_operations,
    "operand index": operations.indices,
    "operand not written": structure.unwritten,
    "operand removed": structure.lacking_operands,
    "operation removed": structure.lacking_operations,
    "operation input removed": operations.lacking_inputs,
    "operation output removed": operations.lacking_outputs,
    "operation input added": operations.extra_inputs,
    "operation output added": operations.extra_outputs,
    "preference": operations.preferences,
    "priority": operations.priorities,
}
"""What makes the mutants of a subgraph of a model, by the name of the kind."""


def mutants(model: Model, kind: str) -> Iterator[Mutant]:
    """The mutants of one kind of all subgraphs of a model."""
    for place in places(model):
        yield from KINDS[kind](model, place)
