"""Operators that take numbers one by one: arithmetic, activations, comparisons, casts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from nnasync._core.formats.onnx import element_name, operand_of
from nnasync._core.importers.onnx.axes import aligned, broadcast_shape
from nnasync._core.importers.onnx.forms import Convert, check_count, is_float
from nnasync._core.importers.onnx.maths import Maths
from nnasync._core.importers.onnx.preparation import Step, clip_bounds
from nnasync._core.importers.onnx.scope import OnnxScope, QuantizedView
from nnasync._core.model import Value
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType, dtype_of

_Q8, _Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_CASTS = frozenset({1, 6, 7, 9, 10})


def _arithmetic(type: OperationType, *, quantized: bool = True) -> Convert:
    """A sum, difference, product or quotient, with an activation."""

    def convert(scope: OnnxScope, step: Step) -> None:
        target = scope.target(step) if quantized else None
        if target is not None:
            views = [scope.quantized(name) for name in step.node.inputs]
            if all(view is not None and view.type == target.type for view in views):
                scope.emit_quantized(target, type, *views, step.activation)
                return
        (a, b), shape = aligned(scope, step.node.inputs)
        if is_float(a):
            scope.emit(step, type, a, b, step.activation, shape=shape)
            return
        if a.type != OperandType.TENSOR_INT32 or step.activation:
            raise ModelError(f"computes {OperandType(a.type).name}, or fuses an activation to it")
        if type == OperationType.DIV:
            scope.define(step.output, _whole_quotient(Maths(scope), a, b), shape)
            return
        scope.emit(step, type, a, b, 0, shape=shape)

    return convert


def _whole_quotient(maths: Maths, a: Value, b: Value) -> Value:
    """A quotient rounded toward 0, where the HAL rounds down."""
    size = maths.div(maths.abs(a), maths.abs(b))
    differ = maths.apply(
        OperationType.NOT_EQUAL,
        maths.pair(OperationType.LESS, a, 0),
        maths.pair(OperationType.LESS, b, 0),
    )
    return maths.select(differ, maths.neg(size), size)


def _remainder(scope: OnnxScope, step: Step) -> None:
    """Converts MOD: the remainder has the sign of the divisor, or with `fmod` of the dividend."""
    (a, b), shape = aligned(scope, step.node.inputs)
    maths, keeps_sign = Maths(scope), bool(step.node.attribute("fmod", 0))
    if keeps_sign:
        sizes = maths.abs(a), maths.abs(b)
        rest = _rest(maths, *sizes)
        negative = maths.pair(OperationType.LESS, a, 0)
        result = maths.select(negative, maths.neg(rest), rest)
    elif is_float(a):
        raise ModelError("takes the sign of the divisor, of floats")
    else:
        result = _rest(maths, a, b)
    scope.define(step.output, result, shape)


def _rest(maths: Maths, a: Value, b: Value) -> Value:
    quotient = maths.div(a, b)
    whole = maths.floor(quotient) if is_float(a) else quotient
    return maths.sub(a, maths.mul(whole, b))


def _power(scope: OnnxScope, step: Step) -> None:
    """A power; of a constant exponent often something cheaper."""
    exponent = scope.array(step.node.inputs[1])
    number = float(exponent.reshape(-1)[0]) if exponent is not None and exponent.size == 1 else None
    whole = broadcast_shape([scope.shape(name) for name in step.node.inputs])
    if number in (1.0, 2.0, 3.0, 0.5) and whole == scope.shape(step.node.inputs[0]):
        (x,), shape = aligned(scope, step.node.inputs[:1])
        scope.define(step.output, _simple_power(Maths(scope), x, number), shape)
        return
    (x, y), shape = aligned(scope, step.node.inputs)
    if not is_float(x):
        raise ModelError("raises integers to a power other than 1, 2 or 3")
    y = Maths(scope).cast(y, OperandType(x.type))
    scope.emit(step, OperationType.POW, x, y, shape=shape)


def _simple_power(maths: Maths, x: Value, number: float) -> Value:
    if number == 0.5:
        return maths.sqrt(x)
    y = maths.mul(x, 1) if number == 1.0 else maths.square(x)
    return maths.mul(y, x) if number == 3.0 else y


def _binary(type: OperationType) -> Convert:
    """A function of two numbers, or of more by repetition."""
    return _repeated(lambda maths, a, b: maths.apply(type, a, b))


def _equal(scope: OnnxScope, step: Step) -> None:
    """Converts Equal; the HAL's REDUCE_MAX of -inf alone gives the lowest finite number."""
    (a, b), shape = aligned(scope, step.node.inputs)
    known = scope.array(step.node.inputs[1])
    if known is not None and known.size == 1 and is_float(a) and np.isneginf(known).all():
        lowest = float(np.finfo(known.dtype).min)
        scope.define(step.output, Maths(scope).pair(OperationType.LESS_EQUAL, a, lowest), shape)
        return
    scope.emit(step, OperationType.EQUAL, a, b, shape=shape)


def _repeated(function: Callable[[Maths, Value, Value], Value]) -> Convert:
    def convert(scope: OnnxScope, step: Step) -> None:
        if len(step.node.inputs) == 1:
            scope.alias(step.output, step.node.inputs[0])
            return
        (total, *others), shape = aligned(scope, step.node.inputs)
        for other in others:
            total = function(Maths(scope), total, other)
        scope.define(step.output, total, shape)

    return convert


def _mean(scope: OnnxScope, step: Step) -> None:
    maths, count = Maths(scope), len(step.node.inputs)
    (total, *others), shape = aligned(scope, step.node.inputs)
    for other in others:
        total = maths.add(total, other)
    scope.define(step.output, maths.mul(total, 1 / count), shape)


