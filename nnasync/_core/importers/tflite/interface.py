"""The inputs and outputs of a model: which subgraph is loaded, with which names and shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnasync._core.importers.tflite.tflite_file import File, Graph, SignatureInfo, TensorInfo
from nnasync.errors import InvalidArgument
from nnasync.hal import Shape, Struct

Shapes = Mapping[str, Sequence[int | None]]
"""Shapes of inputs by name; None is a dimension that stays open."""


class TflitePort(Struct, frozen=True):
    """An input or output: its tensor, its name, and its shape, of which 0 is open."""

    tensor: int
    name: str
    shape: Shape


class Interface(Struct, frozen=True):
    """The subgraph that is loaded, and its inputs and outputs in the order of the file."""

    graph: int
    inputs: tuple[TflitePort, ...]
    outputs: tuple[TflitePort, ...]


def interface_of(
    file: File, signature: str | None = None, shapes: Shapes | None = None
) -> Interface:
    """The interface of the main subgraph, or of a signature.

    Raises InvalidArgument for a signature or an input that the file does not have, and for a shape
    that differs where the file leaves nothing open.
    """
    chosen = None if signature is None else _signature(file, signature)
    number = 0 if chosen is None else chosen.graph
    graph = file.graphs[number]
    inputs = _ports(graph, graph.inputs, "input", {} if chosen is None else dict(chosen.inputs))
    outputs = _ports(graph, graph.outputs, "output", {} if chosen is None else dict(chosen.outputs))
    return Interface(number, _shaped(graph, inputs, shapes or {}), outputs)


def _signature(file: File, name: str) -> SignatureInfo:
    for signature in file.signatures:
        if signature.name == name:
            return signature
    known = ", ".join(repr(each.name) for each in file.signatures) or "none"
    raise InvalidArgument(f"has no signature {name!r}; its signatures: {known}")


def _ports(
    graph: Graph, tensors: Sequence[int], kind: str, names: Mapping[str, int]
) -> tuple[TflitePort, ...]:
    by_tensor = {tensor: name for name, tensor in names.items()}
    return tuple(
        TflitePort(
            tensor,
            by_tensor.get(tensor) or graph.tensors[tensor].name or f"{kind}{position}",
            _input_shape(graph.tensors[tensor])
            if kind == "input"
            else graph.tensors[tensor].open_shape,
        )
        for position, tensor in enumerate(tensors)
    )


def _input_shape(info: TensorInfo) -> Shape:
    """The stated shape, but 0 for open dimensions of which it says nothing.

    A 1 for the number of examples is what the file means; for another dimension it holds a place.
    """
    sizes = enumerate(zip(info.shape, info.open_shape, strict=True))
    return tuple(0 if at and stated == 1 and not fixed else stated for at, (stated, fixed) in sizes)


def _shaped(graph: Graph, ports: Sequence[TflitePort], shapes: Shapes) -> tuple[TflitePort, ...]:
    known = {port.name for port in ports}
    for name in shapes:
        if name not in known:
            raise InvalidArgument(f"has no input {name!r}, only {', '.join(sorted(known))}")
    return tuple(
        TflitePort(port.tensor, port.name, _shape(graph, port, shapes[port.name]))
        if port.name in shapes
        else port
        for port in ports
    )


def _shape(graph: Graph, port: TflitePort, wanted: Sequence[int | None]) -> Shape:
    """A shape that is asked for; raises InvalidArgument where the file fixes another one."""
    info = graph.tensors[port.tensor]
    shape = tuple(n or 0 for n in wanted)
    stated = info.open_shape
    if len(shape) != len(stated) or any(
        size < 0 or (fixed and size != fixed) for size, fixed in zip(shape, stated, strict=True)
    ):
        open_shape = [n or None for n in stated]
        raise InvalidArgument(f"input {port.name!r} has shape {open_shape}, not {list(wanted)}")
    return shape
