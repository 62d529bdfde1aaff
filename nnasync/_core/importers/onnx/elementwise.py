"""Operators that take numbers one by one: arithmetic, activations, comparisons, casts."""

from __future__ import annotations

import numpy as np

from nnasync._core.formats.onnx import element_of
from nnasync._core.importers.onnx.forms import Convert, is_float, outputs_of
from nnasync._core.importers.onnx.preparation import Step, clip_bounds, normalization
from nnasync._core.importers.onnx.scope import OnnxScope, QuantizedView
from nnasync._core.model import Value
from nnasync._core.model.graph import Input
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType
from nnasync.kernels.operation import Tensor

__all__ = ["CONVERTERS"]

_Q8, _Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_CASTS = frozenset({1, 6, 7, 10})


def _unary(type: OperationType) -> Convert:
    def convert(scope: OnnxScope, step: Step) -> None:
        scope.emit(step, type, scope.input(step.node, 0))

    return convert


def _arithmetic(type: OperationType, *, quantized: bool = True) -> Convert:
    """A sum, difference, product or quotient, with an activation."""

    def convert(scope: OnnxScope, step: Step) -> None:
        target = scope.target(step) if quantized else None
        if target is not None:
            views = [scope.quantized(name) for name in step.node.inputs]
            if all(view is not None and view.type == target.type for view in views):
                scope.emit_quantized(target, type, *views, step.activation)
                return
        a, b = scope.input(step.node, 0), scope.input(step.node, 1)
        if not is_float(a) and (type == OperationType.DIV or step.activation):
            raise ModelError("divides integers, or fuses an activation to them")
        scope.emit(step, type, a, b, step.activation)

    return convert


def _binary(type: OperationType) -> Convert:
    """A function of two numbers, or of more by repetition."""

    def convert(scope: OnnxScope, step: Step) -> None:
        values = [scope.value(name) for name in step.node.inputs]
        while len(values) > 2:
            values[:2] = [scope.builder.operation(type, values[0], values[1])]
        if len(values) == 1:
            scope.alias(step.output, step.node.inputs[0])
            return
        scope.emit(step, type, *values)

    return convert


def _sum(scope: OnnxScope, step: Step) -> None:
    total, *others = (scope.value(name) for name in step.node.inputs)
    if not others:
        scope.alias(step.output, step.node.inputs[0])
        return
    for other in others[:-1]:
        total = scope.builder.operation(OperationType.ADD, total, other, 0)
    scope.emit(step, OperationType.ADD, total, others[-1], 0)


def _relu(scope: OnnxScope, step: Step) -> None:
    """A rectifier; of integers that stand for floats it keeps scale and zero point."""
    view = scope.quantized(step.node.inputs[0])
    if view is not None:
        value = scope.builder.operation(OperationType.RELU, view, like=view)
        scope.define(step.output, QuantizedView(value))
        return
    scope.emit(step, OperationType.RELU, scope.input(step.node, 0))


def _clip(scope: OnnxScope, step: Step) -> None:
    constants = {
        name: array for name in step.node.inputs[1:] if (array := scope.array(name)) is not None
    }
    bounds = clip_bounds(constants, step.node)
    if bounds is None:
        raise ModelError("its bounds must be constant")
    x = scope.input(step.node, 0)
    named = {(0.0, 6.0): OperationType.RELU6, (-1.0, 1.0): OperationType.RELU1}
    if bounds in named and is_float(x):
        scope.emit(step, named[bounds], x)
        return
    if bounds[0] > bounds[1]:
        raise ModelError(f"its bounds are {bounds[0]} and {bounds[1]}")
    value = x
    for type, bound in zip((OperationType.MAXIMUM, OperationType.MINIMUM), bounds, strict=True):
        if np.isfinite(bound):
            value = scope.builder.operation(type, value, _like(scope, x, bound))
    if value is x:
        scope.alias(step.output, step.node.inputs[0])
    else:
        scope.define(step.output, value)


def _like(scope: OnnxScope, x: Value, number: float) -> Value:
    """A constant of one element of the type of x."""
    return scope.builder.constant(np.asarray([number]), type=OperandType(x.type))


def _squashed(type: OperationType, scale: float, zero_points: dict[OperandType, int]) -> Convert:
    """A function whose quantized result has a fixed scale and zero point."""

    def convert(scope: OnnxScope, step: Step) -> None:
        target, view = scope.target(step), scope.quantized(step.node.inputs[0])
        if (
            target is not None
            and view is not None
            and view.type == target.type
            and (target.scale, target.zero_point) == (scale, zero_points[target.type])
        ):
            scope.emit_quantized(target, type, view)
            return
        scope.emit(step, type, scope.input(step.node, 0))

    return convert


def _elu(scope: OnnxScope, step: Step) -> None:
    x = scope.input(step.node, 0)
    scope.emit(step, OperationType.ELU, x, float(step.node.attribute("alpha", 1.0)))


def _leaky(scope: OnnxScope, step: Step) -> None:
    x = scope.input(step.node, 0)
    slope = _like(scope, x, step.node.attribute("alpha", 0.01))
    scope.emit(step, OperationType.PRELU, x, slope)


