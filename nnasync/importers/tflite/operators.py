"""How each TFLite operator becomes operations: a small function per family, and their table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nnasync.errors import ModelError
from nnasync.formats.tflite import (
    ACTIVATIONS,
    OPERATORS,
    PADDINGS,
    RECURRENT_ACTIVATIONS,
)
from nnasync.hal import OperandType, OperationType, Shape, Struct
from nnasync.importers.tflite.reader import Graph, OperatorInfo
from nnasync.importers.tflite.tensors import Tensors
from nnasync.kernels.operation import Tensor
from nnasync.model import Value
from nnasync.model.graph import Input, int32_array
from nnasync.model.layers import bias_scale

__all__ = ["CONVERTERS", "Converter", "option", "refuse_recurrent", "update"]

Convert = Callable[[Tensors, OperatorInfo], None]
Refuse = Callable[[Graph, OperatorInfo], str | None]


def _refuse_fused(graph: Graph, operator: OperatorInfo) -> str | None:
    """Why the parameters of an operator have no counterpart, or None."""
    fused = operator.options.get("FusedActivationFunction", 0)
    if fused not in ACTIVATIONS:
        return f"with fused activation {fused}"
    return None


class Converter(Struct, frozen=True):
    """Turns one kind of operator into operations, and says when it cannot."""

    convert: Convert
    refuse: Refuse = _refuse_fused


def _unary(tensors: Tensors, operator: OperatorInfo) -> None:
    """One input and no parameters: logistic, tanh, hard swish, logarithm."""
    tensors.emit(operator, OPERATORS[operator.name].type, [tensors.input(operator, 0)])


def _clamp(tensors: Tensors, operator: OperatorInfo) -> None:
    """The rectifiers, whose result the HAL wants quantised like the input."""
    x = tensors.input(operator, 0)
    y = tensors.builder.operation(OPERATORS[operator.name].type, x, like=x)
    _define_rescaled(tensors, operator, y)


def _arithmetic(tensors: Tensors, operator: OperatorInfo) -> None:
    a, b = tensors.input(operator, 0), tensors.input(operator, 1)
    tensors.emit(operator, OPERATORS[operator.name].type, [a, b, _fused(operator)])


def _convolution(tensors: Tensors, operator: OperatorInfo) -> None:
    x, weights = tensors.input(operator, 0), tensors.input(operator, 1)
    channels = weights.shape[0 if operator.name == "CONV_2D" else -1]
    bias = tensors.bias(operator, 2, bias_scale(x.scale, weights.scale), channels)
    inputs: list[Input] = [x, weights, bias, *_window(operator)]
    if operator.name == "DEPTHWISE_CONV_2D":
        inputs.append(option(operator, "DepthMultiplier") or channels // max(x.shape[-1], 1))
    inputs.append(_fused(operator))
    dilation = (option(operator, "DilationWFactor"), option(operator, "DilationHFactor"))
    if dilation != (1, 1):
        inputs += [False, *dilation]
    tensors.emit(operator, OPERATORS[operator.name].type, inputs)


def _refuse_convolution(graph: Graph, operator: OperatorInfo) -> str | None:
    return _refuse_weights(graph, operator, rank=4) or _refuse_fused(graph, operator)


def _refuse_weights(graph: Graph, operator: OperatorInfo, *, rank: int) -> str | None:
    given = [*operator.inputs, -1, -1, -1][:3]
    weights = graph.tensors[given[1]]
    if given[1] < 0 or len(weights.shape) != rank:
        return f"without weights of rank {rank}"
    if given[2] < 0 and not weights.length:
        return "without a bias and with computed weights"
    return None


def _fully_connected(tensors: Tensors, operator: OperatorInfo) -> None:
    x, weights = tensors.input(operator, 0), tensors.input(operator, 1)
    units, size = weights.shape
    if len(x.shape) < 2 or len(x.shape) > 4:
        x = _reshaped(tensors, x, (math.prod(x.shape) // max(size, 1), size))
    bias = tensors.bias(operator, 2, bias_scale(x.scale, weights.scale), units)
    described = tensors.described(tensors.result(operator))
    batch = math.prod(x.shape) // max(size, 1)
    inputs: list[Input] = [x, weights, bias, _fused(operator)]
    if described.shape in ((), (batch, units)):
        tensors.emit(operator, OperationType.FULLY_CONNECTED, inputs)
        return
    flat = _with_shape(described, (batch, units))
    y = tensors.builder.operation(OperationType.FULLY_CONNECTED, *inputs, output=flat)
    tensors.emit(operator, OperationType.RESHAPE, [y, int32_array(_target(described.shape, y))])


def _refuse_fully_connected(graph: Graph, operator: OperatorInfo) -> str | None:
    fault = _refuse_weights(graph, operator, rank=2)
    if fault is not None:
        return fault
    if operator.options["WeightsFormat"]:
        return "with shuffled weights"
    if len(graph.tensors[operator.inputs[1]].quantization.scales) > 1:
        return "with weights quantised per channel"
    return _refuse_fused(graph, operator)


def _pool(tensors: Tensors, operator: OperatorInfo) -> None:
    size = (option(operator, "FilterWidth"), option(operator, "FilterHeight"))
    inputs = [tensors.input(operator, 0), *_window(operator), *size, _fused(operator)]
    tensors.emit(operator, OPERATORS[operator.name].type, inputs)


def _softmax(tensors: Tensors, operator: OperatorInfo) -> None:
    beta = float(option(operator, "Beta"))
    tensors.emit(operator, OperationType.SOFTMAX, [tensors.input(operator, 0), beta])


def _reshape(tensors: Tensors, operator: OperatorInfo) -> None:
    """The target shape is a constant, an option, computed, or only that of the result."""
    x = tensors.input(operator, 0)
    declared = tensors.graph.tensors[tensors.result(operator)].shape
    constant = tensors.integers(operator, 1)
    if constant is None and tensors.is_given(operator, 1):
        tensors.emit(operator, OperationType.RESHAPE, [x, tensors.input(operator, 1)])
        return
    target = tuple(constant or option(operator, "NewShape") or declared)
    tensors.emit(operator, OperationType.RESHAPE, [x, int32_array(_target(target, x))])


def _concatenation(tensors: Tensors, operator: OperatorInfo) -> None:
    values = [tensors.input(operator, position) for position in range(len(operator.inputs))]
    axis = _axis(operator.options["Axis"], values[0])
    tensors.emit(operator, OperationType.CONCATENATION, [*values, axis])


def _refuse_activation(graph: Graph, operator: OperatorInfo) -> str | None:
    if operator.options["FusedActivationFunction"]:
        return f"with fused activation {operator.options['FusedActivationFunction']}"
    return None


def _mean(tensors: Tensors, operator: OperatorInfo) -> None:
    x = tensors.input(operator, 0)
    keep_dims = int(bool(operator.options["KeepDims"]))
    axes = tensors.input(operator, 1)
    y = tensors.builder.operation(OperationType.MEAN, x, axes, keep_dims, like=x)
    _define_rescaled(tensors, operator, y)


def _indexed(tensors: Tensors, operator: OperatorInfo) -> None:
    """A tensor and integer tensors: pad, slice."""
    values = [tensors.input(operator, position) for position in range(len(operator.inputs))]
    tensors.emit(operator, OPERATORS[operator.name].type, values)


def _quantize(tensors: Tensors, operator: OperatorInfo) -> None:
    """To 8 bits from floats, or from 8 bits of another scale."""
    x = tensors.input(operator, 0)
    if x.type != OperandType.TENSOR_FLOAT32:
        x = _dequantized(tensors, x)
    tensors.emit(operator, OperationType.QUANTIZE, [x])


def _dequantize(tensors: Tensors, operator: OperatorInfo) -> None:
    """To floats; a float16 constant becomes a float32 constant."""
    index = operator.inputs[0]
    if index < 0 or tensors.graph.tensors[index].type != "FLOAT16":
        tensors.emit(operator, OperationType.DEQUANTIZE, [tensors.input(operator, 0)])
        return
    numbers = tensors.numbers(index)
    if numbers is None:
        raise ModelError("a float16 tensor must be a constant")
    name = tensors.graph.tensors[tensors.result(operator)].name
    tensors.define(operator, tensors.builder.constant(numbers.astype(np.float32), name=name))


def _lstm(tensors: Tensors, operator: OperatorInfo) -> None:
    """One step of an LSTM: its state is in inputs 18 and 19."""
    inputs = [*_gates(tensors, operator), *_clips(operator), *_layer_norm(tensors, operator)]
    values = tensors.emit(operator, OperationType.LSTM, inputs, results=4, position=3)
    update(tensors, operator, 18, values[1])
    update(tensors, operator, 19, values[2])


def _sequence_lstm(tensors: Tensors, operator: OperatorInfo) -> None:
    time_major = bool(operator.options["TimeMajor"])
    norm = [tensors.optional(operator, position) for position in range(20, 24)]
    inputs: list[Input] = [*_gates(tensors, operator), *_clips(operator), time_major, *norm]
    type = OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM
    values = tensors.emit(operator, type, inputs, results=3)
    update(tensors, operator, 18, values[1])
    update(tensors, operator, 19, values[2])


def _refuse_lstm(graph: Graph, operator: OperatorInfo) -> str | None:
    if operator.options.get("KernelType"):
        return "of the basic kernel type"
    if operator.options.get("DiagonalRecurrentTensors"):
        return "with diagonal recurrent tensors"
    return refuse_recurrent(graph, operator, states=(18, 19))


def _rnn(tensors: Tensors, operator: OperatorInfo) -> None:
    inputs = [tensors.input(operator, position) for position in range(5)]
    act = option(operator, "FusedActivationFunction")
    values = tensors.emit(operator, OperationType.RNN, [*inputs, act], results=2, position=1)
    update(tensors, operator, 4, values[0])


def _refuse_rnn(graph: Graph, operator: OperatorInfo) -> str | None:
    return refuse_recurrent(graph, operator, states=(4,))


def _svdf(tensors: Tensors, operator: OperatorInfo) -> None:
    inputs = [tensors.optional(operator, position) for position in range(5)]
    options = [option(operator, "Rank"), option(operator, "FusedActivationFunction")]
    state = tensors.described(operator.inputs[4])
    values = tensors.emit(
        operator,
        OperationType.SVDF,
        [*inputs, *options],
        results=2,
        position=1,
        others={0: state},
    )
    update(tensors, operator, 4, values[0])


def _refuse_svdf(graph: Graph, operator: OperatorInfo) -> str | None:
    return refuse_recurrent(graph, operator, states=(4,))


def refuse_recurrent(graph: Graph, operator: OperatorInfo, states: tuple[int, ...]) -> str | None:
    """Why states or activation of a recurrent operator have no counterpart, or None."""
    for position in states:
        if position >= len(operator.inputs) or operator.inputs[position] < 0:
            return "without a state"
        if not graph.tensors[operator.inputs[position]].is_variable:
            return "with a state that is no variable tensor"
    if operator.options["FusedActivationFunction"] not in RECURRENT_ACTIVATIONS:
        return f"with activation {operator.options['FusedActivationFunction']}"
    return None


def _gates(tensors: Tensors, operator: OperatorInfo) -> list[Input]:
    return [tensors.optional(operator, position) for position in range(20)]


def _clips(operator: OperatorInfo) -> list[Input]:
    clips = [float(option(operator, name)) for name in ("CellClip", "ProjClip")]
    return [option(operator, "FusedActivationFunction"), *clips]


def _layer_norm(tensors: Tensors, operator: OperatorInfo) -> list[Input]:
    """The weights of layer normalisation, which are there together or not at all."""
    weights: list[Input] = [tensors.optional(operator, position) for position in range(20, 24)]
    return weights if any(weight is not None for weight in weights) else []


def update(tensors: Tensors, operator: OperatorInfo, position: int, new: Value) -> None:
    """Make a value the next state of the input at `position`."""
    tensors.builder.update(tensors.input(operator, position), new)


def option(operator: OperatorInfo, name: str) -> Any:
    """An operator's parameter by the schema's name."""
    return operator.options[name]


def _fused(operator: OperatorInfo) -> int:
    return int(ACTIVATIONS[option(operator, "FusedActivationFunction")])


def _window(operator: OperatorInfo) -> list[Input]:
    """Padding scheme and strides."""
    scheme = PADDINGS.get(option(operator, "Padding"))
    if scheme is None:
        raise ModelError(f"padding {option(operator, 'Padding')} is neither SAME nor VALID")
    return [int(scheme), option(operator, "StrideW"), option(operator, "StrideH")]


def _axis(axis: Any, x: Value) -> int:
    rank = len(x.shape)
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} is not one of a tensor of rank {rank}")
    return int(axis) % rank


def _target(shape: Shape, x: Value) -> Shape:
    """A shape to give to x: the HAL has no rank 0, which in TFLite is a single number."""
    return shape or (1,) * (math.prod(x.shape) == 1)


def _with_shape(tensor: Tensor, shape: Shape) -> Tensor:
    return Tensor(type=tensor.type, shape=shape, scale=tensor.scale, zero_point=tensor.zero_point)


def _reshaped(tensors: Tensors, x: Value, shape: Shape) -> Value:
    return tensors.builder.operation(OperationType.RESHAPE, x, int32_array(shape), like=x)


def _dequantized(tensors: Tensors, x: Value) -> Value:
    result = Tensor(type=OperandType.TENSOR_FLOAT32, shape=x.shape)
    return tensors.builder.operation(OperationType.DEQUANTIZE, x, output=result)


def _define_rescaled(tensors: Tensors, operator: OperatorInfo, y: Value) -> None:
    """Make y the operator's output, quantised as the file says."""
    wanted = tensors.described(tensors.result(operator))
    if (wanted.scale, wanted.zero_point) == (y.scale, y.zero_point):
        tensors.define(operator, y)
    else:
        tensors.emit(operator, OperationType.QUANTIZE, [_dequantized(tensors, y)])


