"""A model made into steps: a model of each, and what they hand on to one another.

Values between steps lie in one piece of memory, where those that are never alive at the same time
share bytes; a value of unknown shape gets memory when it is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync import hal
from nnasync.engine.arena import Block, lay_out
from nnasync.engine.composite import Boundary, Place, Wire
from nnasync.errors import InvalidArgument
from nnasync.hal import Model, OperandLifeTime, Struct
from nnasync.partition.grouping import Group, grouped
from nnasync.partition.shapes import with_inferred_shapes
from nnasync.partition.submodel import submodel

__all__ = ["PartitionStep", "PartitionedModel", "cut", "split"]


class PartitionStep(Struct, frozen=True):
    """Operations of the main subgraph that one device runs, as a model of their own.

    `inputs` and `outputs` say for each input and output of that model where in the whole it is.
    """

    device: int
    operations: tuple[int, ...]
    model: Model
    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]


class PartitionedModel(Struct, frozen=True):
    """A model, its steps in order of execution, and the values that these hand on."""

    model: Model
    steps: tuple[PartitionStep, ...]
    boundaries: tuple[Boundary, ...]


def split(model: Model, assignment: Sequence[int]) -> PartitionedModel:
    """The steps of a legal model, given the number of the device of each operation.

    Raises InvalidArgument for an assignment of another length, and where a value of a type that
    only its vendor can store would have to be handed on.
    """
    return cut(model, grouped(model, assignment))


def cut(model: Model, groups: Sequence[Group]) -> PartitionedModel:
    """The steps of a legal model, given which operations each has, in order of execution.

    Raises InvalidArgument as `split` does, and unless each operation is in one group, no earlier
    than what it reads.
    """
    _check_groups(model, groups)
    if len(groups) == 1:
        return PartitionedModel(model, (_whole(model, groups[0]),), ())
    complete = with_inferred_shapes(model)
    flow = _Flow(complete, groups)
    boundaries = _placed(flow)
    numbers = {boundary.operand: number for number, boundary in enumerate(boundaries)}
    return PartitionedModel(
        model,
        tuple(
            _step(flow, index, numbers, f"{model.name or 'model'}, step {index + 1}/{len(groups)}")
            for index in range(len(groups))
        ),
        tuple(boundaries),
    )


class _Flow:
    """Which step writes an operand, and which read it."""

    def __init__(self, model: Model, groups: Sequence[Group]) -> None:
        self.model = model
        self.groups = groups
        self.writer: dict[int, int] = {}
        self.readers: dict[int, set[int]] = {}
        for step, group in enumerate(groups):
            for index in group.operations:
                operation = model.main.operations[index]
                self.writer.update((operand, step) for operand in operation.outputs)
                for operand in operation.inputs:
                    self.readers.setdefault(operand, set()).add(step)

    def reads(self, step: int, operand: int) -> bool:
        """Whether the step reads what it does not write itself."""
        return step in self.readers.get(operand, ()) and self.writer.get(operand) != step

    def handed_on(self) -> list[int]:
        """Temporaries that a step leaves for others; of a step without any results, all of its.

        Engines need not know models without outputs.
        """
        main = self.model.main
        temporaries = {
            operand: step
            for operand, step in sorted(self.writer.items())
            if main.operands[operand].lifetime == OperandLifeTime.TEMPORARY_VARIABLE
        }
        found = [
            operand
            for operand, step in temporaries.items()
            if self.readers.get(operand, set()) - {step}
        ]
        useful = {self.writer[operand] for operand in (*found, *main.output_indexes)}
        dead = [
            operand
            for operand, step in temporaries.items()
            if step not in useful and hal.has_dtype(main.operands[operand].type)
        ]
        return sorted(found + dead)


def _placed(flow: _Flow) -> list[Boundary]:
    """The boundaries, by operand, with their places in memory; raises InvalidArgument."""
    boundaries, blocks = [], []
    for index in flow.handed_on():
        operand = flow.model.main.operands[index]
        if not hal.has_dtype(operand.type):
            raise InvalidArgument(
                f"operand {index} is of {hal.type_name(operand.type)}, which only its vendor can "
                f"store: operation {_writing(flow.model, index)} and those that read it must be "
                "in one step"
            )
        boundary = Boundary(index, operand.type, operand.dimensions)
        first = flow.writer[index]
        boundaries.append(boundary)
        blocks.append(Block(boundary.nbytes, first, max(flow.readers.get(index, {first}))))
    offsets = lay_out(blocks).offsets
    return [
        msgspec.structs.replace(boundary, offset=offset)
        for boundary, offset in zip(boundaries, offsets, strict=True)
    ]


def _writing(model: Model, operand: int) -> int:
    return next(i for i, each in enumerate(model.main.operations) if operand in each.outputs)


def _step(flow: _Flow, step: int, boundaries: dict[int, int], name: str) -> PartitionStep:
    """One step: reads inputs of the model, boundaries, and outputs of earlier steps."""
    main, group = flow.model.main, flow.groups[step]
    given = {index: Wire(Place.INPUT, k) for k, index in enumerate(main.input_indexes)}
    between = {index: Wire(Place.BOUNDARY, number) for index, number in boundaries.items()}
    results = {index: Wire(Place.OUTPUT, k) for k, index in enumerate(main.output_indexes)}
    inputs = {
        index: wire
        for index, wire in (given | between | results).items()
        if flow.reads(step, index)
    }
    outputs = {
        index: wire for index, wire in (results | between).items() if flow.writer[index] == step
    }
    model = submodel(flow.model, group.operations, tuple(inputs), tuple(outputs), name)
    return PartitionStep(
        group.device, group.operations, model, tuple(inputs.values()), tuple(outputs.values())
    )


def _whole(model: Model, group: Group) -> PartitionStep:
    inputs = tuple(Wire(Place.INPUT, k) for k in range(len(model.main.input_indexes)))
    outputs = tuple(Wire(Place.OUTPUT, k) for k in range(len(model.main.output_indexes)))
    return PartitionStep(group.device, group.operations, model, inputs, outputs)


def _check_groups(model: Model, groups: Sequence[Group]) -> None:
    operations = model.main.operations
    order = [index for group in groups for index in group.operations]
    if sorted(order) != list(range(len(operations))) or not all(g.operations for g in groups):
        raise InvalidArgument(
            f"the groups have operations {order}; expected each of {len(operations)} once"
        )
    missing = {operand for operation in operations for operand in operation.outputs}
    for index in order:
        early = missing.intersection(operations[index].inputs)
        if early:
            raise InvalidArgument(
                f"operation {index} reads operand {min(early)}, which a later group writes"
            )
        missing.difference_update(operations[index].outputs)
