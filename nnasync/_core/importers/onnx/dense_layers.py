"""Dense layers, products of matrices, and softmax."""

from __future__ import annotations

import math

import numpy as np

from nnasync._core.importers.onnx.axes import broadcast_shape
from nnasync._core.importers.onnx.forms import Convert, axis_of, is_float
from nnasync._core.importers.onnx.maths import Maths
from nnasync._core.importers.onnx.moving import transposed
from nnasync._core.importers.onnx.onnx_file import OnnxNode
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import MOST_AXES, OnnxScope
from nnasync._core.importers.onnx.weights import emit_dense, quantized_layer
from nnasync._core.model import Value
from nnasync.errors import ModelError
from nnasync.extensions import COMMON, CommonOperation
from nnasync.hal import Array, OperandType, OperationType, Shape

_SOFTMAX_NEWER = 13
_ZERO_POINTS = {OperandType.TENSOR_QUANT8_ASYMM: 0, OperandType.TENSOR_QUANT8_ASYMM_SIGNED: -128}


def _gemm(scope: OnnxScope, step: Step) -> None:
    node = step.node
    weights = scope.array(node.inputs[1])
    bias = scope.array(node.inputs[2]) if scope.has(node, 2) else np.zeros(1, np.float32)
    if weights is None or bias is None or not _is_row(bias, node, weights):
        _general(scope, step)
        return
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    order = (0, 1) if node.attribute("transB", 0) else (1, 0)
    plain = (alpha, beta) == (1.0, 1.0) and not node.attribute("transA", 0)
    layer = quantized_layer(scope, step, order, 0) if plain else None
    target = scope.target(step)
    if layer is not None and target is not None:
        units = layer.weights.shape[0]
        emit_dense(scope, target, layer, (layer.x.shape[0], units), step.activation)
        return
    x, matrix = _first(scope, node), np.ascontiguousarray(weights.transpose(order))
    if alpha != 1.0:
        matrix = (matrix * alpha).astype(matrix.dtype)
    offsets = (bias * np.asarray(beta, matrix.dtype)).astype(matrix.dtype)
    row = np.ascontiguousarray(np.broadcast_to(offsets.reshape(-1), (matrix.shape[0],)))
    scope.emit(step, OperationType.FULLY_CONNECTED, x, matrix, row, step.activation)


def _is_row(bias: Array, node: OnnxNode, weights: Array) -> bool:
    """Returns whether a bias is the same for each row of the batch: one number, or one per unit."""
    units = weights.shape[0 if node.attribute("transB", 0) else 1]
    return bias.size == 1 or bias.shape == (1,) * (bias.ndim - 1) + (units,)


def _first(scope: OnnxScope, node: OnnxNode) -> Value:
    """The first matrix, transposed where the file says so."""
    x = scope.input(node, 0)
    if not is_float(x):
        raise ModelError("multiplies integers")
    return transposed(scope, x, (1, 0)) if node.attribute("transA", 0) else x


def _general(scope: OnnxScope, step: Step) -> None:
    """alpha * a * b + beta * c, of matrices that are computed."""
    node, maths = step.node, Maths(scope)
    flags = [bool(node.attribute(name, 0)) for name in ("transA", "transB")]
    y = product(scope, scope.input(node, 0), scope.input(node, 1), *flags)
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    y = y if alpha == 1.0 else maths.mul(y, float(alpha))
    if scope.has(node, 2):
        c = scope.input(node, 2)
        c = c if beta == 1.0 else maths.mul(c, float(beta))
        y = maths.apply(OperationType.ADD, y, c, step.activation)
    elif step.activation:
        y = maths.apply(OperationType.ADD, y, maths.number(y, 0), step.activation)
    scope.define(step.output, y)


