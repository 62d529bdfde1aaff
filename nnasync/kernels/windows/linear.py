"""Packed weights of operations that multiply and sum, and what follows the sums.

Quantized products are exact integers in floating point: float32 while every partial sum provably
stays below 2**24, float64 otherwise. Inputs enter as raw quantized values; the input's zero point
moves into the bias, and padding is written as the zero point.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync import hal
from nnasync.hal import Array, FusedActivationFunc, OperandType, Shape, is_quantized
from nnasync.kernels.operation import Arguments, ArraySpec, Tensor, quantized_range
from nnasync.kernels.packing import packed
from nnasync.kernels.steps import (
    Call,
    add_rows,
    clip,
    float_bounds,
)
from nnasync.kernels.windows.rescale import Halves, Rescale

_EXACT = 2**24


class Linear:
    """Weights [terms, outputs] and what follows their sums.

    `border` is what padding holds; sums that are not `quantized` are made in the output's memory.
    """

    __slots__ = ("_bias", "_bounds", "_rescale", "border", "dtype", "quantized", "weights")

    def __init__(
        self,
        weights: Array,
        bias: Array,
        bounds: tuple[Array, Array] | None = None,
        *,
        rescale: Rescale | None = None,
        border: float = 0.0,
    ) -> None:
        self.weights = weights
        self.dtype = weights.dtype
        self.border = border
        self.quantized = rescale is not None
        self._bias = bias
        self._bounds = bounds
        self._rescale = rescale

    def scratch(self, shape: Shape) -> list[ArraySpec]:
        """Scratch for the sums [..., outputs], first the sums themselves; none if not quantized."""
        if self._rescale is None:
            return []
        return [ArraySpec(shape, self.dtype), *self._rescale.scratch(shape, self.dtype)]

    def sums(self, target: Array, scratch: Sequence[Array]) -> tuple[Array, list[Array]]:
        """Returns where to sum for a target of at most scratch's rows, and the unused scratch."""
        if self._rescale is None:
            return target, []
        sums, *rest = (array[: len(target)] for array in scratch)
        return sums, rest

    def finish(self, sums: Array, output: Array, scratch: Sequence[Array]) -> list[Call]:
        """Calls from the sums to the output, in which they are already if not quantized."""
        if self._rescale is not None:
            return self._rescale.calls(sums, output, scratch)
        calls = [add_rows(np.add, sums, self._bias)]
        if self._bounds is not None:
            calls.append((clip, (sums, *self._bounds, sums)))
        return calls


def activation(arguments: Arguments, index: int) -> int:
    """The fused activation at an argument position."""
    value = arguments.integer(index, 0)
    if value not in list(FusedActivationFunc):
        raise arguments.error(index, f"is {value}, expected 0 to 3 (NONE, RELU, RELU1, RELU6)")
    return value


def pack(
    arguments: Arguments,
    weights: Array,
    output: Tensor,
    fused: int,
    *,
    channel_dim: int = 0,
    halves: Halves = Halves.UP,
    centered: bool = False,
) -> Linear:
    """Packs filter and bias of arguments 0 (input), 1 (filter) and 2 (bias).

    `weights` is the filter's value as [terms, outputs]; per-channel scales belong to `channel_dim`.
    It need not be contiguous. With `centered`, inputs enter with their zero point already
    subtracted.
    """
    source = arguments.tensor(0)
    bias = arguments.value(2).reshape(-1)
    if not is_quantized(source.type):
        return Linear(weights, bias, _float_limits(fused))
    scales = _product_scales(arguments, channel_dim)
    zero = 0 if centered else source.zero_point
    shifted = packed(lambda: _shifted(arguments, weights, centered=centered), weights.shape)
    folded = packed(lambda: bias - zero * shifted.sum(axis=0, dtype=np.float64), bias.shape)
    multiplier = scales.astype(np.float64) / output.scale
    return Linear(
        shifted,
        folded,
        rescale=Rescale(multiplier, folded, output, fused, shifted.dtype, halves=halves),
        border=zero,
    )


def _shifted(arguments: Arguments, weights: Array, *, centered: bool) -> Array:
    """Quantized weights less their zero point, in the narrowest float that sums them exactly."""
    source, filter = arguments.tensor(0), arguments.tensor(1)
    shifted = weights.astype(np.float64)
    shifted -= filter.zero_point if is_quantized(filter.type) else 0
    lowest, highest = quantized_range(source.type)
    if centered:
        lowest, highest = lowest - source.zero_point, highest - source.zero_point
    exact = _bound(shifted, lowest, highest) < _EXACT
    return np.ascontiguousarray(shifted, np.float32 if exact else np.float64)


def _float_limits(fused: int) -> tuple[Array, Array] | None:
    if fused == FusedActivationFunc.NONE:
        return None
    lower, upper = float_bounds(fused)
    return np.asarray(lower, np.float32), np.asarray(upper, np.float32)


def _bound(weights: Array, lowest: int, highest: int) -> float:
    """The largest magnitude of any partial sum of weights times inputs of a range."""
    positive = np.maximum(weights, 0).sum(axis=0)
    negative = np.maximum(-weights, 0).sum(axis=0)
    above = positive * highest - negative * min(lowest, 0)
    below = negative * highest - positive * min(lowest, 0)
    return float(max(above.max(initial=0), below.max(initial=0)))


def check_quantization(arguments: Arguments, channel_dim: int = 0) -> None:
    """Raise ModelError unless scales and zero points of arguments 0 to 2 fit each other."""
    if is_quantized(arguments.tensor(0).type):
        _product_scales(arguments, channel_dim)


def product_scale(arguments: Arguments) -> float:
    """Scale of argument 0 times scale of argument 1, in float32 as the rule says."""
    source, filter = arguments.tensor(0), arguments.tensor(1)
    return float(np.float32(source.scale) * np.float32(filter.scale))


def _product_scales(arguments: Arguments, channel_dim: int) -> Array:
    """Scale of the products, per output channel or a single one."""
    source, filter, bias = (arguments.tensor(index) for index in range(3))
    if bias.zero_point != 0:
        raise arguments.error(2, f"has zero point {bias.zero_point}, expected 0")
    if filter.type != OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        product = product_scale(arguments)
        _check_bias_scale(arguments, product, bias)
        return np.asarray([product])
    quant = filter.channel_quant
    if quant is None:
        raise arguments.error(1, "has no per-channel scales")
    _check_channels(arguments, quant, channel_dim)
    return np.float32(source.scale) * np.asarray(quant.scales, np.float32)


def _check_channels(arguments: Arguments, quant: hal.ChannelQuant, channel_dim: int) -> None:
    if quant.channel_dim != channel_dim:
        raise arguments.error(
            1, f"has per-channel scales along dimension {quant.channel_dim}, expected {channel_dim}"
        )
    shape = arguments.tensor(1).shape
    count = shape[channel_dim] if channel_dim < len(shape) else 0
    if count not in (0, len(quant.scales)) or not all(scale > 0 for scale in quant.scales):
        raise arguments.error(1, f"has {len(quant.scales)} scales, expected {count} positive ones")


def _check_bias_scale(arguments: Arguments, product: float, bias: Tensor) -> None:
    if not product > 0:
        raise arguments.error(1, "input and filter must have positive scales")
    if abs(product - bias.scale) > 1e-6 * min(product, bias.scale):
        raise arguments.error(2, f"has scale {bias.scale}, expected {product} (input * filter)")
