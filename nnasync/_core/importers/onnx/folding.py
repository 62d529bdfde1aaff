"""Operators that are computed while a file is read, because all that they need is known.

Exporters leave small computations of shapes, masks and tables of angles in a graph. A hostile file
cannot ask for more memory than that: results are computed only if they are no larger than what goes
in, or than what is left of `Budget`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from nnasync._core.formats.onnx import ELEMENTS
from nnasync._core.importers.onnx.onnx_file import OnnxGraph, OnnxNode
from nnasync.errors import ModelError
from nnasync.hal import Array

_DTYPES = {element.number: element.dtype for element in ELEMENTS}
_LARGEST = 2**27
"""How many bytes all results together may have beyond what goes into them."""


class Budget:
    """How many bytes results may still have that are larger than what goes in."""

    def __init__(self) -> None:
        self.left = _LARGEST

    def take(self, elements: float, inputs: Sequence[Array]) -> None:
        """Account for a result of so many elements, of 8 bytes at most; raises ModelError."""
        growth = max(8 * elements - sum(array.nbytes for array in inputs), 0)
        if growth > self.left:
            raise ModelError(f"has {elements:.0f} elements, too many to be computed now")
        self.left -= int(growth)


Fold = Callable[[OnnxNode, list[Array], Budget], Array | list[Array]]


def fold(node: OnnxNode, inputs: list[Array], budget: Budget) -> list[Array]:
    """The results of an operator of `FOLDED`; raises ModelError where it cannot be computed."""
    try:
        with np.errstate(all="ignore"):
            result = FOLDED[node.type](node, inputs, budget)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"cannot be computed: {error}") from error
    return result if isinstance(result, list) else [np.asarray(result)]


def with_constants(graph: OnnxGraph) -> OnnxGraph:
    """The graph with its Constant operators among its constants."""
    budget = Budget()
    made = {
        node.outputs[0]: fold(node, [], budget)[0]
        for node in graph.nodes
        if node.type == "Constant"
    }
    rest = tuple(node for node in graph.nodes if node.type != "Constant")
    return msgspec.structs.replace(graph, constants={**graph.constants, **made}, nodes=rest)


# -- numbers one by one


def _unary(function: Callable[[Array], Array]) -> Fold:
    return lambda node, inputs, budget: np.asarray(function(inputs[0]))


def _floats(function: Callable[[Array], Array]) -> Fold:
    """A function of floats, whose result has their type."""
    return lambda node, inputs, budget: np.asarray(function(inputs[0])).astype(inputs[0].dtype)


def _binary(function: Callable[[Array, Array], Array], *, truth: bool = False) -> Fold:
    def compute(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
        total = inputs[0]
        for other in inputs[1:]:
            shape = np.broadcast_shapes(total.shape, other.shape)
            budget.take(math.prod(shape), inputs)
            found = np.asarray(function(total, other))
            total = found if truth else found.astype(total.dtype)
        return total

    return compute


def _divide(a: Array, b: Array) -> Array:
    return np.trunc(a / b) if a.dtype.kind in "iu" else a / b


def _modulo(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    function = np.fmod if node.attribute("fmod", 0) else np.mod
    return np.asarray(_binary(function)(node, inputs, budget))


def _where(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    budget.take(math.prod(np.broadcast_shapes(*(each.shape for each in inputs))), inputs)
    return np.where(*inputs)


def _cast(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    dtype = _DTYPES.get(node.attribute("to", 0))
    if dtype is None:
        raise ModelError(f"casts to element type {node.attribute('to', 0)}")
    return inputs[0].astype(dtype)


def _cast_like(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    return inputs[0].astype(inputs[1].dtype)


# -- new tensors


def _constant(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    for name, value in node.attributes.items():
        if name == "value":
            return np.asarray(value)
        if name in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
        if name in ("value_float", "value_floats"):
            return np.asarray(value, np.float32)
    raise ModelError("its value is of no known kind")


def _filled(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    shape = [int(n) for n in inputs[0].reshape(-1)]
    budget.take(math.prod(shape), inputs)
    value = np.asarray(node.attribute("value", np.zeros(1, np.float32)))
    return np.full(shape, value.reshape(-1)[0])


def _range(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    start, limit, delta = (each.reshape(-1)[0] for each in inputs)
    budget.take(max(math.ceil((float(limit) - float(start)) / float(delta)), 0), inputs)
    return np.arange(start, limit, delta, dtype=inputs[0].dtype)


def _expand(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    shape = np.broadcast_shapes(inputs[0].shape, tuple(int(n) for n in inputs[1].reshape(-1)))
    budget.take(math.prod(shape), inputs)
    return np.broadcast_to(inputs[0], shape).copy()


def _tile(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    repeats = [int(n) for n in inputs[1].reshape(-1)]
    budget.take(inputs[0].size * math.prod(repeats), inputs)
    return np.tile(inputs[0], repeats)


def _identity_matrix(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    rows, columns = inputs[0].shape
    dtype = _DTYPES.get(node.attribute("dtype", 0), inputs[0].dtype)
    return np.eye(rows, columns, node.attribute("k", 0), dtype)


def _triangle(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    offset = int(inputs[1].reshape(-1)[0]) if len(inputs) > 1 else 0
    return (np.triu if node.attribute("upper", 1) else np.tril)(inputs[0], offset)


def _product(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    a, b, *bias = inputs
    budget.take(a.size / max(a.shape[-1], 1) * b.size / max(b.shape[-2:-1] or (1,)), inputs)
    found = np.asarray(np.matmul(a, b))
    return found + bias[0] if bias else found


# -- numbers moved


def _axes(node: OnnxNode, inputs: list[Array]) -> tuple[int, ...]:
    given = inputs[1].reshape(-1) if len(inputs) > 1 else node.attribute("axes", ())
    return tuple(int(axis) for axis in given)


def _gather(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    data, indices = inputs
    axis = node.attribute("axis", 0)
    budget.take(data.size / max(data.shape[axis], 1) * indices.size, inputs)
    return np.take(data, indices, axis=axis)


def _squeeze(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    return np.squeeze(inputs[0], _axes(node, inputs) or None)


def _unsqueeze(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    return np.expand_dims(inputs[0], _axes(node, inputs))


def _slice(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
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


def _reshape(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    shape = [int(n) for n in inputs[1].reshape(-1)]
    if not node.attribute("allowzero", 0):
        shape = [inputs[0].shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return inputs[0].reshape(shape)


def _flatten(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    shape = inputs[0].shape
    return inputs[0].reshape(math.prod(shape[: node.attribute("axis", 1)]), -1)


def _split(node: OnnxNode, inputs: list[Array], budget: Budget) -> list[Array]:
    axis, count = node.attribute("axis", 0), len(node.outputs)
    size = inputs[0].shape[axis]
    sizes = _axes(node, inputs) if len(inputs) > 1 else node.attribute("split", None)
    if sizes is None:
        sizes = [-(-size // count)] * (count - 1)
    return np.split(inputs[0], np.cumsum(sizes)[: count - 1], axis)


def _concatenation(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    return np.concatenate(inputs, node.attribute("axis", 0))


# -- numbers reduced


def _reduction(function: Callable[..., Array]) -> Fold:
    def compute(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
        axes, keeps = _axes(node, inputs), bool(node.attribute("keepdims", 1))
        if not axes and node.attribute("noop_with_empty_axes", 0):
            return inputs[0]
        found = function(inputs[0], axis=axes or None, keepdims=keeps)
        return np.asarray(found).astype(inputs[0].dtype)

    return compute


def _sums(node: OnnxNode, inputs: list[Array], budget: Budget) -> Array:
    if node.attribute("exclusive", 0) or node.attribute("reverse", 0):
        raise ModelError("sums up in another way than forward")
    return (
        np.cumsum(inputs[0], int(inputs[1].reshape(-1)[0]))
        .astype(inputs[0].dtype)
        .reshape(inputs[0].shape)
    )


FOLDED: dict[str, Fold] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Range": _range,
    "EyeLike": _identity_matrix,
    "Trilu": _triangle,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Gather": _gather,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Split": _split,
    "Expand": _expand,
    "Tile": _tile,
    "Identity": lambda node, inputs, budget: inputs[0],
    "Concat": _concatenation,
    "Transpose": lambda node, inputs, budget: inputs[0].transpose(node.attribute("perm", None)),
    "MatMul": _product,
    "ReduceSum": _reduction(np.sum),
    "ReduceProd": _reduction(np.prod),
    "ReduceMax": _reduction(np.max),
    "ReduceMin": _reduction(np.min),
    "CumSum": _sums,
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": _binary(_divide),
    "Mod": _modulo,
    "Pow": _binary(np.power),
    "Max": _binary(np.maximum),
    "Min": _binary(np.minimum),
    "Equal": _binary(np.equal, truth=True),
    "Greater": _binary(np.greater, truth=True),
    "GreaterOrEqual": _binary(np.greater_equal, truth=True),
    "Less": _binary(np.less, truth=True),
    "LessOrEqual": _binary(np.less_equal, truth=True),
    "And": _binary(np.logical_and, truth=True),
    "Or": _binary(np.logical_or, truth=True),
    "Xor": _binary(np.logical_xor, truth=True),
    "Not": _unary(np.logical_not),
    "Where": _where,
    "Abs": _unary(np.abs),
    "Neg": _unary(np.negative),
    "Floor": _floats(np.floor),
    "Ceil": _floats(np.ceil),
    "Round": _floats(np.round),
    "Sqrt": _floats(np.sqrt),
    "Reciprocal": _floats(np.reciprocal),
    "Exp": _floats(np.exp),
    "Log": _floats(np.log),
    "Sin": _floats(np.sin),
    "Cos": _floats(np.cos),
}
"""How each operator is computed from constants."""
