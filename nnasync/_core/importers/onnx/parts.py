"""Parts of a file that stay ONNX beside translated operators: one operation of ONNX Runtime each.

In a graph such a part stands as one node of type `PART`. Its inputs and outputs are those of the
operators that it has; as a file of its own it has the constants that these read, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync._core.formats.onnx import element_name, operand_of
from nnasync._core.importers.onnx.forms import Convert
from nnasync._core.importers.onnx.onnx_file import OnnxNode, OnnxPort, package
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import MOST_AXES, OnnxScope
from nnasync.errors import ModelError
from nnasync.extensions import ONNX, GraphOperation
from nnasync.hal import OperandType, Shape
from nnasync.kernels.operation import Tensor

PART = "part~"
"""The type of a node that stands for a part; the checker of files lets no operator be named so."""
_FILE = "part"
_OPERAND, _SHAPE = "~operand", "~shape"


class Part(msgspec.Struct, frozen=True, eq=False):
    """Operators of a file by index, what is known of values by name, and why they stay ONNX."""

    message: Any
    nodes: tuple[int, ...]
    ports: Mapping[str, OnnxPort]
    label: str


class _End(msgspec.Struct, frozen=True, eq=False):
    """An input or output of a part, and the shape of its operand: of a high rank that is another.

    Sizes that are not known are 0 in the latter.
    """

    port: OnnxPort
    operand: Shape

    @property
    def is_reshaped(self) -> bool:
        """Returns whether it crosses the border in another shape than inside the part."""
        stated = self.port.shape
        return stated is not None and self.operand != (tuple(n or 0 for n in stated) or (1,))

    @property
    def outside(self) -> OnnxPort:
        """The port of the file of the part."""
        if not self.is_reshaped:
            return self.port
        name = f"{self.port.name}{_OPERAND}"
        return msgspec.structs.replace(self.port, name=name, shape=self.operand)


def operand_shape(shape: Shape) -> Shape:
    """The shape of a value's operand: [1] without axes; of many axes the first ones are one."""
    first = len(shape) - MOST_AXES + 1
    return (math.prod(shape[:first]), *shape[first:]) if first > 1 else shape or (1,)


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
    values = [scope.value_of_any_rank(name) for name in given]
    inputs = [
        _End(_shaped(part, name, scope.shape(name)), value.shape)
        for name, value in zip(given, values, strict=True)
    ]
    for each, value in zip(inputs, values, strict=True):
        if _held(each.port)[0] != value.type:
            raise ModelError(f'"{each.port.name}" is {element_name(each.port.element)}')
    seen = {port.name for port in scope.graph.outputs}
    outputs = [_output(_port(part, name), is_seen=name in seen) for name in node.outputs]
    file = _file(part, inputs, outputs, {n: a for n, a in constants.items() if a is not None})
    tensors = [_tensor(each) for each in outputs]
    type = scope.builder.extension_type(ONNX.name, GraphOperation.GRAPH)
    content = scope.builder.constant(
        np.frombuffer(file, np.uint8), type=OperandType.TENSOR_OEM_BYTE, name=part.label
    )
    results = scope.builder.operation_outputs(type, *values, content, outputs=tensors)
    for each, value in zip(outputs, results, strict=True):
        scope.define(each.port.name, value, _settled(each.port))


def _port(part: Part, name: str) -> OnnxPort:
    port = part.ports.get(name)
    if port is None:
        raise ModelError(f'type and shape of "{name}" are not known')
    return port


def _shaped(part: Part, name: str, shape: Shape) -> OnnxPort:
    return msgspec.structs.replace(_port(part, name), shape=shape)


def _held(port: OnnxPort) -> tuple[OperandType, float]:
    """The operand type of a value between parts, and its scale where none is stated."""
    found = operand_of(port.element)
    if found is None:
        name = element_name(port.element)
        raise ModelError(f'"{port.name}" is {name}, which no operand between parts can hold')
    return found


def _settled(port: OnnxPort) -> Shape | None:
    """The shape of a port where all of it is known."""
    if port.shape is None or None in port.shape:
        return None
    return tuple(n or 0 for n in port.shape)


def _output(port: OnnxPort, *, is_seen: bool) -> _End:
    """An output; one that is seen outside of the model has the shape of the file."""
    known = _settled(port)
    if known is not None and not is_seen:
        return _End(port, operand_shape(known))
    shape = () if port.shape is None else tuple(n or 0 for n in port.shape) or (1,)
    return _End(port, shape)


def _tensor(end: _End) -> Tensor:
    type, scale = _held(end.port)
    return Tensor(type=type, shape=end.operand, scale=scale)


def _file(
    part: Part,
    inputs: Sequence[_End],
    outputs: Sequence[_End],
    constants: Mapping[str, Any],
) -> bytes:
    """The operators of a part as a file."""
    onnx, whole = package(), part.message
    shapes: dict[str, Any] = {}
    before = [_reshape(e.outside, e.port, shapes) for e in inputs if e.is_reshaped]
    behind = [_reshape(e.port, e.outside, shapes) for e in outputs if e.is_reshaped]
    graph = onnx.helper.make_graph(
        [*before, *(whole.graph.node[index] for index in part.nodes), *behind],
        whole.graph.name or _FILE,
        [_info(each.outside) for each in inputs],
        [_info(each.outside) for each in outputs],
        [
            onnx.numpy_helper.from_array(np.asarray(array), name)
            for name, array in {**constants, **shapes}.items()
        ],
    )
    model = onnx.helper.make_model(
        graph,
        opset_imports=whole.opset_import,
        ir_version=whole.ir_version,
        functions=whole.functions,
    )
    found: bytes = model.SerializeToString()
    return found


def _reshape(source: OnnxPort, target: OnnxPort, shapes: dict[str, Any]) -> Any:
    """The operator that gives a value another name and shape, which is added to the constants."""
    name = f"{target.name}{_SHAPE}"
    shapes[name] = np.asarray(target.shape, np.int64)
    return package().helper.make_node("Reshape", [source.name, name], [target.name])


def _info(port: OnnxPort) -> Any:
    return package().helper.make_tensor_value_info(port.name, port.element, port.shape)


CONVERTERS: dict[str, Convert] = {PART: _convert}
"""How the node of a part becomes an operation."""
