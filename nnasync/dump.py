"""A model as text and as a Graphviz graph, and the memory plan of an execution as text.

Operands are written `%index`, with their names where they are made; constant scalars stand as their
values. All functions take legal models; what is not printable in a name becomes a question mark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nnasync import hal
from nnasync.drivers.cpu import MemoryPlan, PlannedBlock
from nnasync.hal import ChannelQuant, Model, Operand, OperandLifeTime, Operation, Subgraph
from nnasync.validation import find_operation, minimum_version, operand_value

__all__ = ["model_dot", "model_text", "plan_text"]

_BAR_COLUMNS = 64
_LIFETIMES = {
    OperandLifeTime.TEMPORARY_VARIABLE: "temporary",
    OperandLifeTime.SUBGRAPH_INPUT: "input",
    OperandLifeTime.SUBGRAPH_OUTPUT: "output",
    OperandLifeTime.CONSTANT_COPY: "constant",
    OperandLifeTime.CONSTANT_REFERENCE: "constant in pool",
    OperandLifeTime.NO_VALUE: "omitted",
    OperandLifeTime.SUBGRAPH: "subgraph",
}


def model_text(model: Model) -> str:
    """Operands with types, shapes, quantisation, writers and readers, and the operations."""
    facts = [f"first in {hal.version_name(minimum_version(model))}"]
    if model.relax_computation_float32_to_float16:
        facts.append("float32 may be computed as float16")
    facts += [f"pool {i}: {pool.name}, {pool.size} bytes" for i, pool in enumerate(model.pools)]
    facts += [f"extension {e.prefix}: {e.name}" for e in model.extension_name_to_prefix]
    main = model.main
    for pair in model.state:
        before, after = main.input_indexes[pair.input], main.output_indexes[pair.output]
        facts.append(f"state {_reference(main, before)} becomes {_reference(main, after)}")
    title = f"model {model.name!r}" if model.name else "model"
    parts = ["\n".join([title, *(f"  {fact}" for fact in facts)])]
    parts.append(_subgraph_text(model, main, "main subgraph"))
    for index, subgraph in enumerate(model.referenced):
        parts.append(_subgraph_text(model, subgraph, f"referenced subgraph {index}"))
    return "\n\n".join(parts) + "\n"


def model_dot(model: Model) -> str:
    """The model as a Graphviz digraph: operations are boxes, tensors are the arrows between them.

    Inputs and outputs are ovals, constants are notes, each subgraph is a cluster. A dashed arrow
    leads from an IF or a WHILE to the subgraphs that it runs.
    """
    lines = [
        f"digraph {_quoted(model.name or 'model')} {{",
        "  compound=true;",
        '  node [fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=8];',
    ]
    lines += _dot_body(model, model.main, "m")
    for index, subgraph in enumerate(model.referenced):
        lines += [f"  subgraph cluster_{index} {{", f"  label={_quoted(f'subgraph {index}')};"]
        lines += [f"  s{index} [shape=point, style=invis];"]
        lines += _dot_body(model, subgraph, f"s{index}_")
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def plan_text(plan: MemoryPlan) -> str:
    """The bytes of one execution with and without sharing, and a bar of each block's lifetime."""
    ratio = plan.total / plan.lower_bound if plan.lower_bound else 1.0
    saved = 1 - plan.total / plan.unshared if plan.unshared else 0.0
    heads = ("block", "bytes", "offset", "steps", f"lifetime over {len(plan.operations)} steps")
    rows = [
        (
            block.name,
            str(block.nbytes),
            str(block.offset),
            f"{block.first}..{block.last}",
            _bar(block, len(plan.operations)),
        )
        for block in sorted(plan.blocks, key=lambda b: (b.first, b.last, -b.nbytes))
    ]
    return (
        "memory of one execution\n"
        f"  shared       {plan.total} bytes\n"
        f"  unshared     {plan.unshared} bytes; sharing saves {saved:.1%}\n"
        f"  lower bound  {plan.lower_bound} bytes alive at once; shared is {ratio:.2f} times that\n"
        "\n" + "\n".join(_columns(heads, rows, right=(1, 2))) + "\n"
    )


