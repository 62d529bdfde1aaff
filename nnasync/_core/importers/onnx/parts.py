"""Parts of a file that stay ONNX beside translated operators: one operation of ONNX Runtime each.

In a graph such a part stands as one node of type `PART`. Its inputs and outputs are those of the
operators that it has; as a file of its own it has the constants that these read, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync._core.formats.onnx import Element, element_of
from nnasync._core.formats.whole import add_file
from nnasync._core.importers.onnx.forms import Convert
from nnasync._core.importers.onnx.onnx_file import OnnxNode, OnnxPort, package
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope
from nnasync.errors import ModelError
from nnasync.extensions import ONNX
from nnasync.hal import Shape
from nnasync.kernels.operation import Tensor

__all__ = ["CONVERTERS", "PART", "Part", "part_node"]

PART = "part~"
"""The type of a node that stands for a part; the checker of files lets no operator be named so."""
_FILE = "part"


class Part(msgspec.Struct, frozen=True, eq=False):
    """Operators of a file by index, what is known of values by name, and why they stay ONNX."""

    message: Any
    nodes: tuple[int, ...]
    ports: Mapping[str, OnnxPort]
    label: str


def part_node(part: Part, nodes: Sequence[OnnxNode], wanted: Collection[str]) -> OnnxNode:
    """The node of a part of these operators, of whose results these are wanted elsewhere."""
    made = [name for node in nodes for name in node.outputs if name]
    read = {name: None for node in nodes for name in sorted(node.reads) if name}
    return OnnxNode(
        index=nodes[0].index,
        type=PART,
        inputs=tuple(name for name in read if name not in made),
        outputs=tuple(name for name in made if name in wanted),
        attributes={_FILE: part},
    )


def _convert(scope: OnnxScope, step: Step) -> None:
    node, part = step.node, step.node.attributes[_FILE]
    constants = {name: scope.array(name) for name in node.inputs}
    given = [name for name, array in constants.items() if array is None]
    values = [scope.value(name) for name in given]
    inputs = [_shaped(part, name, scope.shape(name)) for name in given]
    for port, value in zip(inputs, values, strict=True):
        if _element(port).operand != value.type:
            raise ModelError(f'"{port.name}" has element type {port.element}')
    outputs = [_port(part, name) for name in node.outputs]
    file = _file(part, inputs, outputs, {n: a for n, a in constants.items() if a is not None})
    tensors = [_tensor(port) for port in outputs]
    results = add_file(scope.builder, ONNX.name, values, file, part.label, tensors)
    for name, value in zip(node.outputs, results, strict=True):
        scope.define(name, value)


def _port(part: Part, name: str) -> OnnxPort:
    port = part.ports.get(name)
    if port is None:
        raise ModelError(f'type and shape of "{name}" are not known')
    return port


def _shaped(part: Part, name: str, shape: Shape) -> OnnxPort:
    return msgspec.structs.replace(_port(part, name), shape=shape)


def _element(port: OnnxPort) -> Element:
    found: Element | None = element_of(port.element)
    if found is None:
        raise ModelError(f'"{port.name}" has element type {port.element}, no operand can hold it')
    return found


def _tensor(port: OnnxPort) -> Tensor:
    element = _element(port)
    shape = () if port.shape is None else tuple(n or 0 for n in port.shape) or (1,)
    return Tensor(type=element.operand, shape=shape, scale=element.scale)


def _file(
    part: Part,
    inputs: Sequence[OnnxPort],
    outputs: Sequence[OnnxPort],
    constants: Mapping[str, Any],
) -> bytes:
    """The operators of a part as a file."""
    onnx, whole = package(), part.message
    graph = onnx.helper.make_graph(
        [whole.graph.node[index] for index in part.nodes],
        whole.graph.name or _FILE,
        [_info(port) for port in inputs],
        [_info(port) for port in outputs],
        [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    model = onnx.helper.make_model(
        graph,
        opset_imports=whole.opset_import,
        ir_version=whole.ir_version,
        functions=whole.functions,
    )
    found: bytes = model.SerializeToString()
    return found


def _info(port: OnnxPort) -> Any:
    return package().helper.make_tensor_value_info(port.name, port.element, port.shape)


CONVERTERS: dict[str, Convert] = {PART: _convert}
"""How the node of a part becomes an operation."""
