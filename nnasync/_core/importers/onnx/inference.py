"""Types and shapes of the values of a graph, as far as ONNX's own inference finds them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from nnasync._core.formats.onnx import element_of
from nnasync._core.formats.value_sizes import check_value
from nnasync._core.importers.onnx.onnx_file import OnnxGraph, OnnxPort, package, port_of
from nnasync.errors import ModelError

_LARGE = 4096
"""Constants of more elements say nothing about shapes."""
_LONGEST_LIST = 1 << 16
_TAKES_ENTRIES_ONLY = 13
"""Since this opset the inference takes no list for a shape whose entries it does not know."""
_STANDARD = ("", "ai.onnx")
_NEEDS_NUMBERS = "InstanceNormalization"
_LEFT_OUT = "org.nnasync.left_out"
_LIKE_INPUT = frozenset({"Gelu", "FastGelu", "BiasGelu", "QuickGelu", "SkipLayerNormalization"})
"""Operators of vendors whose result has type and shape of their first input."""


def inferred(message: Any, graph: OnnxGraph) -> dict[str, OnnxPort]:
    """Types and shapes of values by name, as far as ONNX's inference finds them."""
    known = {value.name: port_of(value) for value in _values(_inferred(message, graph).graph)}
    for name, array in graph.constants.items():
        element = package().helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)
        known[name] = OnnxPort(name, element, np.asarray(array).shape)
    return {**known, **{port.name: port for port in graph.inputs}}


def _inferred(message: Any, graph: OnnxGraph) -> Any:
    """The outline of a message with types and shapes; raises ModelError."""
    try:
        outline = _outline(message, graph)
        found = _guarded(outline)
        if not _has_long_lists(found.graph):
            found = package().shape_inference.infer_shapes(outline, data_prop=True)
    except Exception as error:
        raise ModelError(f"ONNX cannot infer its shapes: {error}") from error
    return found


def _values(graph: Any) -> Iterator[Any]:
    yield from (*graph.input, *graph.value_info, *graph.output)


def _inner_values(graph: Any) -> Iterator[Any]:
    """The values of a graph, and of those in it."""
    yield from _values(graph)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _inner_values(inner)


def _check_sizes(graph: Any, file_bytes: int, value_limit_bytes: int | None) -> None:
    """Raise ModelError where a value takes more memory than it may, as far as shapes are known."""
    for value in _inner_values(graph):
        port = port_of(value)
        shape = tuple(n or 0 for n in port.shape or ())
        check_value(f'"{port.name}"', shape, _bytes(port), file_bytes, value_limit_bytes)


def _check_numbers(graph: Any, outer: Mapping[str, Any]) -> None:
    """Raise ModelError for a normalization of channels without numbers, at all levels.

    ONNX Runtime ends the process where it computes one.
    """
    known = {**outer, **{value.name: value for value in _values(graph)}}
    for node in graph.node:
        value = known.get(node.input[0]) if node.input else None
        if node.op_type == _NEEDS_NUMBERS and value is not None:
            sizes = value.type.tensor_type.shape.dim[2:]
            if any(size.HasField("dim_value") and size.dim_value == 0 for size in sizes):
                raise ModelError(
                    f"InstanceNormalization that makes {list(node.output)} has channels without"
                    f' numbers: "{value.name}" has a size of 0'
                )
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _check_numbers(inner, known)


def bytes_of_inputs(graph: OnnxGraph, names: Collection[str]) -> int:
    """Returns the size of the inputs of these names in bytes, as far as it is known."""
    return sum(_bytes(port) for port in graph.inputs if port.name in names)


def _bytes(port: OnnxPort) -> int:
    """Returns the size of a value in bytes; 0 where its shape is not known."""
    element = element_of(port.element)
    each = 1 if element is None else int(element.dtype.itemsize)
    return each * math.prod(n or 0 for n in port.shape or ()) if _is_settled(port) else 0


def check_lists(message: Any, graph: OnnxGraph) -> None:
    """Raise ModelError for a file whose lists ONNX's converters would not come to the end of.

    They take lists for shapes, as the inference does.
    """
    try:
        found = _guarded(_outline(message, graph))
    except Exception as error:
        raise ModelError(f"ONNX cannot infer its shapes: {error}") from error
    if _has_long_lists(found.graph):
        raise ModelError(f"has a list of more than {_LONGEST_LIST} entries")


