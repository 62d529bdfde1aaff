"""Samplers of recurrent operations: RNN, SVDF and the LSTM family, with their optional operands."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from nnasync import hal
from nnasync.conformance.random_graphs.sketch import Pick, Quantization, Sampler
from nnasync.hal import OperandType, OperationType, Shape, Struct

_ACTIVATIONS = (0, 1, 3, 4, 6)
"""NONE, RELU, RELU6, TANH and SIGMOID."""
_LARGEST = 10
_CELL_SCALES = tuple(2.0**-exponent for exponent in (11, 12, 15))
_DATA: Quantization = (1 / 128, 128)
_STATE_16BIT: Quantization = (2.0**-11, 0)


def _size(pick: Pick) -> int:
    return pick.integer(1, _LARGEST)


def _sequence(pick: Pick, batches: int, features: int) -> Shape:
    """The shape of a sequence; gives the flag that says which of times and batches is first."""
    major = pick.chance(0.5)
    pick.scalar("is_time_major", major)
    times = pick.integer(1, 6)
    return (times, batches, features) if major else (batches, times, features)


# -- RNN and SVDF


def _recurrent_cell(pick: Pick, prefix: str, batches: int, features: int, units: int) -> None:
    pick.tensor(f"{prefix}weights", (units, features))
    pick.tensor(f"{prefix}recurrent_weights", (units, units))
    pick.tensor(f"{prefix}bias", (units,))
    pick.tensor(f"{prefix}hidden_state_in", (batches, units))


def _rnn(pick: Pick) -> None:
    batches, features = _size(pick), _size(pick)
    is_sequence = pick.has("is_time_major")
    shape = _sequence(pick, batches, features) if is_sequence else (batches, features)
    pick.tensor("input", shape)
    _recurrent_cell(pick, "", batches, features, _size(pick))
    pick.scalar("activation", pick.choose(_ACTIVATIONS))


def _bidirectional_rnn(pick: Pick) -> None:
    """The auxiliary input is left out, feeds the backward direction, or has weights of its own."""
    batches, features, units = _size(pick), _size(pick), (_size(pick), _size(pick))
    shape = _sequence(pick, batches, features)
    pick.tensor("input", shape)
    linking = pick.choose(("none", "parallel", "cross"))
    aux = features if linking == "cross" else _size(pick)
    backward = aux if linking == "parallel" else features
    _recurrent_cell(pick, "fw_", batches, features, units[0])
    _recurrent_cell(pick, "bw_", batches, backward, units[1])
    _auxiliary(pick, shape, aux, linking)
    for prefix, size in zip(("fw_", "bw_"), units, strict=True):
        name = f"{prefix}aux_input_weights"
        if linking == "cross":
            pick.tensor(name, (size, aux))
        else:
            pick.omit(name)
    pick.scalar("activation", pick.choose(_ACTIVATIONS))
    pick.scalar("merge_outputs", _has_merged_output(pick))


def _has_merged_output(pick: Pick) -> bool:
    return pick.signature.outputs[0].name == "output"


def _auxiliary(pick: Pick, shape: Shape, features: int, linking: str) -> None:
    if linking == "none":
        pick.omit("aux_input")
    else:
        pick.tensor("aux_input", (*shape[:2], features))


def _svdf(pick: Pick) -> None:
    batches, features, units = _size(pick), _size(pick), _size(pick)
    rank, memory = pick.integer(1, 3), _size(pick)
    filters = units * rank
    pick.tensor("input", (batches, features))
    pick.tensor("weights_feature", (filters, features))
    pick.tensor("weights_time", (filters, memory))
    if pick.chance(0.5):
        pick.tensor("bias", (units,))
    else:
        pick.omit("bias")
    pick.tensor("state_in", (batches, memory * filters))
    pick.scalar("rank", rank)
    pick.scalar("activation", pick.choose(_ACTIVATIONS))


# -- LSTM


class _Cell(Struct, frozen=True):
    """Sizes and features of an LSTM cell; `coupled` is without an input gate."""

    batches: int
    features: int
    units: int
    outputs: int
    aux: int
    coupled: bool
    peephole: bool
    projection: bool
    norm: bool

    def shape(self, role: str) -> Shape | None:
        """The shape of an operand by its name without a direction; None where it is left out."""
        if self.coupled and ("to_input_weights" in role or role.startswith("input_gate_bias")):
            return None
        if role == "input_layer_norm_weights" and self.coupled:
            return None
        if role.endswith("layer_norm_weights"):
            return (self.units,) if self.norm else None
        if role.startswith("cell_to"):
            return (self.units,) if self.peephole else None
        if role.startswith("aux_input_to"):
            return (self.units, self.aux) if self.aux else None
        return self._plain_shape(role)

    def _plain_shape(self, role: str) -> Shape | None:
        if role.startswith("input_to"):
            return self.units, self.features
        if role.startswith("recurrent_to"):
            return self.units, self.outputs
        if role == "projection_weights":
            return (self.outputs, self.units) if self.projection else None
        if role == "projection_bias":
            return (self.outputs,) if self.projection and self.outputs % 2 else None
        if role == "output_state_in":
            return self.batches, self.outputs
        if role == "cell_state_in":
            return self.batches, self.units
        return (self.units,)


def _draw_cell(pick: Pick, batches: int, features: int, aux: int = 0) -> _Cell:
    units, projection = _size(pick), pick.chance(0.4)
    return _Cell(
        batches=batches,
        features=features,
        units=units,
        outputs=_size(pick) if projection else units,
        aux=aux,
        coupled=pick.chance(0.4),
        peephole=pick.chance(0.4),
        projection=projection,
        norm=_has_norm(pick) and pick.chance(0.5),
    )


def _has_norm(pick: Pick) -> bool:
    return pick.has("forget_layer_norm_weights") or pick.has("fw_forget_layer_norm_weights")


def _roles(pick: Pick, prefix: str) -> list[str]:
    """The operands of a cell but its input, by their names without the direction."""
    return [
        parameter.name.removeprefix(prefix)
        for parameter in pick.signature.inputs
        if parameter.name.startswith(prefix)
        and parameter.name not in ("input", "aux_input")
        and not hal.is_scalar(parameter.type)
    ]


def _give_cell(pick: Pick, cell: _Cell, prefix: str = "") -> None:
    for role in _roles(pick, prefix):
        shape = cell.shape(role)
        if shape is None:
            pick.omit(prefix + role)
        else:
            pick.tensor(prefix + role, shape)


def _give_options(pick: Pick) -> None:
    pick.scalar("activation", pick.choose(_ACTIVATIONS))
    for name in ("cell_clip", "projection_clip"):
        pick.scalar(name, pick.choose((0.0, pick.uniform(0.1, 4))))


def _lstm(pick: Pick) -> None:
    """The first output of a single step is scratch memory, whose content is not settled."""
    batches, features = _size(pick), _size(pick)
    is_sequence = pick.has("is_time_major")
    shape = _sequence(pick, batches, features) if is_sequence else (batches, features)
    pick.tensor("input", shape)
    _give_cell(pick, _draw_cell(pick, batches, features))
    _give_options(pick)
    if not is_sequence:
        pick.private(0)


def _bidirectional_lstm(pick: Pick) -> None:
    batches, features = _size(pick), _size(pick)
    shape = _sequence(pick, batches, features)
    pick.tensor("input", shape)
    linking = pick.choose(("none", "parallel", "cross"))
    aux = features if linking == "cross" else _size(pick)
    _auxiliary(pick, shape, aux, linking)
    forward = _draw_cell(pick, batches, features, aux if linking == "cross" else 0)
    units = _size(pick)
    backward = msgspec.structs.replace(
        forward,
        features=aux if linking == "parallel" else features,
        units=units,
        outputs=_size(pick) if forward.projection else units,
    )
    _give_cell(pick, forward, "fw_")
    _give_cell(pick, backward, "bw_")
    _give_options(pick)
    pick.scalar("merge_outputs", _has_merged_output(pick))


# -- quantized LSTM


def _lstm_16bit(pick: Pick) -> None:
    batches, features, units = _size(pick), _size(pick), _size(pick)
    weights = (pick.uniform(0.005, 0.02), pick.integer(0, 255))
    bias = (float(np.float32(np.float32(weights[0]) / np.float32(128))), 0)
    pick.tensor("input", (batches, features), quantization=_DATA)
    for gate in ("input", "forget", "cell", "output"):
        pick.tensor(f"input_to_{gate}_weights", (units, features), quantization=weights)
        pick.tensor(f"recurrent_to_{gate}_weights", (units, units), quantization=weights)
    for name in ("input_gate_bias", "forget_gate_bias", "cell_bias", "output_gate_bias"):
        pick.tensor(name, (units,), quantization=bias)
    pick.tensor("cell_state_in", (batches, units), quantization=_STATE_16BIT)
    pick.tensor("output_in", (batches, units), quantization=_DATA)
    pick.output(0, _STATE_16BIT)
    pick.output(1, _DATA)


def _quantized_lstm(pick: Pick) -> None:
    """Scales are as a quantizer would choose them, so that gates are not all open or shut."""
    batches, features = _size(pick), _size(pick)
    data = (pick.uniform(0.005, 0.02), pick.integer(-128, 127))
    hidden = (pick.uniform(0.005, 0.02), pick.integer(-128, 127))
    state = (pick.choose(_CELL_SCALES), 0)
    pick.tensor("input", (batches, features), quantization=data)
    cell = _draw_cell(pick, batches, features)
    for role in _roles(pick, ""):
        shape = cell.shape(role)
        if shape is None:
            pick.omit(role)
        elif role in ("output_state_in", "cell_state_in"):
            quantization = hidden if role == "output_state_in" else state
            pick.tensor(role, shape, quantization=quantization)
        elif pick.type_of(role) == OperandType.TENSOR_INT32:
            pick.tensor(role, shape, quantization=(0.0, 0))
        else:
            pick.tensor(role, shape, quantization=_weight_quantization(pick, role))
    for name in ("cell_clip", "projection_clip"):
        pick.scalar(name, pick.choose((0.0, pick.uniform(0.1, 1))))
    for gate in ("input", "forget", "cell", "output"):
        pick.scalar(f"{gate}_intermediate_scale", pick.uniform(0.001, 0.01))
    pick.scalar("hidden_state_zero_point", pick.integer(-128, 127))
    pick.scalar("hidden_state_scale", pick.uniform(0.005, 0.02))
    for position, quantization in enumerate((hidden, state, hidden)):
        pick.output(position, quantization)


def _weight_quantization(pick: Pick, role: str) -> Quantization:
    if pick.type_of(role) == OperandType.TENSOR_QUANT16_SYMM:
        return pick.uniform(0.00005, 0.0005), 0
    return pick.uniform(0.005, 0.02), 0


SAMPLERS: Mapping[OperationType, Sampler] = {
    OperationType.BIDIRECTIONAL_SEQUENCE_LSTM: _bidirectional_lstm,
    OperationType.BIDIRECTIONAL_SEQUENCE_RNN: _bidirectional_rnn,
    OperationType.LSTM: _lstm,
    OperationType.QUANTIZED_16BIT_LSTM: _lstm_16bit,
    OperationType.QUANTIZED_LSTM: _quantized_lstm,
    OperationType.RNN: _rnn,
    OperationType.SVDF: _svdf,
    OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM: _lstm,
    OperationType.UNIDIRECTIONAL_SEQUENCE_RNN: _rnn,
}
