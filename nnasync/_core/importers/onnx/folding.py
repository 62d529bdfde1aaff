"""Operators that are computed while a file is read, because all that they need is known.

Exporters leave small computations of shapes in a graph. Only operators whose result is no larger
than what goes in are here, so that no file can ask for more memory than it has bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from nnasync._core.formats.onnx import ELEMENTS
from nnasync._core.importers.onnx.onnx_file import OnnxGraph, OnnxNode
from nnasync.errors import ModelError
from nnasync.hal import Array

__all__ = ["FOLDED", "fold", "with_constants"]

_MAX_ELEMENTS = 2**24
_DTYPES = {element.number: element.dtype for element in ELEMENTS}

Fold = Callable[[OnnxNode, list[Array]], Array]


def fold(node: OnnxNode, inputs: list[Array]) -> Array:
    """The result of an operator of `FOLDED`; raises ModelError where it cannot be computed."""
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(FOLDED[node.type](node, inputs))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"cannot be computed: {error}") from error
    return result


def with_constants(graph: OnnxGraph) -> OnnxGraph:
    """The graph with its Constant operators among its constants."""
    made = {node.outputs[0]: fold(node, []) for node in graph.nodes if node.type == "Constant"}
    rest = tuple(node for node in graph.nodes if node.type != "Constant")
    return msgspec.structs.replace(graph, constants={**graph.constants, **made}, nodes=rest)


def _constant(node: OnnxNode, inputs: list[Array]) -> Array:
    for name, value in node.attributes.items():
        if name == "value":
            return np.asarray(value)
        if name in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
        if name in ("value_float", "value_floats"):
            return np.asarray(value, np.float32)
    raise ModelError("its value is of no known kind")


def _cast(node: OnnxNode, inputs: list[Array]) -> Array:
    dtype = _DTYPES.get(node.attribute("to", 0))
    if dtype is None:
        raise ModelError(f"casts to element type {node.attribute('to', 0)}")
    return inputs[0].astype(dtype)


def _gather(node: OnnxNode, inputs: list[Array]) -> Array:
    if inputs[1].size > inputs[0].size + 64:
        raise ModelError("gathers more than there is")
    return np.take(inputs[0], inputs[1], axis=node.attribute("axis", 0))


def _axes(node: OnnxNode, inputs: list[Array]) -> tuple[int, ...]:
    given = inputs[1].reshape(-1) if len(inputs) > 1 else node.attribute("axes", ())
    return tuple(int(axis) for axis in given)


def _squeeze(node: OnnxNode, inputs: list[Array]) -> Array:
    return np.squeeze(inputs[0], _axes(node, inputs) or None)


def _unsqueeze(node: OnnxNode, inputs: list[Array]) -> Array:
    return np.expand_dims(inputs[0], _axes(node, inputs))


def _slice(node: OnnxNode, inputs: list[Array]) -> Array:
    data, starts, ends, *rest = inputs
    axes = rest[0].reshape(-1) if rest else np.arange(starts.size)
    steps = rest[1].reshape(-1) if len(rest) > 1 else np.ones(starts.size, np.int64)
    chosen = [slice(None)] * data.ndim
    for axis, start, end, step in zip(
        axes, starts.reshape(-1), ends.reshape(-1), steps, strict=True
    ):
        stop = None if step < 0 and end <= -data.shape[axis] - 1 else int(end)
        chosen[int(axis)] = slice(int(start), stop, int(step))
    return data[tuple(chosen)]


def _reshape(node: OnnxNode, inputs: list[Array]) -> Array:
    shape = [int(n) for n in inputs[1].reshape(-1)]
    if not node.attribute("allowzero", 0):
        shape = [inputs[0].shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return inputs[0].reshape(shape)


def _binary(function: Callable[[Array, Array], Array]) -> Fold:
    def compute(node: OnnxNode, inputs: list[Array]) -> Array:
        shape = np.broadcast_shapes(inputs[0].shape, inputs[1].shape)
        if np.prod(shape, dtype=np.float64) > _MAX_ELEMENTS:
            raise ModelError("is too large to be computed now")
        return function(inputs[0], inputs[1]).astype(inputs[0].dtype)

    return compute


def _divide(a: Array, b: Array) -> Array:
    return np.trunc(a / b) if a.dtype.kind in "iu" else a / b


FOLDED: dict[str, Fold] = {
    "Constant": _constant,
    "Cast": _cast,
    "Gather": _gather,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Reshape": _reshape,
    "Identity": lambda node, inputs: inputs[0],
    "Concat": lambda node, inputs: np.concatenate(inputs, node.attribute("axis", 0)),
    "Transpose": lambda node, inputs: inputs[0].transpose(node.attribute("perm", None)),
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": _binary(_divide),
}
"""How each operator is computed from constants."""
