"""Resource variables of a file that is kept whole: inputs and outputs of its main graph.

LiteRT keeps the values of variables from one call to the next, where no stream could carry them,
and no two streams could have their own. So the file is changed: what READ_VARIABLE gives becomes an
input, what ASSIGN_VARIABLE takes an output, and these operators leave the list of operators. The
rest of the file stays where it is. Lists that become longer are put behind its end, since offsets
in a flatbuffer lead forward only.

A state begins as zeros, so variables that begin otherwise stay in the way.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from nnasync._core.formats.flatbuffer import Table, fields, root
from nnasync._core.formats.tflite_schema import TABLES
from nnasync._core.importers.tflite.tensor_values import DTYPES
from nnasync._core.importers.tflite.tflite_file import File, Graph, OperatorInfo, TensorInfo
from nnasync.errors import ModelError
from nnasync.hal import Struct

_HANDLE, _ONCE, _READ, _ASSIGN = "VAR_HANDLE", "CALL_ONCE", "READ_VARIABLE", "ASSIGN_VARIABLE"
_LEFT_OUT = (_HANDLE, _ONCE, _READ, _ASSIGN)
_ALIGNMENT = 8


class Carried(Struct, frozen=True):
    """The changed file, and for each variable its name and the tensors before and after a run."""

    content: bytes
    variables: tuple[tuple[str, int, int], ...]


def carry_variables(file: File, data: memoryview) -> Carried:
    """The file with its variables as inputs and outputs; ModelError says why that cannot be."""
    try:
        return _carried(file, data)
    except LookupError as error:
        raise ModelError("has an operator on variables with too few inputs or outputs") from error


def _carried(file: File, data: memoryview) -> Carried:
    main = file.graphs[0]
    once = _run_once(file)
    variables, aliases = _followed(main)
    first = _first_values(file, data, once)
    for name, before, _ in variables:
        _check_first(name, main.tensors[before], first)
    changed = bytearray(data)
    changed += bytes(-len(changed) % _ALIGNMENT)
    graph, *others = root(data, _MODEL).tables("Subgraphs", _SUBGRAPH)
    _redirect(changed, graph, aliases)
    _leave_out(changed, graph, [each.name in _LEFT_OUT for each in main.operators])
    for number in once:
        _leave_out(changed, others[number - 1], [True] * len(file.graphs[number].operators))
    inputs = (*main.inputs, *(before for _, before, _ in variables))
    outputs = [aliases.get(index, index) for index in main.outputs]
    _replace(changed, graph, "Inputs", inputs)
    _replace(changed, graph, "Outputs", [*outputs, *(after for _, _, after in variables)])
    return Carried(bytes(changed), tuple(variables))


_MODEL, _SUBGRAPH, _OPERATOR = (fields(TABLES[name]) for name in ("Model", "SubGraph", "Operator"))


def _run_once(file: File) -> set[int]:
    """The subgraphs that CALL_ONCE runs, which are nothing but that; none other has variables."""
    once: set[int] = set()
    for operator in file.graphs[0].operators:
        if operator.name == _ONCE:
            number = operator.options.get("InitSubgraphIndex")
            if not isinstance(number, int) or not 0 < number < len(file.graphs):
                raise ModelError(f"operator {operator.index} refers to subgraph {number}")
            once.add(number)
    for number, graph in enumerate(file.graphs):
        names = {each.name for each in graph.operators}
        if number and number not in once and not names.isdisjoint(_LEFT_OUT):
            raise ModelError(f"subgraph {number} has variables of its own")
        if number in once and (graph.inputs or graph.outputs):
            raise ModelError(f"subgraph {number} is run once, and has inputs or outputs")
    return once


def _followed(main: Graph) -> tuple[list[tuple[str, int, int]], dict[int, int]]:
    """Returns each variable that is read and assigned, and which tensors are aliases of others."""
    handles, current, before = dict[int, str](), dict[str, int](), dict[str, int]()
    aliases: dict[int, int] = {}
    for operator in main.operators:
        if operator.name == _HANDLE:
            handles[operator.outputs[0]] = _name(operator)
        elif operator.name == _READ:
            name, result = _named(handles, operator), operator.outputs[0]
            if name in current:
                aliases[result] = current[name]
            else:
                current[name] = before[name] = result
        elif operator.name == _ASSIGN:
            value = operator.inputs[1]
            if value < 0:
                raise ModelError(f"operator {operator.index} assigns nothing")
            current[_named(handles, operator)] = aliases.get(value, value)
    for name, tensor in before.items():
        if current[name] == tensor:
            raise ModelError(f"variable {name!r} is read and never assigned")
    return [(name, tensor, current[name]) for name, tensor in before.items()], aliases


def _name(operator: OperatorInfo) -> str:
    names = (str(operator.options.get(name, "")) for name in ("Container", "SharedName"))
    return "/".join(filter(None, names))


def _named(handles: dict[int, str], operator: OperatorInfo) -> str:
    handle = operator.inputs[0] if operator.inputs else -1
    if handle not in handles:
        raise ModelError(f"operator {operator.index} takes a handle that only the run tells")
    return handles[handle]


def _first_values(file: File, data: memoryview, once: set[int]) -> dict[str, bytes | None]:
    """Returns the values that CALL_ONCE assigns, by name; None where one is no constant."""
    found: dict[str, bytes | None] = {}
    for number in once:
        graph, handles = file.graphs[number], dict[int, str]()
        for operator in graph.operators:
            if operator.name == _HANDLE:
                handles[operator.outputs[0]] = _name(operator)
            elif operator.name == _ASSIGN:
                info = graph.tensors[operator.inputs[1]]
                value = bytes(data[info.offset : info.offset + info.length])
                found[_named(handles, operator)] = value or None
    return found


def _check_first(name: str, info: TensorInfo, first: dict[str, bytes | None]) -> None:
    """Raise ModelError unless a variable begins as zeros."""
    if name not in first:
        return
    value, points, dtype = first[name], info.quantization.zero_points, DTYPES.get(info.type)
    if value is None or dtype is None or len(value) % dtype.itemsize:
        raise ModelError(f"variable {name!r} begins with what is no constant of its type")
    if (np.frombuffer(value, dtype) != (points[0] if points else 0)).any():
        raise ModelError(f"variable {name!r} begins with other numbers than zeros")


def _redirect(changed: bytearray, graph: Table, aliases: dict[int, int]) -> None:
    """Have operators read other tensors."""
    for operator in graph.tables("Operators", _OPERATOR):
        start, _ = operator.extent("Inputs")
        for place, index in enumerate(operator.numbers("Inputs")):
            if index in aliases:
                struct.pack_into("<i", changed, start + 4 * place, aliases[int(index)])


def _leave_out(changed: bytearray, graph: Table, left_out: Sequence[bool]) -> None:
    """Take operators off the list of those of a graph."""
    start, _ = graph.extent("Operators")
    kept = [place for place, is_out in enumerate(left_out) if not is_out]
    offsets = struct.unpack_from(f"<{len(left_out)}I", changed, start)
    struct.pack_into("<I", changed, start - 4, len(kept))
    for new, old in enumerate(kept):
        struct.pack_into("<I", changed, start + 4 * new, offsets[old] + 4 * (old - new))


def _replace(changed: bytearray, graph: Table, field: str, numbers: Sequence[int]) -> None:
    """Put another list behind the end of the file, and have a field refer to it."""
    place = graph.place(field)
    if not place:
        raise ModelError(f"the main subgraph states no {field.lower()}")
    struct.pack_into("<I", changed, place, len(changed) - place)
    changed += struct.pack(f"<I{len(numbers)}i", len(numbers), *numbers)
    changed += bytes(-len(changed) % _ALIGNMENT)
