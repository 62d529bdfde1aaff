"""Layers with weights between a DequantizeLinear and a QuantizeLinear, as quantized operations."""

from __future__ import annotations

import msgspec
import numpy as np

from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope, QuantizedConstant, Target
from nnasync._core.model import Value
from nnasync._core.model.graph import Input, int32_array
from nnasync.errors import ModelError
from nnasync.hal import Array, ChannelQuant, OperandType, OperationType, PaddingScheme, Shape

_UNSIGNED, _SIGNED = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_MOST_SUM = 2**30
"""A bias beyond it would leave no room for the products in a sum of 32 bits."""


class WeightedLayer(msgspec.Struct, frozen=True, eq=False):
    """Input, weights and bias of a layer."""

    x: Value
    weights: Value
    bias: Value


def quantized_layer(
    scope: OnnxScope, step: Step, order: tuple[int, ...], channel_axis: int
) -> WeightedLayer | None:
    """The operands of a quantized layer, or None where it is one of floats.

    Its weights are moved by `order`, and have their output channels on `channel_axis` then.
    """
    node = step.node
    target, x = scope.target(step), scope.quantized(node.inputs[0])
    weights = scope.quantized_constant(node.inputs[1])
    if target is None or x is None or weights is None or x.type != target.type:
        return None
    if step.factors is not None or weights.numbers.dtype.itemsize != 1:
        return None
    channels = weights.numbers.shape[order[channel_axis]]
    bias = node.inputs[2] if scope.has(node, 2) else ""
    sums = _bias(scope, bias, x.scale, weights, channels)
    filters = _filters(scope, x, weights, order, channel_axis)
    if sums is None or filters is None:
        return None
    scale = float(np.float32(x.scale * filters.scale)) if filters.scale else 0.0
    return WeightedLayer(x, filters, scope.builder.constant(sums, scale=scale))


def _filters(
    scope: OnnxScope,
    x: Value,
    weights: QuantizedConstant,
    order: tuple[int, ...],
    channel_axis: int,
) -> Value | None:
    numbers = np.ascontiguousarray(weights.numbers.transpose(order))
    if weights.scales.size > 1:
        symmetric = _symmetric(numbers, weights.zero_points)
        if order[channel_axis] != weights.axis or symmetric is None:
            return None
        scales = tuple(float(scale) for scale in weights.scales)
        return scope.builder.constant(symmetric, channel_quant=ChannelQuant(scales, channel_axis))
    zero_point = int(weights.zero_points.reshape(-1)[0])
    # Weights have the type of the input; a shift by 128 changes no product.
    if numbers.dtype == np.int8 and x.type == _UNSIGNED:
        numbers, zero_point = (numbers.astype(np.int16) + 128).astype(np.uint8), zero_point + 128
    elif numbers.dtype == np.uint8 and x.type == _SIGNED:
        numbers, zero_point = (numbers.astype(np.int16) - 128).astype(np.int8), zero_point - 128
    scale = float(weights.scales.reshape(-1)[0])
    return scope.builder.constant(
        numbers, type=OperandType(x.type), scale=scale, zero_point=zero_point
    )


def _symmetric(numbers: Array, zero_points: Array) -> Array | None:
    """Bytes around 0 for those around zero points that are all in the middle of their range."""
    if numbers.dtype == np.int8 and not zero_points.any():
        return numbers
    if numbers.dtype == np.uint8 and (zero_points == 128).all():
        return (numbers.astype(np.int16) - 128).astype(np.int8)
    return None


def _bias(
    scope: OnnxScope, name: str, x_scale: float, weights: QuantizedConstant, channels: int
) -> Array | None:
    """The bias in integers; None where it is not one of exactly the scales of the products.

    One of floats is rounded to them, by less than any result could show.
    """
    if not name:
        return np.zeros(channels, np.int32)
    expected = np.float64(x_scale) * weights.scales.astype(np.float64)
    found = scope.quantized_constant(name)
    if found is None:
        return _rounded(scope.array(name), expected, channels)
    if found.numbers.dtype != np.int32 or found.zero_points.any():
        return None
    if not np.allclose(found.scales.astype(np.float64), expected, rtol=1e-5, atol=0):
        return None
    return found.numbers.reshape(-1) if found.numbers.size == channels else None


def _rounded(bias: Array | None, scales: Array, channels: int) -> Array | None:
    """Floats as int32 of these scales; None where they do not fit."""
    if bias is None or bias.dtype.kind != "f" or bias.size != channels or not (scales > 0).all():
        return None
    numbers = np.rint(bias.reshape(-1).astype(np.float64) / scales)
    if not (np.abs(numbers) < _MOST_SUM).all():
        return None
    whole: Array = numbers.astype(np.int32)
    return whole


def emit_dense(
    scope: OnnxScope, target: Target, layer: WeightedLayer, shape: Shape, activation: int
) -> None:
    """Add a quantized dense layer whose result has a shape.

    The HAL has scales per channel for convolutions only, so such a layer is one of a single pixel.
    """
    build, dense = scope.builder.operation, OperationType.FULLY_CONNECTED
    channels = layer.weights.tensor.channel_quant
    if channels is None:
        operands: list[Input] = [layer.x, layer.weights, layer.bias, activation]
        y = build(dense, *operands, output=target.tensor())
    else:
        units, size = layer.weights.shape
        pixel = int32_array([-1, 1, 1, size])
        x = build(OperationType.RESHAPE, layer.x, pixel, like=layer.x)
        values = layer.weights.tensor.value
        if values is None:
            raise ModelError("its weights must be constant")
        filters = scope.builder.constant(values.reshape(units, 1, 1, size), channel_quant=channels)
        window = [int(PaddingScheme.VALID), 1, 1, activation, False]
        operands = [x, filters, layer.bias, *window]
        y = build(OperationType.CONV_2D, *operands, output=target.tensor())
    if y.shape != shape:
        y = build(OperationType.RESHAPE, y, int32_array(shape), like=y)
    scope.finish(target, y)
