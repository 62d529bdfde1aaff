"""A plan as a Graphviz graph: a cluster for each step, colored by its device.

Operations are boxes. An arrow that leaves its step is bold and says how many bytes cross there. The
subgraphs of what the control-flow interpreter runs are clusters beside it, and a dashed arrow leads
there.
"""

from __future__ import annotations

from collections.abc import Iterator

from nnasync import hal
from nnasync._core.compilation import Report
from nnasync._core.partition import ROLES, PartitionedModel, PartitionStep
from nnasync.dump.plans import PlanOutline, outline, step_title
from nnasync.dump.words import described, operation_title, quoted, reference
from nnasync.hal import Model, Operand

_COLORS = ("#cfe8ff", "#ffe3c2", "#d5f0d0", "#f3d1e6", "#fff3b0", "#d9d2f0", "#c9efe9", "#f0d5c9")
_PLAIN = "#f2f2f2"


def plan_dot(model: Model, report: Report) -> str:
    """Returns a digraph of which device runs which step; arguments are those of `plan_text`."""
    return outline_dot(outline(model, report.pin))


def outline_dot(plan: PlanOutline) -> str:
    """The whole plan as a digraph."""
    name = plan.partitioned.model.name or "model"
    lines = [
        f"digraph {quoted(f'plan of {name}')} {{",
        "  compound=true;",
        '  node [fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=8];',
    ]
    lines += _body(plan, plan.partitioned, "m")
    return "\n".join([*lines, "}"]) + "\n"


def _body(plan: PlanOutline, partitioned: PartitionedModel, prefix: str) -> Iterator[str]:
    """Nodes, clusters and arrows of one subgraph; names of nodes begin with the prefix."""
    main = partitioned.model.main
    for kind, indexes in (("in", main.input_indexes), ("out", main.output_indexes)):
        for index in indexes:
            label = quoted(f"{reference(main, index)}\n{described(main.operands[index])}")
            yield f"  {prefix}{kind}{index} [label={label}, shape=oval];"
    for number, step in enumerate(partitioned.steps):
        yield from _step(plan, partitioned, step, prefix, number)
    yield from _arrows(partitioned, prefix)


def _step(
    plan: PlanOutline, partitioned: PartitionedModel, step: PartitionStep, prefix: str, number: int
) -> Iterator[str]:
    color = _PLAIN if step.bodies else _COLORS[step.device % len(_COLORS)]
    yield f"  subgraph cluster_{prefix}{number} {{"
    yield f"  label={quoted(f'step {number}: {step_title(plan, step)}')};"
    yield f'  style=filled; fillcolor="{color}";'
    for index in step.operations:
        operation = partitioned.model.main.operations[index]
        label = quoted(f"{index} {operation_title(partitioned.model, operation)}")
        yield f'  {prefix}{index} [label={label}, shape=box, style=filled, fillcolor="#ffffff"];'
    if step.bodies:
        yield from _bodies(plan, step, f"{prefix}{step.operations[0]}")
    yield "  }"


def _bodies(plan: PlanOutline, step: PartitionStep, node: str) -> Iterator[str]:
    roles = ROLES[step.model.main.operations[0].type]
    for role, body in zip(roles, step.bodies, strict=True):
        prefix = f"{node}{role}_"
        yield f"  subgraph cluster_{prefix} {{"
        yield f"  label={quoted(f'{role}: subgraph {body.subgraph}')};"
        yield '  style=dashed; fillcolor="#ffffff";'
        yield from _body(plan, body, prefix)
        yield "  }"
        first = f"{prefix}{body.steps[0].operations[0]}"
        yield f"  {node} -> {first} [style=dashed, lhead=cluster_{prefix}];"


def _arrows(partitioned: PartitionedModel, prefix: str) -> Iterator[str]:
    main = partitioned.model.main
    home = {index: n for n, step in enumerate(partitioned.steps) for index in step.operations}
    writer = {index: n for n, each in enumerate(main.operations) for index in each.outputs}
    for number, operation in enumerate(main.operations):
        for index in dict.fromkeys(operation.inputs):
            if index in writer and home[writer[index]] != home[number]:
                size = quoted(_size(main.operands[index]))
                yield f"  {prefix}{writer[index]} -> {prefix}{number} [label={size}, style=bold];"
            elif index in writer:
                yield f"  {prefix}{writer[index]} -> {prefix}{number};"
            elif index in main.input_indexes:
                yield f"  {prefix}in{index} -> {prefix}{number};"
    for index in main.output_indexes:
        yield f"  {prefix}{writer[index]} -> {prefix}out{index};"


def _size(operand: Operand) -> str:
    known = hal.has_dtype(operand.type) and hal.is_fully_specified(operand.type, operand.dimensions)
    return f"{hal.byte_size(operand.type, operand.dimensions)} bytes" if known else "? bytes"
