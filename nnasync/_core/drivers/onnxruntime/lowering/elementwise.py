"""Operations on numbers one by one, reductions, and conversions between types."""

from __future__ import annotations

import numpy as np

from nnasync._core.drivers.onnxruntime.lowering.call import OperationCall, OrtUnsupported
from nnasync._core.drivers.onnxruntime.lowering.emitter import AXIS_FIRST, Emitter
from nnasync._core.drivers.onnxruntime.lowering.windows import Lower
from nnasync.hal import OperandType, OperationType, is_quantized

_WIDEST = 4096
_ELEMENTS = {
    OperandType.TENSOR_FLOAT32: 1,
    OperandType.TENSOR_FLOAT16: 10,
    OperandType.TENSOR_INT32: 6,
    OperandType.TENSOR_BOOL8: 9,
    OperandType.TENSOR_QUANT8_ASYMM: 2,
}


_LARGEST_SCALE = 8


def _unary(*types: str) -> Lower:
    """Nodes one behind the other, in the layout of the input."""

    def lower(emitter: Emitter, call: OperationCall) -> None:
        index = call.inputs[0]
        first = emitter.is_first(index)
        name = emitter.real(index, first=first)
        for type in types:
            name = emitter.node(type, [name])
        emitter.give_real(call.outputs[0], name, first=first)

    return lower


def _curve(type: str) -> Lower:
    """A node whose fixed-point rule makes the lowest result of 0 itself from a scale of 8 on."""
    plain = _unary(type)

    def lower(emitter: Emitter, call: OperationCall) -> None:
        source = call.tensor(0)
        if is_quantized(source.type) and source.scale >= _LARGEST_SCALE:
            raise OrtUnsupported(
                f"has an input of scale {source.scale}, which the rule saturates at 0"
            )
        plain(emitter, call)

    return lower


def _rectifier(activation: int) -> Lower:
    def lower(emitter: Emitter, call: OperationCall) -> None:
        index = call.inputs[0]
        first = emitter.is_first(index)
        name = emitter.real(index, first=first)
        name = emitter.activated(name, activation, call.result)
        emitter.give_real(call.outputs[0], name, first=first)

    return lower


def _elu(emitter: Emitter, call: OperationCall) -> None:
    name = emitter.node("Elu", [emitter.real(call.inputs[0])], alpha=call.number(1))
    emitter.give_real(call.outputs[0], name)


def _is_first(emitter: Emitter, call: OperationCall) -> bool:
    """Returns whether channels come first in the two inputs, broadcast to the result."""
    return call.result.rank == 4 and emitter.is_first(*call.inputs[:2])


def _arithmetic(type: str) -> Lower:
    def lower(emitter: Emitter, call: OperationCall) -> None:
        if call.result.type == OperandType.TENSOR_INT32 and (type == "Div" or call.integer(2) != 0):
            raise OrtUnsupported("divides integers, or fuses an activation to them")
        first = _is_first(emitter, call)
        names = [emitter.real(index, first=first) for index in call.inputs[:2]]
        name = emitter.activated(emitter.node(type, names), call.integer(2), call.result)
        emitter.give_real(call.outputs[0], name, first=first)

    return lower


def _binary(type: str, *after: str) -> Lower:
    """A function or comparison of two numbers."""

    def lower(emitter: Emitter, call: OperationCall) -> None:
        ordered = type not in ("Equal", "And", "Or")
        if ordered and call.tensor(0).type == OperandType.TENSOR_BOOL8:
            raise OrtUnsupported("takes truth values")
        first = _is_first(emitter, call)
        names = [emitter.real(index, first=first) for index in call.inputs[:2]]
        name = emitter.node(type, names)
        for each in after:
            name = emitter.node(each, [name])
        emitter.give_real(call.outputs[0], name, first=first)

    return lower


