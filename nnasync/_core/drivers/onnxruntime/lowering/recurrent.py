"""UNIDIRECTIONAL_SEQUENCE_LSTM as ONNX's LSTM, where that has all of it."""

from __future__ import annotations

import numpy as np

from nnasync._core.drivers.onnxruntime.lowering.call import OperationCall, OrtUnsupported
from nnasync._core.drivers.onnxruntime.lowering.emitter import Emitter
from nnasync._core.drivers.onnxruntime.lowering.windows import Lower
from nnasync.hal import Array, OperationType

_TANH = 4
_GATES = (0, 3, 1, 2)
"""Input, output, forget and cell gate, where the HAL has input, forget, cell and output."""
_PEEPHOLES = (0, 2, 1)
_WEIGHTS, _RECURRENT, _PEEPHOLE, _BIAS = 1, 5, 9, 12
_PROJECTION, _STATE, _CELL_STATE = 16, 18, 19
_ACTIVATION, _CLIPS, _TIME_MAJOR, _NORMS = 20, (21, 22), 23, range(24, 28)
_SWAPPED = [1, 0, 2]


def _lstm(emitter: Emitter, call: OperationCall) -> None:
    _check(call)
    weights, recurrent = (
        np.concatenate([_constant(call, first + gate) for gate in _GATES])[None]
        for first in (_WEIGHTS, _RECURRENT)
    )
    bias = np.concatenate([_constant(call, _BIAS + gate) for gate in _GATES])
    hidden = recurrent.shape[2]
    is_time_major = call.flag(_TIME_MAJOR)
    x = emitter.real(call.inputs[0])
    x = x if is_time_major else emitter.node("Transpose", [x], perm=_SWAPPED)
    inputs = [
        x,
        emitter.constant(weights),
        emitter.constant(recurrent),
        emitter.constant(np.concatenate([bias, np.zeros_like(bias)])[None]),
        "",
        *(_state(emitter, call, place) for place in (_STATE, _CELL_STATE)),
    ]
    if call.has(_PEEPHOLE):
        found = [_constant(call, _PEEPHOLE + gate) for gate in _PEEPHOLES]
        inputs.append(emitter.constant(np.concatenate(found)[None]))
    y, *states = emitter.nodes_of("LSTM", inputs, 3, hidden_size=hidden)
    y = emitter.node("Squeeze", [y, emitter.integers([1])])
    y = y if is_time_major else emitter.node("Transpose", [y], perm=_SWAPPED)
    emitter.give_real(call.outputs[0], y)
    for index, name in zip(call.outputs[1:], states, strict=False):
        emitter.give_real(index, emitter.node("Squeeze", [name, emitter.integers([0])]))


def _check(call: OperationCall) -> None:
    """Unsupported for what ONNX's LSTM has no counterpart of."""
    if call.integer(_ACTIVATION) != _TANH or any(call.number(place) for place in _CLIPS):
        raise OrtUnsupported("has another activation than tanh, or clips")
    if call.has(_PROJECTION) or any(call.has(place) for place in _NORMS):
        raise OrtUnsupported("has a projection or layer norm")
    peepholes = {call.has(_PEEPHOLE + gate) for gate in range(3)}
    if not call.has(_WEIGHTS) or len(peepholes) > 1:
        raise OrtUnsupported("has no input gate, or not all peepholes")


def _constant(call: OperationCall, place: int) -> Array:
    return call.array(place).astype(np.float32)


def _state(emitter: Emitter, call: OperationCall, place: int) -> str:
    """A state as [1, batches, hidden]."""
    return emitter.reshaped(emitter.real(call.inputs[place]), (1, *call.shape(place)))


LOWERINGS: dict[int | tuple[str, int], Lower] = {OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM: _lstm}
"""How each operation becomes nodes."""
