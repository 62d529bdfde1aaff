"""Inputs and outputs of 4 bits, which are bytes outside of a file.

No array has elements of half a byte, and ONNX Runtime packs two of them into one. So such an input
becomes one of int8 or uint8 that is cast before anybody reads it, and such an output is cast last.
Of a number that does not fit into 4 bits an input takes the last four.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from nnasync._core.importers.onnx.onnx_file import package

_INSIDE = "/4 bits"


def with_bytes_outside(message: Any) -> bool:
    """Have inputs and outputs of 4 bits be int8 and uint8; whether there were any."""
    onnx, graph = package(), message.graph
    types = onnx.TensorProto
    outside = {types.INT4: types.INT8, types.UINT4: types.UINT8}
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [port for port in _small(graph.input, outside) if port.name not in constants]
    outputs = _small(graph.output, outside)
    _rename(graph, frozenset(port.name for port in (*inputs, *outputs)))
    before = [
        onnx.helper.make_node("Cast", [port.name], [port.name + _INSIDE], to=_type(port))
        for port in inputs
    ]
    after = [
        onnx.helper.make_node("Cast", [port.name + _INSIDE], [port.name], to=outside[_type(port)])
        for port in outputs
    ]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    for port in (*inputs, *outputs):
        port.type.tensor_type.elem_type = outside[_type(port)]
    return bool(before or after)


def _small(ports: Sequence[Any], outside: dict[int, int]) -> list[Any]:
    return [port for port in ports if _type(port) in outside]


def _type(port: Any) -> int:
    return int(port.type.tensor_type.elem_type)


def _rename(graph: Any, names: Set[str]) -> None:
    """Have nodes, and the subgraphs in them, call what has these names as it is called inside."""
    if not names:
        return
    for named in (*graph.initializer, *graph.value_info):
        if named.name in names:
            named.name += _INSIDE
    for node in graph.node:
        for ends in (node.input, node.output):
            for place, name in enumerate(ends):
                if name in names:
                    ends[place] = name + _INSIDE
        for attribute in node.attribute:
            for part in (attribute.g, *attribute.graphs):
                _rename(part, names)
                for port in part.output:
                    if port.name in names:
                        port.name += _INSIDE
