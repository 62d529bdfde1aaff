"""An ONNX file, checked and read into plain structs.

A file is hostile: its size is bounded, the package's own checker sees it before anything is read,
data outside the file is read from the file's folder only and counts against the same bound, and
whatever the readers make of broken bytes becomes a ModelError.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from nnasync._core.formats.onnx import MAX_FILE_BYTES
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import Array, Struct

_STANDARD = ("", "ai.onnx")
_EXTERNAL = 1
_SUBGRAPHS = (5, 10)
_MAX_DEPTH = 16
_CONSTANTS_ALONE = 4
"""The first version of the format in which constants need not be inputs."""


class OnnxPort(Struct, frozen=True):
    """An input or output: its element type by number, its shape, with None for what is open.

    `labels` are the names of open dimensions; those of one name are equally large.
    """

    name: str
    element: int
    shape: tuple[int | None, ...] | None
    labels: tuple[str, ...] = ()


class OnnxNode(msgspec.Struct, frozen=True, eq=False):
    """One operator; an input that is left out is "". Subgraphs of attributes stand apart.

    `origin` is the index in the file of the operator that it was made of, if it is not from there.
    """

    index: int
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    graphs: dict[str, OnnxGraph] = msgspec.field(default_factory=dict)
    origin: int | None = None

    @property
    def place(self) -> int:
        """The index in the file."""
        return self.index if self.origin is None else self.origin

    @property
    def reads(self) -> set[str]:
        """The names that it reads, and its subgraphs from around them."""
        found = {name for graph in self.graphs.values() for name in reads_of(graph)}
        return found.union(self.inputs)

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)


class OnnxGraph(msgspec.Struct, frozen=True, eq=False):
    """The graph of a file: ports in order, constants by name, operators in order."""

    inputs: tuple[OnnxPort, ...]
    outputs: tuple[OnnxPort, ...]
    constants: dict[str, Array]
    nodes: tuple[OnnxNode, ...]
    opset: int


def without_stated_constants(message: Any) -> bool:
    """Take constants out of the inputs of a message; whether there were any.

    Older files list all constants there, and ONNX Runtime takes such a one for a value that calls
    may replace, with which it joins no operators.
    """
    graph = message.graph
    names = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in names]
    if len(kept) == len(graph.input):
        return False
    del graph.input[:]
    graph.input.extend(kept)
    message.ir_version = max(message.ir_version, _CONSTANTS_ALONE)
    return True


def reads_of(graph: OnnxGraph) -> set[str]:
    """The names that a subgraph reads from around it."""
    made = {*graph.constants, *(port.name for port in graph.inputs)}
    made.update(name for node in graph.nodes for name in node.outputs)
    read = {name for node in graph.nodes for name in node.reads}
    read.update(port.name for port in graph.outputs)
    return read - made - {""}


def package() -> Any:
    """The package onnx; raises InvalidArgument where it is not installed."""
    try:
        return importlib.import_module("onnx")
    except ImportError as error:
        raise InvalidArgument(
            "reading .onnx files needs onnx, which is not installed:"
            " pip install 'nnasync[onnxruntime]'"
        ) from error


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file; ModelError where it is larger than an ONNX file can be."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise ModelError(f"has {size} bytes, an ONNX file has at most {MAX_FILE_BYTES}")
        return file.read()


def places_beside(path: str | os.PathLike[str], content: bytes | None) -> list[Path]:
    """Returns the sorted paths of files in the same folder that have a file's weights.

    Of a file that cannot be read it is told when it is loaded.
    """
    try:
        data = read_bytes(path) if content is None else content
        message = package().load_model_from_string(data)
        places = {_place_of(tensor) for tensor in _external_tensors(message.graph, 0)}
    except OSError:
        raise
    except Exception:  # as `parse` has it
        return []
    return sorted(place for place in places if place is not None)


def parse(data: bytes, folder: Path) -> tuple[Any, bool]:
    """The checked message in a file, and whether data from other files was put into it.

    Raises ModelError where it is no ONNX file, or not a legal one.
    """
    onnx = package()
    try:
        message = onnx.load_model_from_string(data)
        outside = list(_external_tensors(message.graph, 0))
        _check_sizes(outside)
        for tensor in outside:
            _check_there(tensor, folder)
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        _check(message)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"is no legal ONNX file: {error}") from error
    return message, bool(outside)


def _check(message: Any) -> None:
    """Raise what ONNX's checker says; it wants a shape of each output, which ONNX Runtime does not.

    For its sake those without one have one meanwhile, at which it does not look.
    """
    types = (each.type.tensor_type for each in message.graph.output if each.HasField("type"))
    shapeless = [type for type in types if type.elem_type and not type.HasField("shape")]
    for type in shapeless:
        type.shape.SetInParent()
    package().checker.check_model(message)
    for type in shapeless:
        type.ClearField("shape")


def read_graph(message: Any) -> OnnxGraph:
    """The graph of a checked message; raises ModelError for what cannot be read."""
    try:
        return _graph(message)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"is broken: {type(error).__name__}: {error}") from error


def _external_tensors(graph: Any, depth: int) -> Iterator[Any]:
    if depth > _MAX_DEPTH:
        raise ModelError(f"nests subgraphs deeper than {_MAX_DEPTH}")
    yield from (tensor for tensor in graph.initializer if tensor.data_location == _EXTERNAL)
    for node in graph.node:
        for attribute in node.attribute:
            tensors = [attribute.t, *attribute.tensors] if attribute.type in (4, 9) else []
            yield from (tensor for tensor in tensors if tensor.data_location == _EXTERNAL)
            if attribute.type in _SUBGRAPHS:
                for inner in [attribute.g, *attribute.graphs]:
                    yield from _external_tensors(inner, depth + 1)


def _place_of(tensor: Any) -> Path | None:
    """Returns the path of a tensor's data in the file's folder; None if it leads elsewhere."""
    location = next((each.value for each in tensor.external_data if each.key == "location"), "")
    place = Path(location)
    is_beside = bool(location) and not place.is_absolute() and ".." not in place.parts
    return place if is_beside else None


def _check_there(tensor: Any, folder: Path) -> None:
    """Raise ModelError for data that should be beside the file, and are not."""
    place = _place_of(tensor)
    # What leads elsewhere is refused as such, whether it is there or not.
    if place is not None and not os.path.lexists(folder / place):
        raise ModelError(
            f"has weights in another file, {str(place)!r}, which is missing: it belongs into the "
            "same folder"
        )


def _check_sizes(tensors: list[Any]) -> None:
    onnx = package()
    total = 0
    for tensor in tensors:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        total += dtype.itemsize * math.prod(max(n, 0) for n in tensor.dims)
        if total > MAX_FILE_BYTES:
            raise ModelError(f"has more than {MAX_FILE_BYTES} bytes of data in other files")


def _graph(message: Any) -> OnnxGraph:
    opset = max((o.version for o in message.opset_import if o.domain in _STANDARD), default=0)
    found = _graph_of(message.graph, opset)
    for port in (*found.inputs, *found.outputs):
        if not port.element:
            raise ModelError(
                f'"{port.name}" is no tensor: sequences, dictionaries and optional values cannot be'
                " inputs or outputs"
            )
    return found


def _graph_of(graph: Any, opset: int) -> OnnxGraph:
    to_array = package().numpy_helper.to_array
    constants = {tensor.name: to_array(tensor) for tensor in graph.initializer}
    return OnnxGraph(
        inputs=tuple(port_of(value) for value in graph.input if value.name not in constants),
        outputs=tuple(port_of(value) for value in graph.output),
        constants=constants,
        nodes=tuple(_node(index, node, opset) for index, node in enumerate(graph.node)),
        opset=opset,
    )


def port_of(value: Any) -> OnnxPort:
    """A port; what is no tensor, or in a subgraph has no type, has element type 0."""
    if not value.type.HasField("tensor_type"):
        return OnnxPort(value.name, 0, None)
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return OnnxPort(value.name, tensor.elem_type, None)
    shape = tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None
        for d in tensor.shape.dim
    )
    labels = tuple(d.dim_param for d in tensor.shape.dim)
    return OnnxPort(value.name, tensor.elem_type, shape, labels)


def _node(index: int, node: Any, opset: int) -> OnnxNode:
    to_value = package().helper.get_attribute_value
    to_array = package().numpy_helper.to_array
    attributes: dict[str, Any] = {}
    graphs: dict[str, OnnxGraph] = {}
    for attribute in node.attribute:
        if attribute.type in _SUBGRAPHS:
            if attribute.type == _SUBGRAPHS[0]:
                graphs[attribute.name] = _graph_of(attribute.g, opset)
            continue
        value = to_value(attribute)
        if attribute.type == 4:
            value = to_array(value)
        attributes[attribute.name] = value.decode() if isinstance(value, bytes) else value
    domain = "" if node.domain in _STANDARD else f"{node.domain}."
    return OnnxNode(
        index=index,
        type=f"{domain}{node.op_type}",
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes=attributes,
        graphs=graphs,
    )
