"""Operators that take or put numbers by their places, and masks of places."""

from __future__ import annotations

import math

import numpy as np

from nnasync._core.importers.onnx.forms import Convert, axis_of, check_count, moved
from nnasync._core.importers.onnx.maths import Maths
from nnasync._core.importers.onnx.moving import gathered
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import MOST_AXES, OnnxScope
from nnasync._core.model import Value
from nnasync._core.model.broadcasting import broadcast
from nnasync._core.model.graph import int32_array
from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType

_T = OperationType


def _gather(scope: OnnxScope, step: Step) -> None:
    node = step.node
    name, indices = node.inputs[:2]
    shape, chosen = scope.shape(name), scope.shape(indices)
    axis = axis_of(node.attribute("axis", 0), len(shape))
    result = (*shape[:axis], *chosen, *shape[axis + 1 :])
    known = scope.array(indices)
    is_simple = max(len(shape), len(result), len(chosen)) <= MOST_AXES
    if known is not None and known.ndim and is_simple and scope.quantized(name) is not None:
        places = np.where(known < 0, known + shape[axis], known)
        moved(scope, step, _T.GATHER, [name], [axis, int32_array(places)])
        return
    if not is_simple:
        x = scope.reshaped(
            name, (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
        )
        value = gathered(scope, x, 1, _places(scope, indices, shape[axis], flat=True))
    else:
        value = gathered(scope, scope.value(name), axis, _places(scope, indices, shape[axis]))
    scope.define(step.output, value, result)


def _places(scope: OnnxScope, name: str, size: int, *, flat: bool = False) -> Value:
    """Places from 0 on, of which those in a file may count from the end."""
    known = scope.array(name)
    if known is not None:
        if ((known < -size) | (known >= size)).any():
            raise ModelError(f"takes places beyond the {size} that there are")
        numbers = np.where(known < 0, known + size, known)
        return scope.builder.constant(int32_array(numbers.reshape(-1) if flat else numbers))
    maths = Maths(scope)
    count = math.prod(scope.shape(name))
    places = scope.reshaped(name, (count,)) if flat else scope.value(name)
    if places.type != OperandType.TENSOR_INT32:
        raise ModelError("takes places that are not integers")
    from_end = maths.pair(_T.LESS, places, 0)
    return maths.select(from_end, maths.add(places, size), places)


def _gather_elements(scope: OnnxScope, step: Step) -> None:
    """Converts GatherElements: computes each number's place in the whole tensor."""
    node = step.node
    shape, chosen = scope.shape(node.inputs[0]), scope.shape(node.inputs[1])
    axis = axis_of(node.attribute("axis", 0), len(shape))
    check_count(math.prod(chosen))
    if len(chosen) != len(shape) or len(shape) > MOST_AXES:
        raise ModelError(f"takes numbers of {list(shape)} by places {list(chosen)}")
    strides = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
    others = sum(
        place * stride
        for n, (place, stride) in enumerate(zip(np.indices(chosen), strides, strict=True))
        if n != axis
    )
    maths = Maths(scope)
    places = _places(scope, node.inputs[1], shape[axis])
    whole = maths.add(
        maths.mul(places, strides[axis]),
        scope.builder.constant(int32_array(others + np.zeros(chosen))),
    )
    flat = scope.reshaped(node.inputs[0], (math.prod(shape),))
    scope.define(step.output, gathered(scope, flat, 0, whole), chosen)


def _gather_parts(scope: OnnxScope, step: Step) -> None:
    """Parts by their places along the first axes, which are constant."""
    node = step.node
    shape, batch = scope.shape(node.inputs[0]), int(node.attribute("batch_dims", 0))
    indices = scope.constant(node, 1, "places")
    depth = indices.shape[-1]
    first = shape[batch : batch + depth]
    places = np.zeros(indices.shape[:-1], np.int64)
    for size, column in zip(first, np.moveaxis(indices, -1, 0), strict=True):
        places = places * size + np.where(column < 0, column + size, column)
    batches = math.prod(shape[:batch])
    if batch:
        offsets = np.arange(batches).reshape(*shape[:batch], *[1] * (places.ndim - batch))
        places = places + offsets * math.prod(first)
    rest = shape[batch + depth :]
    x = scope.reshaped(node.inputs[0], (batches * math.prod(first), math.prod(rest)))
    value = gathered(scope, x, 0, places.reshape(-1))
    scope.define(step.output, value, (*indices.shape[:-1], *rest))


def _scatter_elements(scope: OnnxScope, step: Step) -> None:
    node = step.node
    shape = scope.shape(node.inputs[0])
    axis = axis_of(node.attribute("axis", 0), len(shape))
    indices = scope.constant(node, 1, "places")
    chosen = np.where(indices < 0, indices + shape[axis], indices)
    others = np.indices(indices.shape)
    places = [chosen if n == axis else own for n, own in enumerate(others)]
    _put(scope, step, np.ravel_multi_index(places, shape).reshape(-1))


def _scatter_parts(scope: OnnxScope, step: Step) -> None:
    shape, indices = scope.shape(step.node.inputs[0]), scope.constant(step.node, 1, "places")
    depth = indices.shape[-1]
    columns = [
        np.where(column < 0, column + size, column).reshape(-1, 1)
        for size, column in zip(shape, np.moveaxis(indices, -1, 0), strict=False)
    ]
    length = math.prod(shape[depth:])
    firsts = np.ravel_multi_index(columns, shape[:depth]) * length
    _put(scope, step, (firsts + np.arange(length)).reshape(-1))


def _put(scope: OnnxScope, step: Step, places: Array) -> None:
    """The tensor with numbers put in at constant places: an old or a new one is selected."""
    node, maths = step.node, Maths(scope)
    shape = scope.shape(node.inputs[0])
    if node.attribute("reduction", "none") != "none" or len(np.unique(places)) != places.size:
        raise ModelError("puts several numbers into one place")
    count = math.prod(shape)
    check_count(count)
    sources = np.full(count, 0)
    sources[places] = np.arange(places.size)
    mask = np.zeros(count, np.bool_)
    mask[places] = True
    old = scope.reshaped(node.inputs[0], (count,))
    new = gathered(scope, scope.reshaped(node.inputs[2], (places.size,)), 0, sources)
    scope.define(step.output, maths.apply(_T.SELECT, mask, new, old), shape)


def _one_hot(scope: OnnxScope, step: Step) -> None:
    """One of two numbers for each class: whether a place is that class."""
    node, maths = step.node, Maths(scope)
    (depth,) = (int(n) for n in scope.constant(node, 1, "depth").reshape(-1))
    shape = scope.shape(node.inputs[0])
    axis = axis_of(node.attribute("axis", -1), len(shape) + 1)
    check_count(depth)
    if depth < 1 or len(shape) >= MOST_AXES:
        raise ModelError(f"has {depth} classes of {list(shape)}")
    places = maths.cast(scope.input(node, 0), OperandType.TENSOR_INT32)
    places = maths.select(maths.pair(_T.LESS, places, 0), maths.add(places, depth), places)
    result = (*shape[:axis], depth, *shape[axis:])
    if shape:
        places = maths.apply(_T.EXPAND_DIMS, places, axis)
    classes = np.arange(depth).reshape([-1, *[1] * (len(shape) - axis)])
    chosen = maths.apply(_T.EQUAL, places, int32_array(classes))
    off, on = _two(scope, node.inputs[2])
    scope.define(step.output, maths.select(chosen, on, off), result)


def _two(scope: OnnxScope, name: str) -> tuple[Value, Value]:
    """The two numbers of a tensor."""
    known = scope.array(name)
    if known is None:
        raise ModelError("its two values must be constant")
    off, on = (scope.builder.constant(known.reshape(-1)[n : n + 1]) for n in (0, 1))
    return off, on


def _triangle(scope: OnnxScope, step: Step) -> None:
    """The numbers above or below a diagonal, and 0 elsewhere."""
    node, maths = step.node, Maths(scope)
    shape = scope.shape(node.inputs[0])
    offset = scope.integers(node, 1, "diagonal")[0] if scope.has(node, 1) else 0
    check_count(math.prod(shape[-2:]))
    rows, columns = np.indices(shape[-2:])
    kept = columns - rows >= offset if node.attribute("upper", 1) else columns - rows <= offset
    x = scope.input(node, 0)
    mask = broadcast(scope, scope.builder.constant(kept), x.shape)
    zeros = broadcast(scope, maths.number(x, 0), x.shape)
    scope.define(step.output, maths.apply(_T.SELECT, mask, x, zeros))


CONVERTERS: dict[str, Convert] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_parts,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_parts,
    "OneHot": _one_hot,
    "Trilu": _triangle,
}
"""How each operator becomes operations."""
