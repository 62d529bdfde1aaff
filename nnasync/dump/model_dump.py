"""A model as text and as a Graphviz graph.

Operands are written `%index`, with their names where they are made; constant scalars stand as their
values. Both functions take legal models; what is not printable in a name becomes a question mark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nnasync import hal
from nnasync._core.validation import find_operation, minimum_version, operand_value
from nnasync._core.words import counted
from nnasync.dump.words import (
    byte_count,
    columns,
    described,
    operation_title,
    quantization,
    quoted,
    reference,
    shape_text,
    users,
)
from nnasync.extensions import operand_type_label
from nnasync.hal import Model, OperandLifeTime, Operation, Subgraph

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
    """Operands with types, shapes, quantization, writers and readers, and the operations."""
    facts = [f"first in {hal.version_name(minimum_version(model))}"]
    if model.relax_computation_float32_to_float16:
        facts.append("float32 may be computed as float16")
    facts += [f"pool {i}: {pool.name}, {pool.size} bytes" for i, pool in enumerate(model.pools)]
    facts += [f"extension {e.prefix}: {e.name}" for e in model.extension_name_to_prefix]
    main = model.main
    for pair in model.state:
        before, after = main.input_indexes[pair.input], main.output_indexes[pair.output]
        facts.append(f"state {reference(main, before)} becomes {reference(main, after)}")
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
        f"digraph {quoted(model.name or 'model')} {{",
        "  compound=true;",
        '  node [fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=8];',
    ]
    lines += _dot_body(model, model.main, "m")
    for index, subgraph in enumerate(model.referenced):
        lines += [f"  subgraph cluster_{index} {{", f"  label={quoted(f'subgraph {index}')};"]
        lines += [f"  s{index} [shape=point, style=invis];"]
        lines += _dot_body(model, subgraph, f"s{index}_")
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def _subgraph_text(model: Model, subgraph: Subgraph, title: str) -> str:
    lines = [
        f"{title}: {counted(len(subgraph.operands), 'operand')}, "
        f"{counted(len(subgraph.operations), 'operation')}",
        "",
    ]
    lines += [
        f"  {position:>3}  {_operation_text(model, subgraph, operation)}"
        for position, operation in enumerate(subgraph.operations)
    ]
    writers, readers = users(subgraph)
    heads = ("operand", "type", "shape", "quantization", "is", "bytes", "written by", "read by")
    rows = [
        (
            reference(subgraph, index),
            operand_type_label(model.extension_name_to_prefix, operand.type),
            shape_text(operand),
            quantization(operand),
            _LIFETIMES[operand.lifetime],
            str(byte_count(operand) or "?"),
            ", ".join(map(str, writers[index])),
            ", ".join(map(str, readers[index])),
        )
        for index, operand in enumerate(subgraph.operands)
    ]
    table = columns(heads, rows, right=(5,))
    return "\n".join([*lines, "", *(f"  {line}" for line in table)])


def _operation_text(model: Model, subgraph: Subgraph, operation: Operation) -> str:
    names = _parameter_names(model, subgraph, operation)
    inputs = [
        f"{name}={value}" if name else value
        for name, value in zip(
            names, (_argument(model, subgraph, i) for i in operation.inputs), strict=True
        )
    ]
    outputs = ", ".join(reference(subgraph, index) for index in operation.outputs)
    return f"{outputs} = {operation_title(model, operation)}({', '.join(inputs)})"


def _parameter_names(model: Model, subgraph: Subgraph, operation: Operation) -> list[str]:
    """Returns the signature's names of an operation's inputs; empty where they are unknown."""
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


def _dot_body(model: Model, subgraph: Subgraph, prefix: str) -> Iterator[str]:
    writers, _ = users(subgraph)
    for kind, indexes, color in (
        ("in", subgraph.input_indexes, "#cfe8ff"),
        ("out", subgraph.output_indexes, "#ffe3c2"),
    ):
        for index in indexes:
            label = f"{reference(subgraph, index)}\n{described(subgraph.operands[index])}"
            yield (
                f"  {prefix}{kind}{index} [label={quoted(label)}, shape=oval, style=filled, "
                f'fillcolor="{color}"];'
            )
    for position, operation in enumerate(subgraph.operations):
        label = "\n".join(
            [
                f"{position} {operation_title(model, operation)}",
                *_attributes(model, subgraph, operation),
            ]
        )
        yield f"  {prefix}{position} [label={quoted(label)}, shape=box];"
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
        label = quoted(f"{reference(subgraph, index)}\n{described(operand)}")
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
