"""Recurrent operators: a variable tensor is a state of the model, which the operator updates."""

from __future__ import annotations

from nnasync._core.importers.tflite.converter import FLOATS, Converter, Kinds, option
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo
from nnasync._core.model import ModelBuilder, Value
from nnasync._core.model.graph import Input
from nnasync.errors import ModelError
from nnasync.hal import OperationType

_ACTIVATIONS = (0, 1, 3, 4, 6)
"""Activations of recurrent operations, which have TFLite's numbers in the HAL."""

_STATES = {
    "LSTM": (18, 19),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (18, 19),
    "RNN": (4,),
    "UNIDIRECTIONAL_SEQUENCE_RNN": (4,),
    "SVDF": (4,),
    "BIDIRECTIONAL_SEQUENCE_RNN": (4, 8),
    "BIDIRECTIONAL_SEQUENCE_LSTM": (35, 36, 37, 38),
}
"""The inputs that are states."""


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


def _refuse(graph: Graph, operator: OperatorInfo) -> str | None:
    if operator.options.get("KernelType"):
        return "of the basic kernel type"
    if operator.options.get("DiagonalRecurrentTensors"):
        return "with diagonal recurrent tensors"
    return refuse_recurrent(graph, operator, states=_STATES[operator.name])


def _rnn(tensors: Tensors, operator: OperatorInfo) -> None:
    inputs = [_gate(tensors, operator, position) for position in range(5)]
    act = option(operator, "FusedActivationFunction")
    values = tensors.emit(operator, OperationType.RNN, [*inputs, act], results=2, position=1)
    update(tensors, operator, 4, values[0])


def _svdf(tensors: Tensors, operator: OperatorInfo) -> None:
    inputs = [_gate(tensors, operator, position) for position in range(5)]
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


def _sequence_rnn(tensors: Tensors, operator: OperatorInfo) -> None:
    inputs: list[Input] = [_gate(tensors, operator, position) for position in range(5)]
    act = option(operator, "FusedActivationFunction")
    inputs += [act, int(bool(option(operator, "TimeMajor")))]
    type = OperationType.UNIDIRECTIONAL_SEQUENCE_RNN
    state = {1: tensors.described(operator.inputs[4])}
    values = tensors.emit(operator, type, inputs, results=2, others=state)
    update(tensors, operator, 4, values[1])


def _both_ways_rnn(tensors: Tensors, operator: OperatorInfo) -> None:
    """Two networks, one of which reads the sequence from its end."""
    inputs: list[Input] = [_gate(tensors, operator, position) for position in range(12)]
    names = ("FusedActivationFunction", "TimeMajor", "MergeOutputs")
    act, time_major, merge = (option(operator, name) for name in names)
    inputs += [act, bool(time_major), bool(merge)]
    _both_ways(tensors, operator, OperationType.BIDIRECTIONAL_SEQUENCE_RNN, inputs, merge=merge)


def _both_ways_lstm(tensors: Tensors, operator: OperatorInfo) -> None:
    inputs: list[Input] = [_gate(tensors, operator, position) for position in range(48)]
    merge, time_major = (option(operator, name) for name in ("MergeOutputs", "TimeMajor"))
    inputs += [*_clips(operator), bool(merge), bool(time_major), *[None] * 8]
    _both_ways(tensors, operator, OperationType.BIDIRECTIONAL_SEQUENCE_LSTM, inputs, merge=merge)


def _both_ways(
    tensors: Tensors,
    operator: OperatorInfo,
    type: OperationType,
    inputs: list[Input],
    *,
    merge: bool,
) -> None:
    states = _STATES[operator.name]
    results = 1 if merge else 2
    stated = [tensors.described(index) for index in operator.outputs[:results]]
    further = [tensors.described(operator.inputs[position]) for position in states]
    values = tensors.builder.operation_outputs(type, *inputs, outputs=[*stated, *further])
    tensors.define_all(operator, values[:results])
    for position, value in zip(states, values[results:], strict=True):
        update(tensors, operator, position, value)


def refuse_recurrent(graph: Graph, operator: OperatorInfo, states: tuple[int, ...]) -> str | None:
    """Returns why states or activation of a recurrent operator have no counterpart, or None."""
    for position in states:
        if position >= len(operator.inputs) or operator.inputs[position] < 0:
            return "without a state"
        if not graph.tensors[operator.inputs[position]].is_variable:
            return "with a state that is no variable tensor"
    if operator.options["FusedActivationFunction"] not in _ACTIVATIONS:
        return f"with activation {operator.options['FusedActivationFunction']}"
    return None


def _gates(tensors: Tensors, operator: OperatorInfo) -> list[Input]:
    return [_gate(tensors, operator, position) for position in range(20)]


def _gate(tensors: Tensors, operator: OperatorInfo, position: int) -> Value | None:
    """An input that may be left out, or may be weights of 8 bits."""
    if position >= len(operator.inputs) or operator.inputs[position] < 0:
        return None
    if position in _STATES[operator.name]:
        return tensors.input(operator, position)
    return tensors.weights(operator, position)


def _clips(operator: OperatorInfo) -> list[Input]:
    clips = [float(option(operator, name)) for name in ("CellClip", "ProjClip")]
    return [option(operator, "FusedActivationFunction"), *clips]


def _layer_norm(tensors: Tensors, operator: OperatorInfo) -> list[Input]:
    """The weights of layer normalization, which are there together or not at all."""
    weights: list[Input] = [tensors.optional(operator, position) for position in range(20, 24)]
    return weights if any(weight is not None for weight in weights) else []


def update(tensors: Tensors, operator: OperatorInfo, position: int, new: Value) -> None:
    """Make a value the next state of the input at `position`."""
    if not isinstance(tensors.builder, ModelBuilder):
        raise ModelError("has a state inside a part")
    tensors.builder.update(tensors.input(operator, position), new)


_GATES = ("INT8",) * 8
_WEIGHTED: Kinds = (
    *FLOATS,
    ("FLOAT32", "INT8", "INT8", "FLOAT32"),
    ("FLOAT32", "UINT8", "UINT8", "FLOAT32"),
)
_LSTM: Kinds = (
    *FLOATS,
    ("FLOAT32", *_GATES, *("FLOAT32",) * 7, "INT8", "FLOAT32"),
    ("FLOAT32", *_GATES, *("INT8",) * 3, *("FLOAT32",) * 4, "INT8", "FLOAT32"),
)

CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "LSTM": (Converter(_LSTM, _lstm, _refuse),),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (Converter(_LSTM, _sequence_lstm, _refuse),),
    "BIDIRECTIONAL_SEQUENCE_LSTM": (Converter(FLOATS, _both_ways_lstm, _refuse),),
    "RNN": (Converter(_WEIGHTED, _rnn, _refuse),),
    "UNIDIRECTIONAL_SEQUENCE_RNN": (Converter(_WEIGHTED, _sequence_rnn, _refuse),),
    "BIDIRECTIONAL_SEQUENCE_RNN": (Converter(FLOATS, _both_ways_rnn, _refuse),),
    "SVDF": (Converter(_WEIGHTED, _svdf, _refuse),),
}