def _prelu(scope: OnnxScope, step: Step) -> None:
    (x, slope), shape = aligned(scope, step.node.inputs)
    if not is_float(x):
        raise ModelError(f"computes {OperandType(x.type).name}")
    scope.emit(step, OperationType.PRELU, x, slope, shape=shape)


def _relu(scope: OnnxScope, step: Step) -> None:
    """A rectifier; of integers that stand for floats it keeps scale and zero point."""
    view = scope.quantized(step.node.inputs[0])
    if view is not None:
        value = scope.builder.operation(OperationType.RELU, view, like=view)
        scope.define(step.output, QuantizedView(value))
        return
    (x,), shape = aligned(scope, step.node.inputs)
    scope.emit(step, OperationType.RELU, x, shape=shape)


def _clip(scope: OnnxScope, step: Step) -> None:
    constants = {
        name: array for name in step.node.inputs[1:] if (array := scope.array(name)) is not None
    }
    bounds = clip_bounds(constants, step.node)
    if bounds is None:
        _clip_between(scope, step)
        return
    (x,), shape = aligned(scope, step.node.inputs[:1])
    named = {(0.0, 6.0): OperationType.RELU6, (-1.0, 1.0): OperationType.RELU1}
    if bounds in named and is_float(x):
        scope.emit(step, named[bounds], x, shape=shape)
        return
    low, high = bounds
    maths, value = Maths(scope), x
    for type, bound in ((OperationType.MAXIMUM, min(low, high)), (OperationType.MINIMUM, high)):
        if np.isfinite(bound):
            value = maths.pair(type, value, bound)
    scope.define(step.output, value, shape)


def _clip_between(scope: OnnxScope, step: Step) -> None:
    """Between bounds that are computed."""
    (value,), shape = aligned(scope, step.node.inputs[:1])
    for place, type in ((1, OperationType.MAXIMUM), (2, OperationType.MINIMUM)):
        if scope.has(step.node, place):
            value = Maths(scope).apply(type, value, scope.input(step.node, place))
    scope.define(step.output, value, shape)


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
        (x,), shape = aligned(scope, step.node.inputs)
        scope.emit(step, type, x, shape=shape)

    return convert


def _hard_swish(scope: OnnxScope, step: Step) -> None:
    target, view = scope.target(step), scope.quantized(step.node.inputs[0])
    if target is not None and view is not None and view.type == target.type:
        scope.emit_quantized(target, OperationType.HARD_SWISH, view)
        return
    (x,), shape = aligned(scope, step.node.inputs)
    scope.emit(step, OperationType.HARD_SWISH, x, shape=shape)


def _cast(scope: OnnxScope, step: Step) -> None:
    number = step.node.attribute("to", 0)
    held = operand_of(number)
    if held is None or number not in _CASTS:
        raise ModelError(f"casts to {element_name(number)}")
    _cast_to(scope, step, held[0])


def _cast_like(scope: OnnxScope, step: Step) -> None:
    type, known = OperandType(scope.input(step.node, 1).type), scope.array(step.node.inputs[0])
    if known is not None:
        scope.define(step.output, known.astype(dtype_of(type)))
        return
    if type not in {held[0] for number in _CASTS if (held := operand_of(number))}:
        raise ModelError(f"casts to {type.name}")
    _cast_to(scope, step, type)


def _cast_to(scope: OnnxScope, step: Step, type: OperandType) -> None:
    (x,), shape = aligned(scope, step.node.inputs[:1])
    if x.type == type:
        scope.alias(step.output, step.node.inputs[0])
        return
    scope.define(step.output, Maths(scope).cast(x, type), shape)


def _where(scope: OnnxScope, step: Step) -> None:
    (condition, a, b), shape = aligned(scope, step.node.inputs)
    scope.define(step.output, Maths(scope).select(condition, a, b), shape)


def _identity(scope: OnnxScope, step: Step) -> None:
    node = step.node
    is_trained = node.type == "Dropout" and scope.has(node, 2)
    if is_trained and scope.constant(node, 2, "training mode").any():
        raise ModelError("drops out while it runs")
    for mask in node.outputs[1:]:
        if mask:
            check_count(math.prod(scope.shape(node.inputs[0])))
            scope.define(mask, np.ones(scope.shape(node.inputs[0]), np.bool_))
    scope.alias(step.output, node.inputs[0])


CONVERTERS: dict[str, Convert] = {
    "Add": _arithmetic(OperationType.ADD),
    "Sub": _arithmetic(OperationType.SUB),
    "Mul": _arithmetic(OperationType.MUL),
    "Div": _arithmetic(OperationType.DIV, quantized=False),
    "Mod": _remainder,
    "Sum": _repeated(Maths.add),
    "Mean": _mean,
    "Pow": _power,
    "Max": _binary(OperationType.MAXIMUM),
    "Min": _binary(OperationType.MINIMUM),
    "Equal": _equal,
    "Greater": _binary(OperationType.GREATER),
    "GreaterOrEqual": _binary(OperationType.GREATER_EQUAL),
    "Less": _binary(OperationType.LESS),
    "LessOrEqual": _binary(OperationType.LESS_EQUAL),
    "And": _binary(OperationType.LOGICAL_AND),
    "Or": _binary(OperationType.LOGICAL_OR),
    "Xor": _binary(OperationType.NOT_EQUAL),
    "Where": _where,
    "Relu": _relu,
    "Clip": _clip,
    "Sigmoid": _squashed(OperationType.LOGISTIC, 1 / 256, {_Q8: 0, _Q8S: -128}),
    "Tanh": _squashed(OperationType.TANH, 1 / 128, {_Q8: 128, _Q8S: 0}),
    "HardSwish": _hard_swish,
    "PRelu": _prelu,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Identity": _identity,
    "Dropout": _identity,
}
"""How each operator becomes operations."""
