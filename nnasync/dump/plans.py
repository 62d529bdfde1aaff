"""Which device runs which step of a compiled model, in which way, and what crosses the borders.

A step lists what it reads from outside and what it leaves for others. What the control-flow
interpreter runs is followed by the steps of its two subgraphs, indented.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from nnasync import hal
from nnasync._core.compilation import Report
from nnasync._core.compilation.choice import WHOLE, Part, parse_pin, tell_lowering
from nnasync._core.compilation.partitioning import INTERPRETER_NAME, assignment_in
from nnasync._core.compilation.report import candidates_text, rejections_text
from nnasync._core.partition import (
    ROLES,
    PartitionedModel,
    PartitionStep,
    all_bodies,
    all_steps,
    split,
)
from nnasync._core.plans.composite import Boundary, Wire, WireEnd
from nnasync._core.words import counted
from nnasync.dump.words import described, operation_title, reference
from nnasync.engine import Lowering
from nnasync.hal import Model, Struct

_FEW = 8


class PlanOutline(Struct, frozen=True):
    """The steps of a model, and the devices and lowerings that run them, by number of device."""

    partitioned: PartitionedModel
    parts: tuple[Part, ...]


def outline(model: Model, pin: str) -> PlanOutline:
    """The plan that a compilation's pin stands for.

    Raises InvalidArgument for what is no pin, or one of another model.
    """
    choice = parse_pin(pin, pin.rpartition(":")[2])
    return PlanOutline(split(model, assignment_in(choice, model)), choice.parts)


def plan_text(model: Model, report: Report) -> str:
    """Returns a text on which device runs which step, why, and what else was considered.

    `report` is `net.report()` of a network that was compiled of this model; raises InvalidArgument
    for one of another model.
    """
    reasons = dict.fromkeys(partition.reason for partition in report.partitions)
    parts = [f"{steps_text(outline(model, report.pin))}why: {'; '.join(reasons)}"]
    parts.append(candidates_text(report.candidates))
    if report.rejections:
        parts.append(rejections_text(report.rejections))
    return "\n\n".join(parts) + "\n"


def steps_text(plan: PlanOutline) -> str:
    """Devices, steps, and the sum of what crosses the borders."""
    model = plan.partitioned.model
    lines = [
        f"plan of {model.name or 'model'}: {counted(len(all_steps(plan.partitioned)), 'step')}"
    ]
    for number, part in enumerate(plan.parts):
        steps = [step for step in all_steps(plan.partitioned) if step.device == number]
        operations = sum(len(step.operations) for step in steps)
        way = _way(part)
        lines.append(
            f"  {part.device} {part.version}, {way}: {counted(len(steps), 'step')}, "
            f"{counted(operations, 'operation')}"
        )
    lines += ["", *_steps(plan, plan.partitioned, ""), ""]
    bodies = all_bodies(plan.partitioned)
    borders = [each for part in (plan.partitioned, *bodies) for each in part.boundaries]
    nbytes = sum(border.nbytes for border in borders)
    lines.append(f"borders: {counted(len(borders), 'value')}, {counted(nbytes, 'byte')}")
    return "\n".join(lines) + "\n"


def step_title(plan: PlanOutline, step: PartitionStep) -> str:
    """Device and lowering of a step."""
    if step.bodies:
        return INTERPRETER_NAME
    part = plan.parts[step.device]
    return f"{part.device}, {_way(part)}"


def _way(part: Part) -> str:
    if part.lowering == WHOLE:
        return "its only way"
    return tell_lowering(Lowering(part.lowering, part.threads))


def _steps(plan: PlanOutline, partitioned: PartitionedModel, indent: str) -> Iterator[str]:
    for number, step in enumerate(partitioned.steps):
        yield f"{indent}step {number}: {step_title(plan, step)}"
        yield f"{indent}  runs      {_operations(partitioned.model, step)}"
        for kind, wires in (("reads", step.inputs), ("writes", step.outputs)):
            for wire in wires:
                yield f"{indent}  {kind:<8}  {_wire(partitioned, wire, number)}"
        for role, body in zip(_roles(step), step.bodies, strict=True):
            yield f"{indent}  {role}: subgraph {body.subgraph}"
            yield from _steps(plan, body, f"{indent}    ")


def _roles(step: PartitionStep) -> tuple[str, ...]:
    return ROLES[step.model.main.operations[0].type] if step.bodies else ()


def _operations(model: Model, step: PartitionStep) -> str:
    """Returns the operations of a step: each of a few, else how often each kind occurs."""
    operations = [model.main.operations[index] for index in step.operations]
    names = [operation_title(model, each) for each in operations]
    if len(names) <= _FEW:
        pairs = zip(step.operations, names, strict=True)
        return ", ".join(f"{index} {name}" for index, name in pairs)
    kinds = ", ".join(f"{name} {count}" for name, count in Counter(names).most_common())
    return f"{counted(len(names), 'operation')}, {_ranges(step.operations)}: {kinds}"


def _ranges(indexes: Sequence[int]) -> str:
    """Numbers in order, those that follow each other as 3-7."""
    runs = []
    for _, group in itertools.groupby(enumerate(sorted(indexes)), lambda pair: pair[1] - pair[0]):
        run = [index for _, index in group]
        runs.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(runs)


def _wire(partitioned: PartitionedModel, wire: Wire, step: int) -> str:
    """Returns a text on the end of a wire: its operand, size, and where it leads."""
    main = partitioned.model.main
    if wire.place is WireEnd.BOUNDARY:
        boundary = partitioned.boundaries[wire.index]
        where = _other_ends(partitioned, wire, step)
        return f"{_value(partitioned.model, boundary.operand)}, {_size(boundary)}{where}"
    indexes = main.input_indexes if wire.place is WireEnd.INPUT else main.output_indexes
    operand = main.operands[indexes[wire.index]]
    nbytes = hal.byte_size(operand.type, operand.dimensions) if hal.has_dtype(operand.type) else 0
    size = f", {counted(nbytes, 'byte')}" if nbytes else ""
    name = _value(partitioned.model, indexes[wire.index])
    return f"{name}{size}, {wire.place.value} {wire.index}"


def _value(model: Model, index: int) -> str:
    return f"{reference(model.main, index)} {described(model.main.operands[index])}"


def _size(boundary: Boundary) -> str:
    return counted(boundary.nbytes, "byte") if boundary.is_settled else "size known at the run"


def _other_ends(partitioned: PartitionedModel, wire: Wire, step: int) -> str:
    """The step that wrote a value, or those that read it."""
    writer = next(n for n, each in enumerate(partitioned.steps) if wire in each.outputs)
    if writer != step:
        return f", from step {writer}"
    readers = [str(n) for n, each in enumerate(partitioned.steps) if wire in each.inputs]
    if not readers:
        return ", which nobody reads"
    return f", to step{'s' if len(readers) > 1 else ''} {', '.join(readers)}"
