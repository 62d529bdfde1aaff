"""Dense layers and softmax."""

from __future__ import annotations

import numpy as np

from nnasync._core.importers.onnx.forms import Convert, axis_of, is_float
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope
from nnasync._core.importers.onnx.weights import emit_dense, quantized_layer
from nnasync._core.model.graph import int32_array
from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType

__all__ = ["CONVERTERS"]

_SOFTMAX_NEWER = 13
_ZERO_POINTS = {OperandType.TENSOR_QUANT8_ASYMM: 0, OperandType.TENSOR_QUANT8_ASYMM_SIGNED: -128}


def _gemm(scope: OnnxScope, step: Step) -> None:
    node = step.node
    weights = scope.constant(node, 1, "weights")
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    if node.attribute("transA", 0):
        raise ModelError("transposes its input")
    order = (0, 1) if node.attribute("transB", 0) else (1, 0)
    layer = quantized_layer(scope, step, order, 0) if (alpha, beta) == (1.0, 1.0) else None
    target = scope.target(step)
    if layer is not None and target is not None:
        units = layer.weights.shape[0]
        emit_dense(scope, target, layer, (layer.x.shape[0], units), step.activation)
        return
    x, matrix = scope.input(node, 0), np.ascontiguousarray(weights.transpose(order))
    if not is_float(x):
        raise ModelError("multiplies integers")
    if alpha != 1.0:
        matrix = (matrix * alpha).astype(matrix.dtype)
    bias = np.zeros(matrix.shape[0], matrix.dtype)
    if scope.has(node, 2):
        bias = _row(scope.constant(node, 2, "bias") * np.asarray(beta, matrix.dtype), bias.size)
    scope.emit(step, OperationType.FULLY_CONNECTED, x, matrix, bias, step.activation)


def _row(bias: Array, units: int) -> Array:
    """A bias that is the same for each row of the batch, as one number per unit."""
    if bias.size > 1 and bias.shape != (1,) * (bias.ndim - 1) + (units,):
        raise ModelError(f"has a bias of shape {list(bias.shape)} for {units} units")
    return np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), (units,)))


def _matmul(scope: OnnxScope, step: Step) -> None:
    """A product with a constant matrix: a dense layer over the last axis."""
    node = step.node
    weights = scope.constant(node, 1, "second input")
    shape = scope.shape(node.inputs[0])
    if weights.ndim != 2 or not 2 <= len(shape) <= 4:
        raise ModelError(f"multiplies {list(shape)} and {list(weights.shape)}")
    units = weights.shape[1]
    layer = quantized_layer(scope, step, (1, 0), 0)
    target = scope.target(step)
    build, dense, result = (
        scope.builder.operation,
        OperationType.FULLY_CONNECTED,
        (*shape[:-1], units),
    )
    if layer is not None and target is not None:
        emit_dense(scope, target, layer, result, 0)
        return
    x = scope.input(node, 0)
    if not is_float(x):
        raise ModelError("multiplies integers")
    matrix = np.ascontiguousarray(weights.T)
    y = build(dense, x, matrix, np.zeros(units, matrix.dtype), 0)
    if len(shape) > 2:
        y = build(OperationType.RESHAPE, y, int32_array(result))
    scope.define(step.output, y)


def _softmax(type: OperationType) -> Convert:
    def convert(scope: OnnxScope, step: Step) -> None:
        node = step.node
        shape = scope.shape(node.inputs[0])
        newer = scope.graph.opset >= _SOFTMAX_NEWER
        axis = axis_of(node.attribute("axis", -1 if newer else 1), len(shape))
        if not newer and any(n != 1 for n in shape[axis + 1 :]):
            raise ModelError("normalizes over several axes")
        target, view = scope.target(step), scope.quantized(node.inputs[0])
        fits = target is not None and (target.scale, target.zero_point) == (
            1 / 256,
            _ZERO_POINTS[target.type],
        )
        if fits and target is not None and view is not None and view.type == target.type:
            scope.emit_quantized(target, type, view, 1.0, axis)
            return
        scope.emit(step, type, scope.input(node, 0), 1.0, axis)

    return convert


CONVERTERS: dict[str, Convert] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Softmax": _softmax(OperationType.SOFTMAX),
    "LogSoftmax": _softmax(OperationType.LOG_SOFTMAX),
}
"""How each operator becomes operations."""
