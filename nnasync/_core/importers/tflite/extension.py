"""How TFLite operators on integers that the HAL cannot take become operations of our extension."""

from __future__ import annotations

import math

from nnasync._core.importers.tflite.converter import (
    ACTIVATIONS,
    FLOATS,
    Converter,
    option,
    refuse_nothing,
)
from nnasync._core.importers.tflite.recurrent import refuse_recurrent, update
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo, Quantization
from nnasync._core.model.graph import Input
from nnasync.extensions import TFLITE, TfliteOperation
from nnasync.hal import OperandType
from nnasync.kernels.operation import Tensor

_GATE_SCALE = 2.0**-12
_TANH = 4


def _type(tensors: Tensors, type: TfliteOperation) -> int:
    return tensors.builder.extension_type(TFLITE.name, type)


def _requantize(tensors: Tensors, operator: OperatorInfo) -> None:
    """To integers of another size or scale; of 32 bits they keep the file's scale."""
    result = tensors.described(tensors.result(operator))
    type, x = _type(tensors, TfliteOperation.QUANTIZE), tensors.input(operator, 0)
    if result.type == OperandType.TENSOR_INT32:
        scale = tensors.graph.tensors[tensors.result(operator)].quantization.scales[0]
        result = Tensor(type=result.type, shape=result.shape, scale=scale)
    tensors.define(operator, tensors.builder.operation(type, x, output=result))


def _refuse_requantize(graph: Graph, operator: OperatorInfo) -> str | None:
    for index in (*operator.inputs, *operator.outputs):
        info = graph.tensors[index]
        if index >= 0 and info.type == "INT32" and not _has_one_scale(info.quantization):
            return "of INT32 without one scale and zero point 0"
    return None


def _has_one_scale(quantization: Quantization) -> bool:
    scales = quantization.scales
    return len(scales) == 1 and 0 < scales[0] < math.inf and not any(quantization.zero_points)


def _dequantize(tensors: Tensors, operator: OperatorInfo) -> None:
    type = _type(tensors, TfliteOperation.DEQUANTIZE)
    tensors.emit(operator, type, [tensors.input(operator, 0)])


def _softmax(tensors: Tensors, operator: OperatorInfo) -> None:
    type, beta = _type(tensors, TfliteOperation.SOFTMAX), float(option(operator, "Beta"))
    tensors.emit(operator, type, [tensors.input(operator, 0), beta])


def _svdf(tensors: Tensors, operator: OperatorInfo) -> None:
    by_time = operator.inputs[2]
    words = by_time >= 0 and tensors.graph.tensors[by_time].type == "INT16"
    inputs: list[Input] = [
        tensors.input(operator, 0),
        tensors.symmetric(operator, 1),
        tensors.input(operator, 2) if words else tensors.symmetric(operator, 2),
        tensors.optional(operator, 3),
        tensors.input(operator, 4),
        option(operator, "Rank"),
        int(ACTIVATIONS[option(operator, "FusedActivationFunction")]),
    ]
    state = tensors.described(operator.inputs[4])
    type = _type(tensors, TfliteOperation.SVDF)
    values = tensors.emit(operator, type, inputs, results=2, position=1, others={0: state})
    update(tensors, operator, 4, values[0])


def _refuse_svdf(graph: Graph, operator: OperatorInfo) -> str | None:
    if option(operator, "FusedActivationFunction") not in ACTIVATIONS:
        return f"with activation {option(operator, 'FusedActivationFunction')}"
    return refuse_recurrent(graph, operator, states=(4,))


def _lstm(tensors: Tensors, operator: OperatorInfo) -> None:
    inputs: list[Input] = [tensors.input(operator, 0)]
    for position in range(1, 24):
        weights = position < 9 or position == 16
        read = tensors.symmetric if weights else tensors.optional
        inputs.append(read(operator, position))
    clips = [float(option(operator, name)) for name in ("CellClip", "ProjClip")]
    inputs += [*clips, *_inside(tensors, operator), bool(option(operator, "TimeMajor"))]
    states = {1: tensors.described(operator.inputs[18]), 2: tensors.described(operator.inputs[19])}
    type = _type(tensors, TfliteOperation.UNIDIRECTIONAL_SEQUENCE_LSTM)
    values = tensors.emit(operator, type, inputs, results=3, others=states)
    update(tensors, operator, 18, values[1])
    update(tensors, operator, 19, values[2])


def _inside(tensors: Tensors, operator: OperatorInfo) -> list[Input]:
    """Scales of the four gates, zero point and scale of the hidden state."""
    found = [
        Quantization() if index < 0 else tensors.graph.tensors[index].quantization
        for index in operator.intermediates
    ]
    state = tensors.described(operator.inputs[18])
    hidden: list[Input] = [state.zero_point, state.scale]
    if len(found) > 4 and found[4].scales:
        hidden = [found[4].zero_points[0] if found[4].zero_points else 0, found[4].scales[0]]
    if _has_norm(operator):
        return [*(entry.scales[0] if entry.scales else 0.0 for entry in found[:4]), *hidden]
    return [*[_GATE_SCALE] * 4, *hidden]


def _has_norm(operator: OperatorInfo) -> bool:
    return len(operator.inputs) > 21 and operator.inputs[21] >= 0


def _refuse_lstm(graph: Graph, operator: OperatorInfo) -> str | None:
    if option(operator, "DiagonalRecurrentTensors"):
        return "with diagonal recurrent tensors"
    if option(operator, "FusedActivationFunction") != _TANH:
        return f"with activation {option(operator, 'FusedActivationFunction')}"
    gates = [
        index >= 0 and bool(graph.tensors[index].quantization.scales)
        for index in operator.intermediates
    ]
    if _has_norm(operator) and (len(gates) < 5 or not all(gates[1:5])):
        return "with layer norm and without scales inside"
    return refuse_recurrent(graph, operator, states=(18, 19))


_LSTM_KIND = (
    "INT8",
    *("INT8",) * 8,
    *("INT16",) * 3,
    *("INT32",) * 4,
    "INT8",
    "INT32",
    "INT8",
    "INT16",
    *("INT16",) * 4,
)

CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "QUANTIZE": (
        Converter(FLOATS, _requantize, _refuse_requantize, ("INT16",)),
        Converter(
            (("UINT8",), ("INT8",), ("INT16",), ("INT32",)),
            _requantize,
            _refuse_requantize,
            ("UINT8", "INT8", "INT16", "INT32"),
        ),
    ),
    "DEQUANTIZE": (Converter((("INT16",),), _dequantize, refuse_nothing, ("FLOAT32",)),),
    "SOFTMAX": (
        Converter(
            (("UINT8",), ("INT8",), ("INT16",)),
            _softmax,
            refuse_nothing,
            ("INT16",),
        ),
    ),
    "SVDF": (
        Converter(
            (
                ("INT8", "INT8", "INT8", "INT32", "INT8"),
                ("INT8", "INT8", "INT16", "INT32", "INT16"),
            ),
            _svdf,
            _refuse_svdf,
        ),
    ),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (Converter((_LSTM_KIND,), _lstm, _refuse_lstm),),
}
"""What operations of `extensions.TFLITE` take, where the HAL has none for these types."""
