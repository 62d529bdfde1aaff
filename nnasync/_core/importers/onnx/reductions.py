"""Operators that reduce along axes, order numbers along one, or add them up."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from nnasync._core.importers.onnx.axes import merged
from nnasync._core.importers.onnx.forms import (
    Convert,
    axes_of,
    axis_of,
    check_count,
    is_alike,
    is_float,
)
from nnasync._core.importers.onnx.maths import Maths
from nnasync._core.importers.onnx.onnx_file import OnnxNode
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import MOST_AXES, OnnxScope
from nnasync._core.model import Value
from nnasync._core.model.graph import int32_array
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType, Shape

_T = OperationType
_MOST_SUMMED = 1024
"""Longest axis along which sums are a product with a triangular matrix."""
_MOST_ORDERED = 1 << 20
"""Longest axis that is turned round."""
Reduction = Callable[[Maths, Value, list[int]], Value]


def _chosen(scope: OnnxScope, node: OnnxNode) -> list[int]:
    """The axes along which an operator reduces."""
    rank = len(scope.shape(node.inputs[0]))
    axes = axes_of(scope, node)
    if not axes:
        return [] if node.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return [axis_of(axis, rank) for axis in axes]


def _left(shape: Shape, axes: list[int], node: OnnxNode) -> Shape:
    """The shape that is left."""
    keeps = bool(node.attribute("keepdims", 1))
    return tuple(
        1 if axis in axes else n for axis, n in enumerate(shape) if keeps or axis not in axes
    )


def _reduce(reduction: Reduction) -> Convert:
    def convert(scope: OnnxScope, step: Step) -> None:
        node = step.node
        shape, axes = scope.shape(node.inputs[0]), _chosen(scope, node)
        x, places = _merged(scope, node.inputs[0], axes)
        if not is_float(x):
            raise ModelError(f"reduces {OperandType(x.type).name}")
        scope.define(step.output, reduction(Maths(scope), x, places), _left(shape, axes, node))

    return convert


def _merged(scope: OnnxScope, name: str, axes: list[int]) -> tuple[Value, list[int]]:
    """An operand of few enough axes, and those of them along which it is reduced."""
    shape = scope.shape(name)
    if len(shape) <= MOST_AXES:
        return scope.value(name), axes
    groups = merged(shape, [axis in axes for axis in range(len(shape))])
    x = scope.reshaped(name, [math.prod(shape[axis] for axis in group) for group in groups])
    places = [
        place
        for place, group in enumerate(groups)
        if any(axis in axes and shape[axis] > 1 for axis in group)
    ]
    return x, places


def _plainly(type: OperationType) -> Reduction:
    def reduce(maths: Maths, x: Value, axes: list[int]) -> Value:
        return maths.reduced(type, x, axes) if axes else maths.mul(x, 1)

    return reduce


_SUM, _MOST = _plainly(_T.REDUCE_SUM), _plainly(_T.REDUCE_MAX)


def _mean(scope: OnnxScope, step: Step) -> None:
    """A mean, of integers too where its result is quantized as they are."""
    node = step.node
    target, view = scope.target(step), scope.quantized(node.inputs[0])
    if target is not None and is_alike(view, target):
        axes, keeps = int32_array(_chosen(scope, node)), int(node.attribute("keepdims", 1))
        scope.emit_quantized(target, _T.MEAN, view, axes, keeps)
        return
    _reduce(_plainly(_T.MEAN))(scope, step)


def _log_of_powers(maths: Maths, x: Value, axes: list[int]) -> Value:
    """log(sum(e**x)), by the largest number first, so that nothing overflows."""
    most = _MOST(maths, x, axes)
    total = _SUM(maths, maths.exp(maths.sub(x, most)), axes)
    return maths.add(maths.log(total), most)


def _extreme(type: OperationType) -> Convert:
    """The place of the largest or smallest number, the first or the last of equal ones."""

    def convert(scope: OnnxScope, step: Step) -> None:
        node = step.node
        shape = scope.shape(node.inputs[0])
        axis, maths = axis_of(node.attribute("axis", 0), len(shape)), Maths(scope)
        x, place = _along(scope, node.inputs[0], axis)
        if node.attribute("select_last_index", 0):
            found = maths.apply(type, _turned(maths, x, place), place)
            last = int32_array([shape[axis] - 1])
            found = maths.apply(_T.SUB, last, found, 0)
        else:
            found = maths.apply(type, x, place)
        if len(x.shape) == 1:
            scope.define(step.output, found, _left(shape, [axis], node))
            return
        kept = maths.apply(_T.EXPAND_DIMS, found, place) if node.attribute("keepdims", 1) else found
        scope.define(step.output, kept, _left(shape, [axis], node))

    return convert


def _along(scope: OnnxScope, name: str, axis: int) -> tuple[Value, int]:
    """An operand of few enough axes, and where one of the file's is in it."""
    shape = scope.shape(name)
    if len(shape) <= MOST_AXES:
        return scope.value(name), axis
    parts = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    return scope.reshaped(name, parts), 1


