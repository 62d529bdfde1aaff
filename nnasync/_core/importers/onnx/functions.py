"""Functions of one number: each is a few operations of the HAL, or one."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from nnasync._core.importers.onnx.axes import aligned
from nnasync._core.importers.onnx.forms import Convert, is_float
from nnasync._core.importers.onnx.maths import Maths
from nnasync._core.importers.onnx.onnx_file import OnnxNode
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope
from nnasync._core.model import Value
from nnasync.errors import ModelError
from nnasync.extensions import COMMON, CommonOperation
from nnasync.hal import OperandType, OperationType

_T = OperationType
Function = Callable[[Maths, Value, OnnxNode], Value]
_SELU_ALPHA, _SELU_GAMMA = 1.6732632423543772, 1.0507009873554805


def _of_floats(function: Function) -> Convert:
    """A function of floats."""

    def convert(scope: OnnxScope, step: Step) -> None:
        (x,), shape = aligned(scope, step.node.inputs[:1])
        if not is_float(x):
            raise ModelError(f"computes {OperandType(x.type).name}")
        scope.define(step.output, function(Maths(scope), x, step.node), shape)

    return convert


def _plain(type: OperationType) -> Convert:
    """A function that the HAL has."""

    def convert(scope: OnnxScope, step: Step) -> None:
        (x,), shape = aligned(scope, step.node.inputs[:1])
        scope.emit(step, type, x, shape=shape)

    return convert


def _ceiling(maths: Maths, x: Value, node: OnnxNode) -> Value:
    return maths.neg(maths.floor(maths.neg(x)))


def _rounded(maths: Maths, x: Value, node: OnnxNode) -> Value:
    """To the nearest whole number; halves to the even one."""
    low = maths.floor(x)
    rest = maths.sub(x, low)
    is_odd = maths.sub(low, maths.mul(maths.floor(maths.mul(low, 0.5)), 2.0))
    high = maths.add(low, 1.0)
    halves = maths.pair(_T.EQUAL, rest, 0.5)
    above = maths.pair(_T.GREATER, rest, 0.5)
    return maths.select(above, high, maths.select(halves, maths.add(low, is_odd), low))


def _sign(maths: Maths, x: Value, node: OnnxNode) -> Value:
    below = maths.choose(maths.pair(_T.LESS, x, 0), -1, 0, x)
    return maths.choose(maths.pair(_T.GREATER, x, 0), 1, below, x)


def _cosine(maths: Maths, x: Value, node: OnnxNode) -> Value:
    return maths.apply(_T.SIN, maths.add(x, math.pi / 2))


def _tangent(maths: Maths, x: Value, node: OnnxNode) -> Value:
    return maths.div(maths.apply(_T.SIN, x), _cosine(maths, x, node))


def _hyperbolic_cosine(maths: Maths, x: Value, node: OnnxNode) -> Value:
    return maths.mul(maths.add(maths.exp(x), maths.exp(maths.neg(x))), 0.5)


def _hyperbolic_sine(maths: Maths, x: Value, node: OnnxNode) -> Value:
    return maths.mul(maths.apply(_T.TANH, x), _hyperbolic_cosine(maths, x, node))


def _inverse_sine(maths: Maths, x: Value, node: OnnxNode) -> Value:
    """log(|x| + sqrt(x * x + 1)), with the sign of x."""
    size = maths.abs(x)
    root = maths.sqrt(maths.add(maths.square(x), 1.0))
    return maths.mul(_sign(maths, x, node), maths.log(maths.add(size, root)))


def _inverse_cosine(maths: Maths, x: Value, node: OnnxNode) -> Value:
    root = maths.sqrt(maths.sub(maths.square(x), 1.0))
    return maths.log(maths.add(x, root))


def _inverse_tangent(maths: Maths, x: Value, node: OnnxNode) -> Value:
    quotient = maths.div(maths.add(x, 1.0), maths.sub(maths.number(x, 1.0), x))
    return maths.mul(maths.log(quotient), 0.5)


def softplus(maths: Maths, x: Value) -> Value:
    """log(1 + e**x), which does not overflow: max(x, 0) + log(1 + e**-|x|)."""
    small = maths.exp(maths.neg(maths.abs(x)))
    return maths.add(maths.maximum(x, 0.0), maths.log(maths.add(small, 1.0)))


def _softplus(maths: Maths, x: Value, node: OnnxNode) -> Value:
    return softplus(maths, x)


def _softsign(maths: Maths, x: Value, node: OnnxNode) -> Value:
    return maths.div(x, maths.add(maths.abs(x), 1.0))


def _mish(maths: Maths, x: Value, node: OnnxNode) -> Value:
    return maths.mul(x, maths.apply(_T.TANH, softplus(maths, x)))


def _swish(maths: Maths, x: Value, node: OnnxNode) -> Value:
    alpha = float(node.attribute("alpha", 1.0))
    scaled = x if alpha == 1.0 else maths.mul(x, alpha)
    return maths.mul(x, maths.apply(_T.LOGISTIC, scaled))


def _elu(maths: Maths, x: Value, node: OnnxNode) -> Value:
    return _elu_of(maths, x, float(node.attribute("alpha", 1.0)))


def _selu(maths: Maths, x: Value, node: OnnxNode) -> Value:
    alpha = float(node.attribute("alpha", _SELU_ALPHA))
    return maths.mul(_elu_of(maths, x, alpha), float(node.attribute("gamma", _SELU_GAMMA)))


def _elu_of(maths: Maths, x: Value, alpha: float) -> Value:
    scalar = np.float16(alpha) if x.type == OperandType.TENSOR_FLOAT16 else alpha
    return maths.apply(_T.ELU, x, scalar)


def _celu(maths: Maths, x: Value, node: OnnxNode) -> Value:
    alpha = float(node.attribute("alpha", 1.0))
    return maths.mul(_elu_of(maths, maths.div(x, alpha), 1.0), alpha)


def _thresholded(maths: Maths, x: Value, node: OnnxNode) -> Value:
    passes = maths.pair(_T.GREATER, x, float(node.attribute("alpha", 1.0)))
    return maths.choose(passes, x, 0, x)


def _shrink(maths: Maths, x: Value, node: OnnxNode) -> Value:
    limit, bias = float(node.attribute("lambd", 0.5)), float(node.attribute("bias", 0.0))
    above = maths.choose(maths.pair(_T.GREATER, x, limit), maths.sub(x, bias), 0, x)
    return maths.choose(maths.pair(_T.LESS, x, -limit), maths.add(x, bias), above, x)


def _leaky(maths: Maths, x: Value, node: OnnxNode) -> Value:
    return maths.pair(_T.PRELU, x, float(node.attribute("alpha", 0.01)))


def _hard_sigmoid(maths: Maths, x: Value, node: OnnxNode) -> Value:
    """max(0, min(1, alpha * x + beta))."""
    scaled = maths.mul(x, float(node.attribute("alpha", 0.2)))
    moved = maths.add(scaled, float(node.attribute("beta", 0.5)))
    return maths.minimum(maths.apply(_T.RELU, moved), 1.0)


def _reciprocal(maths: Maths, x: Value, node: OnnxNode) -> Value:
    return maths.reciprocal(x)


def _gelu(maths: Maths, x: Value, node: OnnxNode) -> Value:
    type = maths.scope.builder.extension_type(COMMON.name, CommonOperation.GELU)
    approximate = node.attribute("approximate", "none") == "tanh"
    return maths.scope.builder.operation(type, x, approximate)


def _is_not_a_number(maths: Maths, x: Value, node: OnnxNode) -> Value:
    return maths.apply(_T.NOT_EQUAL, x, x)


def _is_infinite(maths: Maths, x: Value, node: OnnxNode) -> Value:
    above, below = (bool(node.attribute(f"detect_{sign}", 1)) for sign in ("positive", "negative"))
    if not above and not below:
        raise ModelError("looks for no sign")
    size = maths.abs(x) if above and below else x
    return maths.pair(_T.EQUAL, size, math.inf if above else -math.inf)


CONVERTERS: dict[str, Convert] = {
    "Abs": _plain(_T.ABS),
    "Neg": _plain(_T.NEG),
    "Not": _plain(_T.LOGICAL_NOT),
    "Exp": _plain(_T.EXP),
    "Log": _plain(_T.LOG),
    "Floor": _plain(_T.FLOOR),
    "Sin": _plain(_T.SIN),
    "Sqrt": _plain(_T.SQRT),
    "Ceil": _of_floats(_ceiling),
    "Round": _of_floats(_rounded),
    "Sign": _of_floats(_sign),
    "Cos": _of_floats(_cosine),
    "Tan": _of_floats(_tangent),
    "Cosh": _of_floats(_hyperbolic_cosine),
    "Sinh": _of_floats(_hyperbolic_sine),
    "Asinh": _of_floats(_inverse_sine),
    "Acosh": _of_floats(_inverse_cosine),
    "Atanh": _of_floats(_inverse_tangent),
    "Reciprocal": _of_floats(_reciprocal),
    "Softplus": _of_floats(_softplus),
    "Softsign": _of_floats(_softsign),
    "Mish": _of_floats(_mish),
    "Swish": _of_floats(_swish),
    "Elu": _of_floats(_elu),
    "Selu": _of_floats(_selu),
    "Celu": _of_floats(_celu),
    "LeakyRelu": _of_floats(_leaky),
    "HardSigmoid": _of_floats(_hard_sigmoid),
    "ThresholdedRelu": _of_floats(_thresholded),
    "Shrink": _of_floats(_shrink),
    "Gelu": _of_floats(_gelu),
    "IsNaN": _of_floats(_is_not_a_number),
    "IsInf": _of_floats(_is_infinite),
}
"""How each operator becomes operations."""
