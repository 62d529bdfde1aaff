"""IF and WHILE operations whose subgraphs can be partitioned, and those subgraphs as models.

The control-flow interpreter runs such an operation: it takes its condition, and then steps of the
subgraphs, each on its device. That is possible where the sizes of all operands of the operation are
known, and those of all inputs and outputs of its subgraphs. Subgraphs that refer to others twice
each grow into more bound steps than anybody can pay for, so that is limited too. What cannot be
interpreted stays whole, on a device that takes it as one operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nnasync import hal
from nnasync._core.partition.shapes import with_inferred_shapes
from nnasync._core.partition.submodel import compact
from nnasync.hal import Model, OperandLifeTime, Operation, OperationType, Struct, Subgraph
from nnasync.hal.performance import inner_first, referred

INTERPRETER = -1
"""Number of the control-flow interpreter, among those of devices."""

ROLES: Mapping[int, tuple[str, str]] = {
    OperationType.IF: ("then", "else"),
    OperationType.WHILE: ("condition", "body"),
}
"""What the two subgraphs of an operation are to it."""

_BINDINGS = {OperationType.IF: 1, OperationType.WHILE: 2}
_MAX_BINDINGS = 1000
_MAX_DEPTH = 16


class InterpretableOperations(Struct, frozen=True):
    """The operations of a model that can be interpreted, by their indices.

    `main` are those of the main subgraph. `bodies` are the subgraphs that interpreted operations
    run, by number, with those in them; each comes after those that it runs.
    """

    main: frozenset[int] = frozenset()
    bodies: Mapping[int, frozenset[int]] = msgspec.field(default_factory=dict)


class _BindingCost(Struct, frozen=True):
    """The cost of binding a subgraph: how many subgraphs are bound with it, and how deep."""

    bindings: int
    depth: int


def view(model: Model, number: int) -> Model:
    """Returns the model with a referenced subgraph in the place of the main one."""
    return msgspec.structs.replace(
        model,
        main=model.referenced[number],
        state=(),
        name=f"{model.name or 'model'}, subgraph {number}",
    )


def body_model(model: Model, number: int) -> Model:
    """Returns a referenced subgraph as a model of its own, with no more than it refers to."""
    return compact(view(model, number))


def find_control_flow(model: Model) -> InterpretableOperations:
    """Returns which operations of a legal model can be interpreted."""
    if not model.referenced:
        return InterpretableOperations()
    known: dict[int, tuple[frozenset[int], _BindingCost]] = {}
    for number in inner_first(model):
        known[number] = _examined(view(model, number), known)
    main, _ = _examined(model, known)
    reached: dict[int, None] = {}
    _reach(model.main, main, model, known, reached)
    return InterpretableOperations(
        main, {number: known[number][0] for number in known if number in reached}
    )


def _reach(
    subgraph: Subgraph,
    operations: Iterable[int],
    model: Model,
    known: Mapping[int, tuple[frozenset[int], _BindingCost]],
    reached: dict[int, None],
) -> None:
    """Collects the subgraphs that interpreted operations run; the extent bounds the depth."""
    for index in operations:
        for number in referred(subgraph, subgraph.operations[index]):
            if number not in reached:
                reached[number] = None
                _reach(model.referenced[number], known[number][0], model, known, reached)


def _examined(
    model: Model, known: Mapping[int, tuple[frozenset[int], _BindingCost]]
) -> tuple[frozenset[int], _BindingCost]:
    """Returns which operations of a main subgraph can be interpreted, and what binding costs."""
    candidates = [i for i, each in enumerate(model.main.operations) if each.type in ROLES]
    found, bindings, depth = set(), 1, 0
    complete = with_inferred_shapes(model) if candidates else model
    for index in candidates:
        operation = complete.main.operations[index]
        extents = [known[number][1] for number in referred(complete.main, operation)]
        cost = _BINDINGS[OperationType(operation.type)] * sum(e.bindings for e in extents)
        deep = 1 + max(extent.depth for extent in extents)
        if cost <= _MAX_BINDINGS and deep <= _MAX_DEPTH and _is_sized(complete, operation):
            found.add(index)
            bindings += cost
            depth = max(depth, deep)
    return frozenset(found), _BindingCost(bindings, depth)


def _is_sized(model: Model, operation: Operation) -> bool:
    """Returns whether all sizes are known, and a loop carries nothing that is omitted."""
    main = model.main
    operands = [main.operands[index] for index in (*operation.inputs, *operation.outputs)]
    numbers = referred(main, operation)
    for number in numbers:
        inner = model.referenced[number]
        operands += [inner.operands[i] for i in (*inner.input_indexes, *inner.output_indexes)]
    if operation.type == OperationType.WHILE:
        carried = len(model.referenced[numbers[1]].output_indexes)
        given = [main.operands[index] for index in operation.inputs[2 : 2 + carried]]
        if any(operand.lifetime == OperandLifeTime.NO_VALUE for operand in given):
            return False
    return all(
        operand.lifetime in (OperandLifeTime.SUBGRAPH, OperandLifeTime.NO_VALUE)
        or (
            hal.has_dtype(operand.type) and hal.is_fully_specified(operand.type, operand.dimensions)
        )
        for operand in operands
    )
