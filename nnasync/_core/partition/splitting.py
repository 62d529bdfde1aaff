"""A model made into steps: a model of each, and what they hand on to one another.

Values between steps lie in one piece of memory, where those that are never alive at the same time
share bytes; a value of unknown shape gets memory when it is known.

A step of the control-flow interpreter is one IF or WHILE, and has the two subgraphs of that
operation as partitioned models of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from nnasync import hal
from nnasync._core.partition.control_flow import (
    INTERPRETER,
    body_model,
    find_control_flow,
    view,
)
from nnasync._core.partition.distribution import Assignment
from nnasync._core.partition.grouping import Group, grouped
from nnasync._core.partition.shapes import with_inferred_shapes
from nnasync._core.partition.submodel import submodel
from nnasync._core.plans.arena import Block, lay_out
from nnasync._core.plans.composite import Boundary, Wire, WireEnd
from nnasync.errors import InvalidArgument
from nnasync.hal import Model, OperandLifeTime, Struct
from nnasync.hal.performance import referred


class PartitionStep(Struct, frozen=True):
    """Operations of the main subgraph that one device runs, as a model of their own.

    `inputs` and `outputs` say for each input and output of that model where in the whole it is.
    `bodies` are the two subgraphs of an operation that the interpreter runs, in the order of ROLES.
    """

    device: int
    operations: tuple[int, ...]
    model: Model
    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]
    bodies: tuple[PartitionedModel, ...] = ()


class PartitionedModel(Struct, frozen=True):
    """A model, its steps in order of execution, and the values that these hand on.

    `subgraph` is the number that a body has as a subgraph of the whole model; -1 is no body.
    """

    model: Model
    steps: tuple[PartitionStep, ...]
    boundaries: tuple[Boundary, ...]
    subgraph: int = -1


def all_bodies(partitioned: PartitionedModel) -> tuple[PartitionedModel, ...]:
    """The bodies of interpreted operations at all depths, each once."""
    found: dict[int, PartitionedModel] = {}
    pending = [partitioned]
    while pending:
        for inner in _bodies(pending.pop(0)):
            if inner.subgraph not in found:
                found[inner.subgraph] = inner
                pending.append(inner)
    return tuple(found.values())


def all_steps(partitioned: PartitionedModel) -> tuple[PartitionStep, ...]:
    """Its steps, and then those of `all_bodies`."""
    return tuple(step for each in (partitioned, *all_bodies(partitioned)) for step in each.steps)


def assignment_of(partitioned: PartitionedModel) -> Assignment:
    """Returns what `split` made the steps of."""
    return Assignment(
        _owners(partitioned),
        {each.subgraph: _owners(each) for each in all_bodies(partitioned)},
    )


def _owners(partitioned: PartitionedModel) -> tuple[int, ...]:
    owners = {index: step.device for step in partitioned.steps for index in step.operations}
    return tuple(owners[index] for index in range(len(owners)))


def _bodies(partitioned: PartitionedModel) -> Iterator[PartitionedModel]:
    for step in partitioned.steps:
        yield from step.bodies


def split(model: Model, assignment: Sequence[int] | Assignment) -> PartitionedModel:
    """The steps of a legal model, given the number of the device of each operation.

    Raises InvalidArgument for an assignment of another length, for an operation that cannot be
    interpreted but is to be, and where a value of a type that only its vendor can store would have
    to be handed on.
    """
    if not isinstance(assignment, Assignment):
        return cut(model, grouped(model, assignment))
    flow = find_control_flow(model)
    _check_interpreted("main subgraph", assignment.main, flow.main)
    bodies: dict[int, PartitionedModel] = {}
    for number, operations in flow.bodies.items():
        row = assignment.bodies.get(number)
        if row is not None:
            _check_interpreted(f"subgraph {number}", row, operations)
            place = view(model, number)
            steps = _cut(place, body_model(model, number), grouped(place, row), bodies)
            bodies[number] = msgspec.structs.replace(steps, subgraph=number)
    return _cut(model, model, grouped(model, assignment.main), bodies)


def _check_interpreted(where: str, row: Sequence[int], possible: Collection[int]) -> None:
    for index, device in enumerate(row):
        if device == INTERPRETER and index not in possible:
            raise InvalidArgument(f"{where}: operation {index} cannot be interpreted")


def cut(model: Model, groups: Sequence[Group]) -> PartitionedModel:
    """The steps of a legal model, given which operations each has, in order of execution.

    Raises InvalidArgument as `split` does, and unless each operation is in one group, no earlier
    than what it reads.
    """
    return _cut(model, model, groups, {})


def _cut(
    model: Model, alone: Model, groups: Sequence[Group], bodies: Mapping[int, PartitionedModel]
) -> PartitionedModel:
    """The steps of a main subgraph; `alone` is the same with only the subgraphs it refers to."""
    _check_groups(model, groups)
    if len(groups) == 1 and groups[0].device != INTERPRETER:
        return PartitionedModel(alone, (_whole(alone, groups[0]),), ())
    complete = with_inferred_shapes(model)
    flow = _Flow(complete, groups)
    boundaries = _placed(flow)
    numbers = {boundary.operand: number for number, boundary in enumerate(boundaries)}
    steps = [
        _step(flow, index, numbers, f"{model.name or 'model'}, step {index + 1}/{len(groups)}")
        for index in range(len(groups))
    ]
    for index, group in enumerate(groups):
        if group.device == INTERPRETER:
            inner = _inner(model, group.operations[0], bodies)
            steps[index] = msgspec.structs.replace(steps[index], bodies=inner)
    return PartitionedModel(alone, tuple(steps), tuple(boundaries))


def _inner(
    model: Model, index: int, bodies: Mapping[int, PartitionedModel]
) -> tuple[PartitionedModel, ...]:
    """The bodies of an interpreted operation."""
    numbers = referred(model.main, model.main.operations[index])
    missing = [number for number in numbers if number not in bodies]
    if missing or not numbers:
        raise InvalidArgument(
            f"operation {index} is to be interpreted, but "
            + (f"nothing is said of its subgraph {missing[0]}" if missing else "runs no subgraph")
        )
    return tuple(bodies[number] for number in numbers)


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
        """Returns whether the step reads what it does not write itself."""
        return step in self.readers.get(operand, ()) and self.writer.get(operand) != step

    def handed_on(self) -> list[int]:
        """Temporaries that a step leaves for others; of a step without any results, all of its.

        Engines need not know models without outputs. The interpreter leaves all of its outputs.
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
            if self.readers.get(operand, set()) - {step} or self.groups[step].device == INTERPRETER
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
    given = {index: Wire(WireEnd.INPUT, k) for k, index in enumerate(main.input_indexes)}
    between = {index: Wire(WireEnd.BOUNDARY, number) for index, number in boundaries.items()}
    results = {index: Wire(WireEnd.OUTPUT, k) for k, index in enumerate(main.output_indexes)}
    inputs = {
        index: wire
        for index, wire in (given | between | results).items()
        if flow.reads(step, index)
    }
    outputs = {
        index: wire for index, wire in (results | between).items() if flow.writer[index] == step
    }
    if group.device == INTERPRETER:
        written = main.operations[group.operations[0]].outputs
        outputs = {index: outputs[index] for index in written}
    model = submodel(flow.model, group.operations, tuple(inputs), tuple(outputs), name)
    return PartitionStep(
        group.device, group.operations, model, tuple(inputs.values()), tuple(outputs.values())
    )


def _whole(model: Model, group: Group) -> PartitionStep:
    inputs = tuple(Wire(WireEnd.INPUT, k) for k in range(len(model.main.input_indexes)))
    outputs = tuple(Wire(WireEnd.OUTPUT, k) for k in range(len(model.main.output_indexes)))
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
