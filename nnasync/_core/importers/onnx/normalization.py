"""Normalizations: by constant numbers, along axes, in groups, by neighbors."""

from __future__ import annotations

import math

import numpy as np

from nnasync._core.importers.onnx.forms import Convert, axis_of, check_count, is_float, outputs_of
from nnasync._core.importers.onnx.maths import Maths
from nnasync._core.importers.onnx.onnx_file import OnnxNode
from nnasync._core.importers.onnx.preparation import Step, normalization
from nnasync._core.importers.onnx.scope import MOST_AXES, OnnxScope
from nnasync._core.model import Value
from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType, Shape

_T = OperationType
_EPSILON = 1e-5


def _floats(scope: OnnxScope, node: OnnxNode) -> Shape:
    """The shape of the input, which must be of floats."""
    if not is_float(scope.value_of_any_rank(node.inputs[0])):
        raise ModelError("normalizes integers")
    return scope.shape(node.inputs[0])


def _batch(scope: OnnxScope, step: Step) -> None:
    """A batch normalization that no convolution took."""
    node = step.node
    outputs_of(node, 1)
    if node.attribute("training_mode", 0):
        raise ModelError("is trained")
    shape = _floats(scope, node)
    form = shape if 1 < len(shape) <= MOST_AXES else _three(shape)
    columns = (form[1], *[1] * (len(form) - 2))
    x = scope.reshaped(node.inputs[0], form)
    factors, offsets = _factors(scope, node, x, columns)
    maths = Maths(scope)
    scope.define(step.output, maths.add(maths.mul(x, factors), offsets), shape)


def _three(shape: Shape) -> Shape:
    """[batch, channels, the rest]."""
    rest = math.prod(shape[2:])
    return (shape[0], shape[1] if len(shape) > 1 else 1, rest)


def _factors(scope: OnnxScope, node: OnnxNode, x: Value, columns: Shape) -> tuple[Value, Value]:
    found = normalization(scope.graph, node)
    if found is not None:
        factors, offsets = (_constant(scope, each.reshape(columns), x) for each in found)
        return factors, offsets
    maths = Maths(scope)
    gamma, beta, mean, variance = (scope.reshaped(name, columns) for name in node.inputs[1:5])
    scale = maths.sqrt(maths.add(variance, float(node.attribute("epsilon", _EPSILON))))
    factors = maths.div(gamma, scale)
    return factors, maths.sub(beta, maths.mul(mean, factors))


def _constant(scope: OnnxScope, array: Array, like: Value) -> Value:
    return scope.builder.constant(array, type=OperandType(like.type))


def _centered(maths: Maths, x: Value, axis: int, epsilon: float) -> tuple[Value, Value, Value]:
    """x with mean 0 and variance 1 along an axis; the mean, and one over the deviation."""
    mean = maths.reduced(_T.MEAN, x, [axis])
    rest = maths.sub(x, mean)
    variance = maths.reduced(_T.MEAN, maths.square(rest), [axis])
    inverse = maths.apply(_T.RSQRT, maths.add(variance, epsilon))
    return maths.mul(rest, inverse), mean, inverse


def _lines(scope: OnnxScope, node: OnnxNode) -> tuple[Value, Shape, int]:
    """The input as [lines, numbers of a line], its shape, and the first axis of a line."""
    shape = _floats(scope, node)
    axis = axis_of(node.attribute("axis", -1), len(shape))
    if len(shape) <= MOST_AXES and axis == len(shape) - 1:
        return scope.value(node.inputs[0]), shape, axis
    lines = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    return scope.reshaped(node.inputs[0], lines), shape, axis


def _scaled(scope: OnnxScope, step: Step, x: Value, shape: Shape, axis: int) -> None:
    """x times the scale and plus the bias, which stand for a line each."""
    node, maths = step.node, Maths(scope)
    count = math.prod(shape[axis:])
    for place, apply in ((1, maths.mul), (2, maths.add)):
        if scope.has(node, place):
            name = node.inputs[place]
            if math.prod(scope.shape(name)) == count:
                x = apply(x, scope.reshaped(name, (count,)))
            else:
                x = apply(scope.reshape(x, shape), scope.value(name))
    scope.define(step.output, x, shape)