def _prelu(emitter: Emitter, call: OperationCall) -> None:
    if call.result.shape != call.shape(0):
        raise OrtUnsupported("is broadcast to the slopes")
    call.array(1)  # a slope that is computed would square what rounding did to its input
    _binary("PRelu")(emitter, call)


def _select(emitter: Emitter, call: OperationCall) -> None:
    names = [emitter.real(index) for index in call.inputs]
    emitter.give_real(call.outputs[0], emitter.node("Where", names))


def _softmax(type: str) -> Lower:
    def lower(emitter: Emitter, call: OperationCall) -> None:
        rank = call.tensor(0).rank
        axis = call.integer(2) if call.has(2) else -1
        axis = axis % rank
        name = emitter.real(call.inputs[0])
        beta = call.number(1)
        if beta != 1.0:
            name = emitter.node("Mul", [name, _scalar(emitter, beta)])
        emitter.give_real(call.outputs[0], emitter.node(type, [name], axis=axis))

    return lower


def _scalar(emitter: Emitter, number: float) -> str:
    return emitter.constant(np.asarray(number, np.float32))


def _reduce(type: str, *, axes_as_input: bool = False) -> Lower:
    def lower(emitter: Emitter, call: OperationCall) -> None:
        rank = call.tensor(0).rank
        axes = sorted({axis % rank for axis in call.integers(1)})
        keeps = int(call.flag(2))
        first = bool(keeps) and emitter.is_first(call.inputs[0])
        if first:
            axes = sorted(AXIS_FIRST[axis] for axis in axes)
        name = emitter.real(call.inputs[0], first=first)
        if axes_as_input:
            name = emitter.node(type, [name, emitter.integers(axes)], keepdims=keeps)
        else:
            name = emitter.node(type, [name], axes=axes, keepdims=keeps)
        if call.result.shape == (1,) and not keeps:
            name = emitter.reshaped(name, (1,))
        emitter.give_real(call.outputs[0], name, first=first)

    return lower


def _extreme(type: str) -> Lower:
    def lower(emitter: Emitter, call: OperationCall) -> None:
        axis = call.integer(1) % call.tensor(0).rank
        name = emitter.node(type, [emitter.real(call.inputs[0])], axis=axis, keepdims=0)
        name = emitter.node("Cast", [name], to=_ELEMENTS[OperandType.TENSOR_INT32])
        if call.tensor(0).rank == 1:
            name = emitter.reshaped(name, (1,))
        emitter.give_real(call.outputs[0], name)

    return lower


def _requantize(emitter: Emitter, call: OperationCall) -> None:
    """Emits a change of quantization, or to none."""
    index = call.inputs[0]
    first = emitter.is_first(index)
    name = emitter.real(index, first=first)
    emitter.give_real(call.outputs[0], name, first=first)


def _cast(emitter: Emitter, call: OperationCall) -> None:
    source, result = call.tensor(0), call.result
    if source.type not in _ELEMENTS or result.type not in _ELEMENTS:
        raise OrtUnsupported("casts a type that ONNX has not")
    if OperandType.TENSOR_QUANT8_ASYMM == result.type != source.type:
        raise OrtUnsupported("casts to bytes, which does not saturate in ONNX")
    name = emitter.whole(call.inputs[0])
    if source.type != result.type:
        name = emitter.node("Cast", [name], to=_ELEMENTS[OperandType(result.type)])
    else:
        name = emitter.node("Identity", [name])
    emitter.give(call.outputs[0], name)


def _l2_normalization(emitter: Emitter, call: OperationCall) -> None:
    axis = call.integer(1) if call.has(1) else -1
    name = emitter.node(
        "LpNormalization", [emitter.real(call.inputs[0])], axis=axis % call.tensor(0).rank, p=2
    )
    emitter.give_real(call.outputs[0], name)


