"""Shapes that a caller gives to inputs and outputs, where the file leaves dimensions open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nnasync._core.importers.onnx.onnx_file import OnnxGraph, OnnxPort
from nnasync.errors import InvalidArgument

Shapes = Mapping[str, Sequence[int | None]]
"""Shapes of inputs and outputs by name; None is a dimension that stays open."""


def with_shapes(graph: OnnxGraph, shapes: Shapes) -> OnnxGraph:
    """The graph with shapes of ports by name; dimensions of a name that becomes known follow.

    Those of outputs are needed only where neither names nor inference tell them. Raises
    InvalidArgument for a port that the graph does not have, and for a shape that differs where the
    graph leaves nothing open.
    """
    inputs = {port.name: port for port in graph.inputs}
    known = {**{port.name: port for port in graph.outputs}, **inputs}
    sizes: dict[str, int] = {}
    for name, wanted in shapes.items():
        if name not in known:
            raise InvalidArgument(f"has no input {name!r}, only {', '.join(sorted(inputs))}")
        _check(known[name], wanted, "input" if name in inputs else "output")
        for label, size in zip(known[name].labels, wanted, strict=False):
            if label and size and sizes.setdefault(label, size) != size:
                raise InvalidArgument(
                    f"shapes= gives {label!r} the sizes {sizes[label]} and {size}"
                )
    return msgspec.structs.replace(
        graph,
        inputs=tuple(_sized(port, sizes, shapes.get(port.name)) for port in graph.inputs),
        outputs=tuple(_sized(port, sizes, shapes.get(port.name)) for port in graph.outputs),
    )


def _check(port: OnnxPort, wanted: Sequence[int | None], what: str) -> None:
    stated = port.shape
    if stated is None:
        return
    if len(wanted) != len(stated) or any(
        (size or 0) < 0 or (fixed and size != fixed)
        for size, fixed in zip(wanted, stated, strict=True)
    ):
        raise InvalidArgument(f"{what} {port.name!r} has shape {list(stated)}, not {list(wanted)}")


def _sized(
    port: OnnxPort, sizes: Mapping[str, int], wanted: Sequence[int | None] | None
) -> OnnxPort:
    """A port with the sizes of its dimensions where they are known."""
    shape = port.shape if wanted is None else tuple(size or None for size in wanted)
    if shape is None:
        return port
    labels = port.labels or ("",) * len(shape)
    found = tuple(n or sizes.get(label) for n, label in zip(shape, labels, strict=True))
    return msgspec.structs.replace(port, shape=found)