CONVERTERS: dict[str, Converter] = {
    "ADD": Converter(_arithmetic),
    "SUB": Converter(_arithmetic),
    "MUL": Converter(_arithmetic),
    "RELU": Converter(_clamp),
    "RELU_N1_TO_1": Converter(_clamp),
    "RELU6": Converter(_clamp),
    "LOGISTIC": Converter(_unary),
    "TANH": Converter(_unary),
    "HARD_SWISH": Converter(_unary),
    "LOG": Converter(_unary),
    "CONV_2D": Converter(_convolution, _refuse_convolution),
    "DEPTHWISE_CONV_2D": Converter(_convolution, _refuse_convolution),
    "FULLY_CONNECTED": Converter(_fully_connected, _refuse_fully_connected),
    "AVERAGE_POOL_2D": Converter(_pool),
    "MAX_POOL_2D": Converter(_pool),
    "SOFTMAX": Converter(_softmax),
    "RESHAPE": Converter(_reshape),
    "CONCATENATION": Converter(_concatenation, _refuse_activation),
    "MEAN": Converter(_mean),
    "PAD": Converter(_indexed),
    "SLICE": Converter(_indexed),
    "QUANTIZE": Converter(_quantize),
    "DEQUANTIZE": Converter(_dequantize),
    "LSTM": Converter(_lstm, _refuse_lstm),
    "RNN": Converter(_rnn, _refuse_rnn),
    "SVDF": Converter(_svdf, _refuse_svdf),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": Converter(_sequence_lstm, _refuse_lstm),
}