def product(scope: OnnxScope, a: Value, b: Value, *transposes: bool) -> Value:
    """The product of two tensors of matrices, of which each may be given transposed."""
    if not is_float(a) or a.type != b.type:
        raise ModelError("multiplies integers")
    flags = [*transposes, False, False][:2]
    type = scope.builder.extension_type(COMMON.name, CommonOperation.BATCH_MATMUL)
    return scope.builder.operation(type, a, b, *flags)


def _matmul(scope: OnnxScope, step: Step) -> None:
    """A product with a constant matrix: a dense layer over the last axis; else of two tensors."""
    node = step.node
    weights = scope.array(node.inputs[1])
    shape = scope.shape(node.inputs[0])
    if weights is None or weights.ndim != 2:
        _matmul_of_two(scope, step)
        return
    units = weights.shape[1]
    layer = quantized_layer(scope, step, (1, 0), 0) if 2 <= len(shape) <= MOST_AXES else None
    target = scope.target(step)
    build, dense = scope.builder.operation, OperationType.FULLY_CONNECTED
    result = (*shape[:-1], units)
    if layer is not None and target is not None:
        emit_dense(scope, target, layer, result, step.activation)
        return
    rows = (math.prod(shape[:-1]), shape[-1])
    few = 2 <= len(shape) <= MOST_AXES
    x = scope.input(node, 0) if few else scope.reshaped(node.inputs[0], rows)
    if not is_float(x):
        raise ModelError("multiplies integers")
    matrix = np.ascontiguousarray(weights.T)
    bias = np.zeros(units, matrix.dtype)
    if scope.has(node, 2):
        bias = scope.constant(node, 2, "bias").astype(matrix.dtype)
    y = build(dense, x, matrix, bias, step.activation)
    scope.define(step.output, y, result)


def _matmul_of_two(scope: OnnxScope, step: Step) -> None:
    names = step.node.inputs[:2]
    a, b = (scope.shape(name) for name in names)
    left = (1, *a) if len(a) == 1 else a
    right = (*b, 1) if len(b) == 1 else b
    batch = broadcast_shape([left[:-2], right[:-2]])
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    result = (*batch, *rows, *columns)
    forms = [left, right]
    if len(batch) + 2 > MOST_AXES:
        forms = [_joined(form, batch) for form in forms]
    x, y = (scope.reshaped(name, form) for name, form in zip(names, forms, strict=True))
    scope.define(step.output, product(scope, x, y), result)


def _joined(form: Shape, batch: Shape) -> Shape:
    """A shape with all dimensions of the batch as one."""
    if math.prod(form[:-2]) == 1:
        return (1, *form[-2:])
    if form[:-2] != batch:
        raise ModelError(f"multiplies matrices in batches {list(form[:-2])} and {list(batch)}")
    return (math.prod(batch), *form[-2:])


def _softmax(type: OperationType) -> Convert:
    def convert(scope: OnnxScope, step: Step) -> None:
        node = step.node
        shape = scope.shape(node.inputs[0])
        newer = scope.graph.opset >= _SOFTMAX_NEWER
        axis = axis_of(node.attribute("axis", -1 if newer else 1), len(shape))
        if (not newer and any(n != 1 for n in shape[axis + 1 :])) or len(shape) > MOST_AXES:
            _over_lines(scope, step, type, shape, axis, newer=newer)
            return
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


def _over_lines(
    scope: OnnxScope, step: Step, type: OperationType, shape: Shape, axis: int, *, newer: bool
) -> None:
    """Over several axes as one, as older files mean it; or over one of many."""
    end = axis + 1 if newer else len(shape)
    parts = (math.prod(shape[:axis]), math.prod(shape[axis:end]), math.prod(shape[end:]))
    x = scope.reshaped(step.node.inputs[0], parts)
    scope.define(step.output, scope.builder.operation(type, x, 1.0, 1), shape)


CONVERTERS: dict[str, Convert] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Softmax": _softmax(OperationType.SOFTMAX),
    "LogSoftmax": _softmax(OperationType.LOG_SOFTMAX),
}
"""How each operator becomes operations."""