def _layer(scope: OnnxScope, step: Step) -> None:
    node = step.node
    x, shape, axis = _lines(scope, node)
    epsilon = float(node.attribute("epsilon", _EPSILON))
    y, mean, inverse = _centered(Maths(scope), x, len(x.shape) - 1, epsilon)
    _scaled(scope, step, y, shape, axis)
    told = (*shape[:axis], *[1] * (len(shape) - axis))
    for name, value in zip(node.outputs[1:], (mean, inverse), strict=False):
        if name:
            scope.define(name, value, told)


def _root_mean_square(scope: OnnxScope, step: Step) -> None:
    x, shape, axis = _lines(scope, step.node)
    maths = Maths(scope)
    mean = maths.reduced(_T.MEAN, maths.square(x), [len(x.shape) - 1])
    mean = maths.add(mean, float(step.node.attribute("epsilon", _EPSILON)))
    _scaled(scope, step, maths.mul(x, maths.apply(_T.RSQRT, mean)), shape, axis)


def _grouped(scope: OnnxScope, step: Step) -> None:
    """Groups of channels, or each channel alone, over all places."""
    node = step.node
    shape = _floats(scope, node)
    if len(shape) < 3:
        raise ModelError(f"has an input of rank {len(shape)}")
    batches, channels, places = _three(shape)
    groups = (
        channels if node.type == "InstanceNormalization" else int(node.attribute("num_groups", 1))
    )
    x = scope.reshaped(node.inputs[0], (batches, groups, channels // groups * places))
    y, _, _ = _centered(Maths(scope), x, 2, float(node.attribute("epsilon", _EPSILON)))
    maths, y = Maths(scope), scope.reshape(y, (batches, channels, places))
    count = math.prod(scope.shape(node.inputs[1]))
    gamma, beta = (_by_channel(scope, name, channels // count) for name in node.inputs[1:3])
    scope.define(step.output, maths.add(maths.mul(y, gamma), beta), shape)


def _by_channel(scope: OnnxScope, name: str, times: int) -> Value:
    """Numbers per channel, which older files state per group, as a column."""
    known = scope.array(name)
    if times == 1:
        return scope.reshaped(name, (1, math.prod(scope.shape(name)), 1))
    if known is None:
        raise ModelError("its numbers per group must be constant")
    check_count(known.size * times)
    return scope.builder.constant(np.repeat(known, times).reshape(1, -1, 1))


def _by_length(scope: OnnxScope, step: Step) -> None:
    """Lines that are divided by the sum of their numbers without signs, or by their length."""
    node = step.node
    shape = _floats(scope, node)
    axis = axis_of(node.attribute("axis", -1), len(shape))
    order, maths = int(node.attribute("p", 2)), Maths(scope)
    x = scope.value(node.inputs[0])
    sizes = maths.abs(x) if order == 1 else maths.square(x)
    total = maths.reduced(_T.REDUCE_SUM, sizes, [axis])
    length = total if order == 1 else maths.sqrt(total)
    is_zero = maths.pair(_T.EQUAL, length, 0)
    scope.define(step.output, maths.div(x, maths.choose(is_zero, 1, length, x)), shape)


def _local(scope: OnnxScope, step: Step) -> None:
    """Converts LRN: each number is normalized by those of the neighboring channels."""
    node = step.node
    size = int(node.attribute("size", 1))
    if size % 2 == 0:
        raise ModelError(f"looks at {size} channels, which is even")
    bias, alpha, beta = (
        float(node.attribute(name, default))
        for name, default in (("bias", 1.0), ("alpha", 1e-4), ("beta", 0.75))
    )
    x = scope.input(node, 0)
    if not is_float(x):
        raise ModelError("normalizes integers")
    kind = np.float16 if x.type == OperandType.TENSOR_FLOAT16 else float
    numbers = [kind(number) for number in (bias, alpha / size, beta)]
    scope.emit(step, _T.LOCAL_RESPONSE_NORMALIZATION, x, size // 2, *numbers, 1)


CONVERTERS: dict[str, Convert] = {
    "BatchNormalization": _batch,
    "LayerNormalization": _layer,
    "RMSNormalization": _root_mean_square,
    "InstanceNormalization": _grouped,
    "GroupNormalization": _grouped,
    "LpNormalization": _by_length,
    "LRN": _local,
}
"""How each operator becomes operations."""