def _guarded(outline: Any) -> Any:
    """The outline with the types and shapes that its inference finds, and that take it no time.

    Before opset 13 the inference takes a list for a shape already where it knows no entry of it, so
    older files count as of 13. Operators that had attributes then which are inputs now, such as the
    axes of Squeeze, are left out.
    """
    found = package().ModelProto()
    found.CopyFrom(outline)
    opset = next((each for each in found.opset_import if each.domain in _STANDARD), None)
    if opset is not None and opset.version < _TAKES_ENTRIES_ONLY:
        opset.version = _TAKES_ENTRIES_ONLY
        found.opset_import.add(domain=_LEFT_OUT, version=1)
        _leave_out(found.graph)
    return package().shape_inference.infer_shapes(found)


def _leave_out(graph: Any) -> None:
    """Have the inference pass over operators that mean something else now, at all levels."""
    for node in graph.node:
        if node.domain in _STANDARD and not _known_attributes(node.op_type).issuperset(
            attribute.name for attribute in node.attribute
        ):
            node.domain = _LEFT_OUT
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _leave_out(inner)


def _known_attributes(operator: str) -> frozenset[str]:
    """The attributes of an operator, as of the opset that older files count as."""
    defs = package().defs
    try:
        return frozenset(defs.get_schema(operator, _TAKES_ENTRIES_ONLY).attributes)
    except defs.SchemaError:
        return frozenset()


def _has_long_lists(graph: Any) -> bool:
    """Returns whether a value of a graph, or of one in it, is too long a list for a shape.

    Taken for one, each entry is written down, known or not, which does not end where a file states
    a size beyond all memory. It may be a list of anything: files may be wrong.
    """
    for value in (*graph.input, *graph.value_info, *graph.output):
        sizes = value.type.tensor_type.shape.dim
        if len(sizes) == 1 and sizes[0].dim_value > _LONGEST_LIST:
            return True
    attributes = (attribute for node in graph.node for attribute in node.attribute)
    inner = (each for attribute in attributes for each in (attribute.g, *attribute.graphs))
    return any(map(_has_long_lists, inner))


def _outline(message: Any, graph: OnnxGraph) -> Any:
    """The message without large constants, with the shapes of inputs that are known now."""
    onnx = package()
    helper = onnx.helper
    outline = onnx.ModelProto()
    outline.ir_version = max(message.ir_version, 4)
    outline.opset_import.extend(message.opset_import)
    outline.functions.extend(message.functions)
    outline.graph.name = message.graph.name or "outline"
    outline.graph.node.extend(message.graph.node)
    outline.graph.output.extend(message.graph.output)
    outline.graph.value_info.extend(message.graph.value_info)
    for port in graph.inputs:
        sizes = port.shape
        outline.graph.input.append(helper.make_tensor_value_info(port.name, port.element, sizes))
    for tensor in message.graph.initializer:
        if np.prod(tensor.dims, dtype=np.float64) <= _LARGE:
            outline.graph.initializer.append(tensor)
        else:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            outline.graph.input.append(info)
    for node in outline.graph.node:
        if node.domain and node.op_type in _LIKE_INPUT:
            node.CopyFrom(helper.make_node("Identity", [node.input[0]], [node.output[0]]))
    return outline


def checked(
    message: Any, graph: OnnxGraph, file_bytes: int, value_limit_bytes: int | None
) -> OnnxGraph:
    """The graph of a file that is run whole, with shapes of outputs that follow from its inputs.

    Where the shapes of all inputs are known, those of outputs that are open are inferred. Raises
    ModelError where values take more memory than `value_limit_bytes`, or than those of a file of
    this size may where that is None, and for what would end ONNX Runtime's process. What the
    inference does not take, ONNX Runtime refuses as well, which infers in the same way.
    """
    try:
        found = _inferred(message, graph).graph
    except ModelError:
        return graph
    _check_sizes(found, file_bytes, value_limit_bytes)
    _check_numbers(found, {})
    if not all(map(_is_settled, graph.inputs)) or all(map(_is_settled, graph.outputs)):
        return graph
    known = {value.name: port_of(value) for value in _values(found)}
    outputs = tuple(_better(port, known.get(port.name)) for port in graph.outputs)
    return msgspec.structs.replace(graph, outputs=outputs)


def _is_settled(port: OnnxPort) -> bool:
    return port.shape is not None and None not in port.shape


def _better(port: OnnxPort, found: OnnxPort | None) -> OnnxPort:
    """A port with a shape that was inferred, where it does not contradict the stated one."""
    if found is None or found.shape is None or found.element != port.element:
        return port
    stated = port.shape or (None,) * len(found.shape)
    if len(stated) != len(found.shape) or any(
        known and other and known != other for known, other in zip(stated, found.shape, strict=True)
    ):
        return port
    shape = tuple(known or other for known, other in zip(stated, found.shape, strict=True))
    return msgspec.structs.replace(port, shape=shape)
