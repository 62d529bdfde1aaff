"""QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import numpy as np

from nnasync._core.importers.onnx.forms import Convert, axis_of, is_float
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope, QuantizedConstant, QuantizedView
from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels.operation import Tensor

_TYPES = {
    np.dtype(np.uint8): OperandType.TENSOR_QUANT8_ASYMM,
    np.dtype(np.int8): OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
}
_FLOAT = OperandType.TENSOR_FLOAT32


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
    numbers = scope.array(node.inputs[0])
    if numbers is not None:
        scope.define(step.output, _constant(scope, step))
        return
    value = scope.input(node, 0)
    scale, zero_point, _ = scope.parameters(node)
    if value.type not in _TYPES.values():
        raise ModelError("dequantizes what is not of bytes")
    if (value.scale, value.zero_point) == (scale, zero_point):
        scope.define(step.output, QuantizedView(value))
        return
    result = Tensor(type=_FLOAT, shape=value.shape)
    real = scope.builder.operation(OperationType.DEQUANTIZE, value, output=result)
    scaled = scope.builder.operation(OperationType.MUL, real, _one(scale / value.scale), 0)
    offset = (value.zero_point - zero_point) * scale
    scope.emit(step, OperationType.ADD, scaled, _one(offset), 0)


def _one(number: float) -> Array:
    return np.asarray([number], np.float32)


def _constant(scope: OnnxScope, step: Step) -> QuantizedConstant | Array:
    node = step.node
    numbers = scope.constant(node, 0, "input")
    scales = scope.constant(node, 1, "scale")
    zeros = np.zeros(scales.shape, numbers.dtype)
    if scope.has(node, 2):
        zeros = scope.constant(node, 2, "zero point")
    axis = 0
    if scales.size > 1:
        axis = axis_of(node.attribute("axis", 1), numbers.ndim)
    if zeros.size == scales.size and node.attribute("block_size", 0):
        return _by_blocks(numbers, scales, zeros.reshape(scales.shape), axis)
    if zeros.size != scales.size or (scales.size > 1 and numbers.shape[axis] != scales.size):
        raise ModelError("its scales and zero points do not fit")
    return QuantizedConstant(numbers, scales.reshape(-1), zeros.reshape(-1), axis)


def _by_blocks(numbers: Array, scales: Array, zeros: Array, axis: int) -> Array:
    """The floats that integers stand for which have a scale for each block along an axis."""
    others = [n for place, n in enumerate(numbers.shape) if place != axis]
    fits = scales.ndim == numbers.ndim and others == [
        n for place, n in enumerate(scales.shape) if place != axis
    ]
    size = -(-numbers.shape[axis] // scales.shape[axis]) if fits and scales.size else 0
    if not size or size * scales.shape[axis] - size >= numbers.shape[axis]:
        raise ModelError(
            f"scales of shape {list(scales.shape)} are no blocks of {list(numbers.shape)}"
        )
    wide_scales, wide_zeros = (
        np.repeat(each.astype(np.float32), size, axis).take(range(numbers.shape[axis]), axis)
        for each in (scales, zeros)
    )
    real: Array = (numbers.astype(np.float32) - wide_zeros) * wide_scales
    return real


CONVERTERS: dict[str, Convert] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
}
"""How each operator becomes operations."""