def _turned(maths: Maths, x: Value, axis: int) -> Value:
    """x with an axis in reverse order."""
    size = x.shape[axis]
    if size > _MOST_ORDERED:
        raise ModelError(f"turns an axis of {size} entries round")
    return maths.apply(_T.GATHER, x, axis, int32_array(np.arange(size)[::-1]))


def _largest(scope: OnnxScope, step: Step) -> None:
    """The k largest numbers, and where they are; the HAL takes the last of equal ones first."""
    node, maths = step.node, Maths(scope)
    shape = scope.shape(node.inputs[0])
    axis = axis_of(node.attribute("axis", -1), len(shape))
    (count,) = scope.integers(node, 1, "count")
    if not 0 < count <= shape[axis]:
        raise ModelError(f"takes {count} of {shape[axis]} numbers")
    x = scope.input(node, 0)
    order = list(range(len(shape)))
    order[axis], order[-1] = order[-1], order[axis]
    x = x if axis == len(shape) - 1 else maths.apply(_T.TRANSPOSE, x, int32_array(order))
    x = x if node.attribute("largest", 1) else maths.neg(x)
    turned = _turned(maths, x, len(shape) - 1)
    outputs = scope.builder.operation_outputs(_T.TOPK_V2, turned, count)
    values = outputs[0] if node.attribute("largest", 1) else maths.neg(outputs[0])
    places = maths.apply(_T.SUB, int32_array([shape[axis] - 1]), outputs[1], 0)
    for name, value in zip(node.outputs, (values, places), strict=False):
        if name and axis != len(shape) - 1:
            value = _back(maths, value, order)
        if name:
            scope.define(name, value)


def _back(maths: Maths, value: Value, order: list[int]) -> Value:
    if is_float(value):
        return maths.apply(_T.TRANSPOSE, value, int32_array(order))
    raise ModelError("gives places along another axis than the last")


def _sums(scope: OnnxScope, step: Step) -> None:
    """Sums of all numbers so far: a product with a triangular matrix."""
    node, maths = step.node, Maths(scope)
    shape = scope.shape(node.inputs[0])
    axis = axis_of(scope.integers(node, 1, "axis")[0], len(shape))
    size = shape[axis]
    x = scope.value_of_any_rank(node.inputs[0])
    if size > _MOST_SUMMED or not is_float(x):
        raise ModelError(f"adds {size} numbers up, or integers")
    weights = np.tri(size, k=-1 if node.attribute("exclusive", 0) else 0)
    weights = weights.T if node.attribute("reverse", 0) else weights
    before, behind = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    y = scope.reshaped(node.inputs[0], (before, size, behind))
    order = int32_array([0, 2, 1])
    y = y if behind == 1 else maths.apply(_T.TRANSPOSE, y, order)
    matrix = scope.builder.constant(weights, type=OperandType(x.type))
    bias = scope.builder.constant(np.zeros(size), type=OperandType(x.type))
    rows = scope.reshape(y, (before * behind, size))
    y = scope.reshape(
        maths.apply(_T.FULLY_CONNECTED, rows, matrix, bias, 0), (before, behind, size)
    )
    y = scope.reshape(y, (before, size)) if behind == 1 else maths.apply(_T.TRANSPOSE, y, order)
    scope.define(step.output, y, shape)


def _first_largest(scope: OnnxScope, step: Step) -> None:
    """1 where the largest number is, the first of equal ones, and 0 elsewhere."""
    node, maths = step.node, Maths(scope)
    x = scope.input(node, 0)
    shape = x.shape
    axis = axis_of(node.attribute("axis", -1), len(shape))
    if scope.graph.opset < 13 and axis != len(shape) - 1:
        raise ModelError("looks over several axes")
    found = maths.apply(_T.EXPAND_DIMS, maths.apply(_T.ARGMAX, x, axis), axis)
    if len(shape) == 1:
        found = maths.apply(_T.ARGMAX, x, axis)
    check_count(shape[axis])
    places = np.arange(shape[axis]).reshape([-1, *[1] * (len(shape) - axis - 1)])
    chosen = maths.apply(_T.EQUAL, found, int32_array(places))
    scope.define(step.output, maths.choose(chosen, 1, 0, x), shape)


CONVERTERS: dict[str, Convert] = {
    "ReduceMean": _mean,
    "ReduceSum": _reduce(_SUM),
    "ReduceMax": _reduce(_MOST),
    "ReduceMin": _reduce(_plainly(_T.REDUCE_MIN)),
    "ReduceProd": _reduce(_plainly(_T.REDUCE_PROD)),
    "ReduceL1": _reduce(lambda maths, x, axes: _SUM(maths, maths.abs(x), axes)),
    "ReduceL2": _reduce(lambda maths, x, axes: maths.sqrt(_SUM(maths, maths.square(x), axes))),
    "ReduceSumSquare": _reduce(lambda maths, x, axes: _SUM(maths, maths.square(x), axes)),
    "ReduceLogSum": _reduce(lambda maths, x, axes: maths.log(_SUM(maths, x, axes))),
    "ReduceLogSumExp": _reduce(_log_of_powers),
    "ArgMax": _extreme(_T.ARGMAX),
    "ArgMin": _extreme(_T.ARGMIN),
    "TopK": _largest,
    "CumSum": _sums,
    "Hardmax": _first_largest,
}
"""How each operator becomes operations."""
