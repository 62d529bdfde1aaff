"""LSTM layers that run forward."""

from __future__ import annotations

import numpy as np

from nnasync._core.importers.onnx.forms import Convert, is_float
from nnasync._core.importers.onnx.onnx_file import OnnxNode
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope
from nnasync._core.model import Value
from nnasync._core.model.graph import Input, int32_array
from nnasync.errors import ModelError
from nnasync.hal import Array, OperationType, Shape

__all__ = ["CONVERTERS"]

_TANH = 4
_GATES = (0, 2, 3, 1)
"""Input, forget, cell and output gate, where ONNX has input, output, forget and cell."""
_PEEPHOLES = (0, 2, 1)
_USUAL = [b"Sigmoid", b"Tanh", b"Tanh"]


def _lstm(scope: OnnxScope, step: Step) -> None:
    node = step.node
    _check(scope, node)
    x = scope.input(node, 0)
    if len(x.shape) != 3 or not is_float(x):
        raise ModelError(f"has an input of shape {list(x.shape)}")
    hidden = int(node.attribute("hidden_size", 0))
    weights = scope.constant(node, 1, "weights").reshape(4, hidden, -1)
    recurrent = scope.constant(node, 2, "recurrent weights").reshape(4, hidden, hidden)
    bias = np.zeros((4, hidden), weights.dtype)
    if scope.has(node, 3):
        bias = scope.constant(node, 3, "bias").reshape(2, 4, hidden).sum(0, dtype=bias.dtype)
    states = [_state(scope, node, place, (x.shape[1], hidden), bias) for place in (5, 6)]
    real = 0.0
    operands: list[Input] = [
        x,
        *(np.ascontiguousarray(weights[gate]) for gate in _GATES),
        *(np.ascontiguousarray(recurrent[gate]) for gate in _GATES),
        *_peepholes(scope, node, hidden),
        *(np.ascontiguousarray(bias[gate]) for gate in _GATES),
        *(None, None, *states, _TANH, real, real, True),
        *[None] * 4,
    ]
    type = OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM
    y, h, c = scope.builder.operation_outputs(type, *operands, outputs=[None] * 3)
    times, batches = x.shape[0], x.shape[1]
    last = (1, batches, hidden)
    shapes: tuple[Shape, ...] = ((times, 1, batches, hidden), last, last)
    for name, value, shape in zip(node.outputs, (y, h, c), shapes, strict=False):
        if name:
            scope.define(
                name, scope.builder.operation(OperationType.RESHAPE, value, int32_array(shape))
            )


def _check(scope: OnnxScope, node: OnnxNode) -> None:
    """Raise ModelError for what the HAL's operation has no counterpart of."""
    activations = [
        each if isinstance(each, bytes) else str(each).encode()
        for each in node.attribute("activations", _USUAL)
    ]
    if node.attribute("direction", "forward") != "forward" or activations != _USUAL:
        raise ModelError("runs backward too, or has unusual activations")
    if node.attribute("clip", 0.0) or node.attribute("input_forget", 0):
        raise ModelError("clips its gates, or couples them")
    if node.attribute("layout", 0) or scope.has(node, 4):
        raise ModelError("has the batch first, or sequences of several lengths")


def _state(scope: OnnxScope, node: OnnxNode, place: int, shape: Shape, like: Array) -> Value:
    """A state that comes in, zeros where it is left out."""
    if not scope.has(node, place):
        return scope.builder.constant(np.zeros(shape, like.dtype))
    known = scope.array(node.inputs[place])
    if known is not None:
        return scope.builder.constant(np.ascontiguousarray(known.reshape(shape)))
    return scope.builder.operation(
        OperationType.RESHAPE, scope.input(node, place), int32_array(shape)
    )


def _peepholes(scope: OnnxScope, node: OnnxNode, hidden: int) -> list[Input]:
    if not scope.has(node, 7):
        return [None] * 3
    weights = scope.constant(node, 7, "peephole weights").reshape(3, hidden)
    return [np.ascontiguousarray(weights[gate]) for gate in _PEEPHOLES]


CONVERTERS: dict[str, Convert] = {"LSTM": _lstm}
"""How each operator becomes operations."""