# -- text


def _subgraph_text(model: Model, subgraph: Subgraph, title: str) -> str:
    lines = [
        f"{title}: {len(subgraph.operands)} operands, {len(subgraph.operations)} operations",
        "",
    ]
    lines += [
        f"  {position:>3}  {_operation_text(model, subgraph, operation)}"
        for position, operation in enumerate(subgraph.operations)
    ]
    writers, readers = _users(subgraph)
    heads = ("operand", "type", "shape", "quantisation", "is", "bytes", "written by", "read by")
    rows = [
        (
            _reference(subgraph, index),
            hal.type_name(operand.type),
            _shape(operand),
            _quantization(operand),
            _LIFETIMES[operand.lifetime],
            str(_size(operand) or "?"),
            ", ".join(map(str, writers[index])),
            ", ".join(map(str, readers[index])),
        )
        for index, operand in enumerate(subgraph.operands)
    ]
    table = _columns(heads, rows, right=(5,))
    return "\n".join([*lines, "", *(f"  {line}" for line in table)])


def _operation_text(model: Model, subgraph: Subgraph, operation: Operation) -> str:
    names = _parameter_names(model, subgraph, operation)
    inputs = [
        f"{name}={value}" if name else value
        for name, value in zip(
            names, (_argument(model, subgraph, i) for i in operation.inputs), strict=True
        )
    ]
    outputs = ", ".join(_reference(subgraph, index) for index in operation.outputs)
    return f"{outputs} = {_operation_name(model, operation)}({', '.join(inputs)})"


def _operation_name(model: Model, operation: Operation) -> str:
    known = find_operation(model, operation.type)
    return known.name if known is not None else hal.operation_name(operation.type)


def _parameter_names(model: Model, subgraph: Subgraph, operation: Operation) -> list[str]:
    """What the operation's signature calls its inputs; empty where it is not known."""
    known = find_operation(model, operation.type)
    types = [subgraph.operands[index].type for index in operation.inputs]
    for signature in known.signatures if known is not None else ():
        if signature.accepts(types):
            return [parameter.name for parameter in signature.parameters(len(types)) or ()]
    return [""] * len(types)


def _argument(model: Model, subgraph: Subgraph, index: int) -> str:
    operand = subgraph.operands[index]
    if operand.lifetime == OperandLifeTime.SUBGRAPH:
        return f"subgraph {operand.location.offset}"
    if operand.lifetime == OperandLifeTime.NO_VALUE:
        return "omitted"
    value = operand_value(model, operand)
    if value is not None and hal.is_scalar(operand.type):
        return str(value[()])
    return f"%{index}"


def _reference(subgraph: Subgraph, index: int) -> str:
    name = "".join(c if c.isprintable() else "?" for c in subgraph.operands[index].name)
    return f'%{index} "{name}"' if name else f"%{index}"


def _users(subgraph: Subgraph) -> tuple[list[list[int]], list[list[int]]]:
    """For each operand the operations that write it and those that read it."""
    writers: list[list[int]] = [[] for _ in subgraph.operands]
    readers: list[list[int]] = [[] for _ in subgraph.operands]
    for position, operation in enumerate(subgraph.operations):
        for index in operation.inputs:
            readers[index].append(position)
        for index in operation.outputs:
            writers[index].append(position)
    return writers, readers


def _shape(operand: Operand) -> str:
    if hal.is_scalar(operand.type):
        return "scalar"
    if not operand.dimensions:
        return "any rank"
    return "x".join(str(n) if n else "?" for n in operand.dimensions)