def _response_normalization(emitter: Emitter, call: OperationCall) -> None:
    """ONNX sums over the channels of an image, divides by the width of the window, and adds."""
    axis = call.integer(5) if call.has(5) else -1
    if call.tensor(0).rank != 4 or axis % 4 not in (1, 3):
        raise OrtUnsupported("normalizes over another axis than the channels of images")
    first = axis % 4 == 3
    size = 2 * call.integer(1) + 1
    if size > _WIDEST:
        raise OrtUnsupported(f"sums over {size} channels")
    bias, alpha, beta = (call.number(place) for place in (2, 3, 4))
    name = emitter.real(call.inputs[0], first=first)
    name = emitter.node("LRN", [name], size=size, bias=bias, alpha=alpha * size, beta=beta)
    emitter.give_real(call.outputs[0], name, first=first)


def _instance_normalization(emitter: Emitter, call: OperationCall) -> None:
    first = not call.flag(4)
    channels = call.shape(0)[3 if first else 1]
    gamma, beta = (np.full(channels, call.number(place), np.float32) for place in (1, 2))
    names = [
        emitter.real(call.inputs[0], first=first),
        emitter.constant(gamma),
        emitter.constant(beta),
    ]
    name = emitter.node("InstanceNormalization", names, epsilon=call.number(3))
    emitter.give_real(call.outputs[0], name, first=first)


_O = OperationType
LOWERINGS: dict[int | tuple[str, int], Lower] = {
    _O.ADD: _arithmetic("Add"),
    _O.SUB: _arithmetic("Sub"),
    _O.MUL: _arithmetic("Mul"),
    _O.DIV: _arithmetic("Div"),
    _O.RELU: _rectifier(1),
    _O.RELU1: _rectifier(2),
    _O.RELU6: _rectifier(3),
    _O.LOGISTIC: _curve("Sigmoid"),
    _O.TANH: _curve("Tanh"),
    _O.HARD_SWISH: _unary("HardSwish"),
    _O.ELU: _elu,
    _O.ABS: _unary("Abs"),
    _O.EXP: _unary("Exp"),
    _O.FLOOR: _unary("Floor"),
    _O.LOG: _unary("Log"),
    _O.NEG: _unary("Neg"),
    _O.SIN: _unary("Sin"),
    _O.SQRT: _unary("Sqrt"),
    _O.RSQRT: _unary("Sqrt", "Reciprocal"),
    _O.LOGICAL_NOT: _unary("Not"),
    _O.POW: _binary("Pow"),
    _O.MAXIMUM: _binary("Max"),
    _O.MINIMUM: _binary("Min"),
    _O.PRELU: _prelu,
    _O.EQUAL: _binary("Equal"),
    _O.NOT_EQUAL: _binary("Equal", "Not"),
    _O.GREATER: _binary("Greater"),
    _O.GREATER_EQUAL: _binary("GreaterOrEqual"),
    _O.LESS: _binary("Less"),
    _O.LESS_EQUAL: _binary("LessOrEqual"),
    _O.LOGICAL_AND: _binary("And"),
    _O.LOGICAL_OR: _binary("Or"),
    _O.SELECT: _select,
    _O.SOFTMAX: _softmax("Softmax"),
    _O.LOG_SOFTMAX: _softmax("LogSoftmax"),
    _O.MEAN: _reduce("ReduceMean"),
    _O.REDUCE_SUM: _reduce("ReduceSum", axes_as_input=True),
    _O.REDUCE_MAX: _reduce("ReduceMax"),
    _O.REDUCE_MIN: _reduce("ReduceMin"),
    _O.REDUCE_PROD: _reduce("ReduceProd"),
    _O.ARGMAX: _extreme("ArgMax"),
    _O.ARGMIN: _extreme("ArgMin"),
    _O.QUANTIZE: _requantize,
    _O.DEQUANTIZE: _requantize,
    _O.CAST: _cast,
    _O.L2_NORMALIZATION: _l2_normalization,
    _O.LOCAL_RESPONSE_NORMALIZATION: _response_normalization,
    _O.INSTANCE_NORMALIZATION: _instance_normalization,
}
"""How each operation becomes nodes."""
