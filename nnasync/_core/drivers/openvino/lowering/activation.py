"""Activations, SOFTMAX and LOG_SOFTMAX, QUANTIZE, DEQUANTIZE and CAST."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnasync import hal
from nnasync._core.drivers.openvino.graph_scope import Node, Result, Scope, is_float
from nnasync._core.drivers.openvino.lowered import (
    BOOLEANS,
    BYTES,
    INTEGERS,
    REALS,
    Build,
    Lower,
    OpenVinoUnsupported,
    Rule,
    Rules,
    one,
)
from nnasync._core.drivers.openvino.lowering.elementwise import bounds_of, pointwise
from nnasync.hal import FusedActivationFunc, OperandType, OperationType, is_quantized
from nnasync.kernels import Arguments, Tensor

Apply = Callable[[Scope, Node], Node]


_LARGEST_SCALE = 8
"""From here on the fixed-point rule of LOGISTIC and TANH makes the lowest result of 0 itself."""


def check_scale(output: Tensor, scale: float, zero_point: int) -> None:
    """Raise Unsupported unless a quantized output has the one scale that its rule knows.

    `zero_point` is that of unsigned bytes.
    """
    if not is_quantized(output.type):
        return
    zero = zero_point - (0 if output.type == OperandType.TENSOR_QUANT8_ASYMM else 128)
    if (output.scale, output.zero_point) != (scale, zero):
        raise OpenVinoUnsupported(f"an output of scale {output.scale}, not {scale}, is not lowered")


def _check_source_scale(source: Tensor) -> None:
    """Raise Unsupported for an input that the rule saturates at 0."""
    if is_quantized(source.type) and source.scale >= _LARGEST_SCALE:
        raise OpenVinoUnsupported(f"a scale of {source.scale}, at which the rule saturates 0")


def _clamp(fused: int) -> Lower:
    def lower(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
        output = outputs[0]
        lower, upper = bounds_of(fused, output)
        zero = output.zero_point if is_quantized(output.type) else 0
        bounds = lower - zero, upper - zero

        def build(scope: Scope) -> Result:
            return pointwise(scope, (0,), lambda nodes: scope.limited(nodes[0], bounds), real=False)

        return one(build)

    return lower


def _curve(apply: Apply, scale: float = 0.0, zero_point: int = 0) -> Lower:
    """A function of real numbers, whose quantized result has one scale only if one is given."""

    def lower(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
        output = outputs[0]
        if scale:
            check_scale(output, scale, zero_point)
            _check_source_scale(arguments.tensor(0))

        def build(scope: Scope) -> Result:
            def whole(nodes: Sequence[Node]) -> Node:
                return scope.store(apply(scope, nodes[0]), output)

            return pointwise(scope, (0,), whole, real=True)

        return one(build)

    return lower


def _elu(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    alpha = arguments.number(1)

    def build(scope: Scope) -> Result:
        return pointwise(scope, (0,), lambda nodes: scope.op.elu(nodes[0], alpha), real=False)

    return one(build)


def _softmax(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    output, source = outputs[0], arguments.tensor(0)
    beta = arguments.number(1)
    check_scale(output, 1 / 256, 0)
    axis = arguments.axis(2, source.rank) if arguments.has(2) else source.rank - 1

    def build(scope: Scope) -> Result:
        node = scope.real(0)
        if beta != 1:
            node = scope.op.multiply(node, scope.number(beta))
        return scope.store(scope.op.softmax(node, axis), output)

    return one(build)


def _log_softmax(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    beta, axis = arguments.number(1), arguments.axis(2, arguments.tensor(0).rank)

    def build(scope: Scope) -> Result:
        node = scope.op.multiply(scope.value(0), scope.number(beta))
        return scope.op.log_softmax(node, axis)

    return one(build)


def _quantize(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    return one(
        lambda scope: pointwise(
            scope, (0,), lambda nodes: scope.store(nodes[0], outputs[0]), real=False
        )
    )


def _dequantize(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    channel_quant = arguments.tensor(0).channel_quant

    def build(scope: Scope) -> Result:
        if channel_quant is not None:
            return scope.real(0)
        return pointwise(scope, (0,), lambda nodes: nodes[0], real=True)

    return one(build)


def _cast(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    source, output = arguments.tensor(0), outputs[0]
    known = (*REALS, *INTEGERS, *BYTES, *BOOLEANS)
    if output.type not in known:
        raise OpenVinoUnsupported(f"{hal.type_name(output.type)} is not lowered")
    if source.type == output.type:
        return one(lambda scope: _requantized(scope, source, output))
    if is_quantized(source.type) and is_quantized(output.type):
        raise OpenVinoUnsupported("bytes to bytes of another sign are not lowered")

    def build(scope: Scope) -> Result:
        node = scope.as_stored(scope.value(0), 0)
        if is_quantized(source.type):
            node = scope.raw(node, source)
        return _cast_to(scope, node, source, output)

    return one(build)


def _requantized(scope: Scope, source: Tensor, output: Tensor) -> Node:
    """Returns the same raw values under another zero point."""
    node = scope.value(0)
    if not is_quantized(source.type) or source.zero_point == output.zero_point:
        return node
    return scope.centered(scope.raw(node, source), output)


def _cast_to(scope: Scope, node: Node, source: Tensor, output: Tensor) -> Node:
    """Numbers (raw ones, if quantized) as another type."""
    op = scope.op
    if is_float(output.type):
        return (
            node if is_float(source.type) or is_quantized(source.type) else op.convert(node, "f32")
        )
    if output.type in INTEGERS:
        return op.convert(node, "i32")
    if source.type in INTEGERS:
        node = op.convert(op.clamp(node, 0, 255), "f32")
    elif source.type in BOOLEANS:
        node = op.convert(node, "f32")
    else:
        node = op.floor(op.clamp(node, 0.0, 255.0))
    return scope.centered(node, output)


def _hard_swish(scope: Scope, node: Node) -> Node:
    return scope.op.hswish(node)


_CASTS = (*REALS, *INTEGERS, *BYTES, *BOOLEANS)
_QUANTIZED = (
    *BYTES,
    OperandType.TENSOR_QUANT8_SYMM,
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
)

RULES: Rules = {
    OperationType.RELU: Rule(_clamp(FusedActivationFunc.RELU)),
    OperationType.RELU1: Rule(_clamp(FusedActivationFunc.RELU1)),
    OperationType.RELU6: Rule(_clamp(FusedActivationFunc.RELU6)),
    OperationType.LOGISTIC: Rule(_curve(lambda scope, x: scope.op.sigmoid(x), 1 / 256, 0)),
    OperationType.TANH: Rule(_curve(lambda scope, x: scope.op.tanh(x), 1 / 128, 128)),
    OperationType.HARD_SWISH: Rule(_curve(_hard_swish)),
    OperationType.ELU: Rule(_elu, REALS),
    OperationType.SOFTMAX: Rule(_softmax),
    OperationType.LOG_SOFTMAX: Rule(_log_softmax, REALS),
    OperationType.QUANTIZE: Rule(_quantize, REALS),
    OperationType.DEQUANTIZE: Rule(_dequantize, _QUANTIZED),
    OperationType.CAST: Rule(_cast, _CASTS),
}