def _hard_swish(scope: OnnxScope, step: Step) -> None:
    target, view = scope.target(step), scope.quantized(step.node.inputs[0])
    if target is not None and view is not None and view.type == target.type:
        scope.emit_quantized(target, OperationType.HARD_SWISH, view)
        return
    scope.emit(step, OperationType.HARD_SWISH, scope.input(step.node, 0))


def _hard_sigmoid(scope: OnnxScope, step: Step) -> None:
    """max(0, min(1, alpha * x + beta))."""
    x = scope.input(step.node, 0)
    build = scope.builder.operation
    scaled = build(OperationType.MUL, x, _like(scope, x, step.node.attribute("alpha", 0.2)), 0)
    moved = build(OperationType.ADD, scaled, _like(scope, x, step.node.attribute("beta", 0.5)), 1)
    scope.emit(step, OperationType.MINIMUM, moved, _like(scope, x, 1.0))


def _reciprocal(scope: OnnxScope, step: Step) -> None:
    x = scope.input(step.node, 0)
    scope.emit(step, OperationType.DIV, _like(scope, x, 1.0), x, 0)


def _normalize(scope: OnnxScope, step: Step) -> None:
    """A batch normalization that no convolution took."""
    outputs_of(step.node, 1)
    found = normalization(scope.graph, step.node)
    if found is None:
        raise ModelError("its numbers must be constant")
    x = scope.input(step.node, 0)
    if not is_float(x):
        raise ModelError("normalizes integers")
    shape = (-1, *[1] * (len(x.shape) - 2))
    factors, offsets = (
        scope.builder.constant(each.reshape(shape), type=OperandType(x.type)) for each in found
    )
    scaled = scope.builder.operation(OperationType.MUL, x, factors, 0)
    scope.emit(step, OperationType.ADD, scaled, offsets, 0)


def _cast(scope: OnnxScope, step: Step) -> None:
    number = step.node.attribute("to", 0)
    element, x = element_of(number), scope.input(step.node, 0)
    if element is None or number not in _CASTS:
        raise ModelError(f"casts to element type {number}")
    if x.type == element.operand:
        scope.alias(step.output, step.node.inputs[0])
        return
    if x.type == OperandType.TENSOR_BOOL8:
        raise ModelError("casts truth values")
    result = Tensor(type=element.operand, shape=x.shape)
    value = scope.builder.operation(OperationType.CAST, x, output=result)
    scope.define(step.output, value)


def _where(scope: OnnxScope, step: Step) -> None:
    inputs: list[Input] = [scope.value(name) for name in step.node.inputs]
    shapes = {scope.shape(name) for name in step.node.inputs}
    if len(shapes) > 1:
        raise ModelError("selects from tensors of several shapes")
    scope.emit(step, OperationType.SELECT, *inputs)


def _identity(scope: OnnxScope, step: Step) -> None:
    outputs_of(step.node, 1)
    if step.node.type == "Dropout" and scope.has(step.node, 2):
        mode = scope.constant(step.node, 2, "training mode")
        if mode.any():
            raise ModelError("drops out while it runs")
    scope.alias(step.output, step.node.inputs[0])


CONVERTERS: dict[str, Convert] = {
    "Add": _arithmetic(OperationType.ADD),
    "Sub": _arithmetic(OperationType.SUB),
    "Mul": _arithmetic(OperationType.MUL),
    "Div": _arithmetic(OperationType.DIV, quantized=False),
    "Sum": _sum,
    "Pow": _binary(OperationType.POW),
    "Max": _binary(OperationType.MAXIMUM),
    "Min": _binary(OperationType.MINIMUM),
    "Equal": _binary(OperationType.EQUAL),
    "Greater": _binary(OperationType.GREATER),
    "GreaterOrEqual": _binary(OperationType.GREATER_EQUAL),
    "Less": _binary(OperationType.LESS),
    "LessOrEqual": _binary(OperationType.LESS_EQUAL),
    "And": _binary(OperationType.LOGICAL_AND),
    "Or": _binary(OperationType.LOGICAL_OR),
    "Not": _unary(OperationType.LOGICAL_NOT),
    "Where": _where,
    "Abs": _unary(OperationType.ABS),
    "Exp": _unary(OperationType.EXP),
    "Floor": _unary(OperationType.FLOOR),
    "Log": _unary(OperationType.LOG),
    "Neg": _unary(OperationType.NEG),
    "Sin": _unary(OperationType.SIN),
    "Sqrt": _unary(OperationType.SQRT),
    "Reciprocal": _reciprocal,
    "Relu": _relu,
    "Clip": _clip,
    "Sigmoid": _squashed(OperationType.LOGISTIC, 1 / 256, {_Q8: 0, _Q8S: -128}),
    "Tanh": _squashed(OperationType.TANH, 1 / 128, {_Q8: 128, _Q8S: 0}),
    "HardSwish": _hard_swish,
    "HardSigmoid": _hard_sigmoid,
    "Elu": _elu,
    "LeakyRelu": _leaky,
    "PRelu": _binary(OperationType.PRELU),
    "BatchNormalization": _normalize,
    "Cast": _cast,
    "Identity": _identity,
    "Dropout": _identity,
}
"""How each operator becomes operations."""
