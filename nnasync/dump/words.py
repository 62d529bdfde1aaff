"""How operands, operations and tables are written in what is dumped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nnasync import hal
from nnasync._core.validation import find_operation
from nnasync.extensions import operation_label
from nnasync.hal import ChannelQuant, Model, Operand, Operation, Subgraph


def operation_title(model: Model, operation: Operation) -> str:
    """The name of an operation, of an extension's as its rule has it."""
    known = find_operation(model, operation.type)
    if known is not None:
        return known.name
    return operation_label(model.extension_name_to_prefix, operation.type)


def reference(subgraph: Subgraph, index: int) -> str:
    """An operand as `%index`, with its name if it has one."""
    name = "".join(c if c.isprintable() else "?" for c in subgraph.operands[index].name)
    return f'%{index} "{name}"' if name else f"%{index}"


def users(subgraph: Subgraph) -> tuple[list[list[int]], list[list[int]]]:
    """Returns for each operand the operations that write it, and those that read it."""
    writers: list[list[int]] = [[] for _ in subgraph.operands]
    readers: list[list[int]] = [[] for _ in subgraph.operands]
    for position, operation in enumerate(subgraph.operations):
        for index in operation.inputs:
            readers[index].append(position)
        for index in operation.outputs:
            writers[index].append(position)
    return writers, readers


def shape_text(operand: Operand) -> str:
    """Dimensions such as 1x4; unknown ones are question marks."""
    if hal.is_scalar(operand.type):
        return "scalar"
    if not operand.dimensions:
        return "any rank"
    return "x".join(str(n) if n else "?" for n in operand.dimensions)


def quantization(operand: Operand) -> str:
    """Scale and zero point; empty where there are none."""
    extra = operand.extra_params
    if isinstance(extra, ChannelQuant):
        low, high = min(extra.scales), max(extra.scales)
        return f"{len(extra.scales)} scales {low:g} to {high:g} along {extra.channel_dim}"
    if not operand.scale:
        return ""
    zero = f" zero point {operand.zero_point}" if operand.zero_point else ""
    return f"scale {operand.scale:g}{zero}"


def byte_count(operand: Operand) -> int:
    """Size in bytes; 0 where it is not known."""
    if hal.is_constant(operand):
        return operand.location.length
    known = hal.has_dtype(operand.type)
    return hal.byte_size(operand.type, operand.dimensions) if known else 0


def columns(
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


def described(operand: Operand) -> str:
    """Type, shape and quantization."""
    parts = [hal.type_name(operand.type), shape_text(operand), quantization(operand)]
    return " ".join(part for part in parts if part)


def quoted(text: str) -> str:
    """A string of Graphviz."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