def _quantization(operand: Operand) -> str:
    extra = operand.extra_params
    if isinstance(extra, ChannelQuant):
        low, high = min(extra.scales), max(extra.scales)
        return f"{len(extra.scales)} scales {low:g} to {high:g} along {extra.channel_dim}"
    if not operand.scale:
        return ""
    zero = f" zero point {operand.zero_point}" if operand.zero_point else ""
    return f"scale {operand.scale:g}{zero}"


def _size(operand: Operand) -> int:
    if hal.is_constant(operand):
        return operand.location.length
    known = hal.has_dtype(operand.type)
    return hal.byte_size(operand.type, operand.dimensions) if known else 0


def _columns(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int]
) -> Iterator[str]:
    """Lines of a table; columns in `right` are flush right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, ["-" * width for width in widths], *rows):
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _bar(block: PlannedBlock, steps: int) -> str:
    """Columns of time: the first is before the first step, the last after the last one."""
    count = steps + 2
    columns = min(count, _BAR_COLUMNS)
    edges = np.linspace(0, count, columns + 1)
    first, last = block.first + 1, block.last + 2
    return "".join("#" if edges[i] < last and first < edges[i + 1] else "." for i in range(columns))


# -- Graphviz


def _dot_body(model: Model, subgraph: Subgraph, prefix: str) -> Iterator[str]:
    writers, _ = _users(subgraph)
    for kind, indexes, color in (
        ("in", subgraph.input_indexes, "#cfe8ff"),
        ("out", subgraph.output_indexes, "#ffe3c2"),
    ):
        for index in indexes:
            label = f"{_reference(subgraph, index)}\n{_described(subgraph.operands[index])}"
            yield (
                f"  {prefix}{kind}{index} [label={_quoted(label)}, shape=oval, style=filled, "
                f'fillcolor="{color}"];'
            )
    for position, operation in enumerate(subgraph.operations):
        label = "\n".join(
            [
                f"{position} {_operation_name(model, operation)}",
                *_attributes(model, subgraph, operation),
            ]
        )
        yield f"  {prefix}{position} [label={_quoted(label)}, shape=box];"
        yield from _dot_inputs(model, subgraph, prefix, position, writers)
    for index in subgraph.output_indexes:
        for position in writers[index]:
            yield f"  {prefix}{position} -> {prefix}out{index};"


def _attributes(model: Model, subgraph: Subgraph, operation: Operation) -> Iterator[str]:
    """The scalars of an operation, which are not worth an arrow."""
    names = _parameter_names(model, subgraph, operation)
    for name, index in zip(names, operation.inputs, strict=True):
        operand = subgraph.operands[index]
        if hal.is_constant(operand) and hal.is_scalar(operand.type):
            yield f"{name or 'value'} {_argument(model, subgraph, index)}"


def _dot_inputs(
    model: Model, subgraph: Subgraph, prefix: str, position: int, writers: Sequence[Sequence[int]]
) -> Iterator[str]:
    """Arrows into one operation, and the notes of the constants that it reads."""
    target = f"{prefix}{position}"
    for place, index in enumerate(subgraph.operations[position].inputs):
        operand = subgraph.operands[index]
        label = _quoted(f"{_reference(subgraph, index)}\n{_described(operand)}")
        if operand.lifetime == OperandLifeTime.SUBGRAPH:
            called = operand.location.offset
            yield f"  {target} -> s{called} [style=dashed, lhead=cluster_{called}];"
        elif operand.lifetime == OperandLifeTime.SUBGRAPH_INPUT:
            yield f"  {prefix}in{index} -> {target};"
        elif writers[index]:
            yield f"  {prefix}{writers[index][0]} -> {target} [label={label}];"
        elif hal.is_constant(operand) and not hal.is_scalar(operand.type):
            note = f"{target}_c{place}"
            yield f'  {note} [label={label}, shape=note, fontsize=8, color="#888888"];'
            yield f'  {note} -> {target} [color="#888888"];'


def _described(operand: Operand) -> str:
    parts = [hal.type_name(operand.type), _shape(operand), _quantization(operand)]
    return " ".join(part for part in parts if part)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
