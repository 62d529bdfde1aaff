"""Layers with weights between a DequantizeLinear and a QuantizeLinear, as quantized operations."""

from __future__ import annotations

import msgspec
import numpy as np

from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope, QuantizedConstant
from nnasync._core.model import Value
from nnasync.hal import Array, ChannelQuant, OperandType

__all__ = ["WeightedLayer", "quantized_layer"]

_UNSIGNED, _SIGNED = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED


class WeightedLayer(msgspec.Struct, frozen=True, eq=False):
    """Input, weights and bias of a layer."""

    x: Value
    weights: Value
    bias: Value


def quantized_layer(
    scope: OnnxScope, step: Step, order: tuple[int, ...], channel_axis: int, bias: str = ""
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
    bias = bias or (node.inputs[2] if scope.has(node, 2) else "")
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
        by_channel = order[channel_axis] == weights.axis
        if not by_channel or weights.zero_points.any() or numbers.dtype != np.int8:
            return None
        scales = tuple(float(scale) for scale in weights.scales)
        return scope.builder.constant(numbers, channel_quant=ChannelQuant(scales, channel_axis))
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


def _bias(
    scope: OnnxScope, name: str, x_scale: float, weights: QuantizedConstant, channels: int
) -> Array | None:
    """The bias in integers; None where it is not one of exactly the scales of the products."""
    if not name:
        return np.zeros(channels, np.int32)
    found = scope.quantized_constant(name)
    if found is None or found.numbers.dtype != np.int32 or found.zero_points.any():
        return None
    expected = np.float64(x_scale) * weights.scales.astype(np.float64)
    if not np.allclose(found.scales.astype(np.float64), expected, rtol=1e-5, atol=0):
        return None
    return found.numbers.reshape(-1) if found.numbers.size == channels else None
