"""QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import numpy as np

from nnasync._core.importers.onnx.forms import Convert, axis_of, is_float
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope, QuantizedConstant, QuantizedView
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType
from nnasync.kernels.operation import Tensor

__all__ = ["CONVERTERS"]

_TYPES = {
    np.dtype(np.uint8): OperandType.TENSOR_QUANT8_ASYMM,
    np.dtype(np.int8): OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
}


def _quantize(scope: OnnxScope, step: Step) -> None:
    scale, zero_point, dtype = scope.parameters(step.node)
    if dtype not in _TYPES or not scale > 0:
        raise ModelError(f"quantizes to {dtype} with scale {scale}")
    type = _TYPES[dtype]
    view = scope.quantized(step.node.inputs[0])
    if view is not None and (view.type, view.scale, view.zero_point) == (type, scale, zero_point):
        scope.define(step.output, view)
        return
    x = scope.input(step.node, 0)
    if not is_float(x):
        raise ModelError("quantizes integers")
    result = Tensor(type=type, shape=x.shape, scale=scale, zero_point=zero_point)
    value = scope.builder.operation(OperationType.QUANTIZE, x, output=result, name=step.output)
    scope.define(step.output, value)


def _dequantize(scope: OnnxScope, step: Step) -> None:
    node = step.node
    if node.attribute("block_size", 0):
        raise ModelError("has scales per block")
    numbers = scope.array(node.inputs[0])
    if numbers is not None:
        scope.define(step.output, _constant(scope, step))
        return
    value = scope.input(node, 0)
    scale, zero_point, dtype = scope.parameters(node)
    stated = (_TYPES.get(dtype), scale, zero_point)
    if (value.type, value.scale, value.zero_point) != stated:
        raise ModelError("has another scale or zero point than its input")
    scope.define(step.output, QuantizedView(value))


def _constant(scope: OnnxScope, step: Step) -> QuantizedConstant:
    node = step.node
    numbers = scope.constant(node, 0, "input")
    scales = scope.constant(node, 1, "scale").reshape(-1)
    zeros = np.zeros(scales.size, numbers.dtype)
    if scope.has(node, 2):
        zeros = scope.constant(node, 2, "zero point").reshape(-1)
    axis = 0
    if scales.size > 1:
        axis = axis_of(node.attribute("axis", 1), numbers.ndim)
    if zeros.size != scales.size or (scales.size > 1 and numbers.shape[axis] != scales.size):
        raise ModelError("its scales and zero points do not fit")
    return QuantizedConstant(numbers, scales, zeros, axis)


CONVERTERS: dict[str, Convert] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
}
"""How each operator becomes operations."""
