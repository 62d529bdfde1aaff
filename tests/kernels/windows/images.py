"""Definitions of operations on images, element by element, in NHWC on integers or float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync.hal import Array
from nnasync.kernels import Tensor
from nnasync.kernels.fixed_point import multiply_by_quantized_multiplier, quantize_multiplier
from nnasync.kernels.steps import quantized_bounds
from tests.kernels.running import scalar, tensor

Pads = Sequence[tuple[int, int]]


def layout(x: Array, *, nchw: bool) -> Array:
    """An NHWC array in the layout of a case."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if nchw else x


def scalars(*values: int | bool) -> list[Tensor]:
    return [scalar(value) for value in values]


def same_pads(
    sizes: Sequence[int], filters: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """Padding (before, after) of height and width with the scheme SAME."""
    pads = []
    for size, filter, stride in zip(sizes, filters, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + filter - size, 0)
        pads.append((total // 2, total - total // 2))
    return pads


def convolve(
    x: Array,
    w: Array,
    pads: Pads,
    strides: Sequence[int],
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Array:
    """Sums of a convolution with a filter [outputs, height, width, channels of a group]."""
    x = np.pad(x, ((0, 0), *pads, (0, 0)))
    (sh, sw), (dh, dw) = strides, dilations
    outputs, fh, fw, channels = w.shape
    height = (x.shape[1] - (fh - 1) * dh - 1) // sh + 1
    width = (x.shape[2] - (fw - 1) * dw - 1) // sw + 1
    sums = np.zeros((x.shape[0], height, width, outputs), np.result_type(x, w))
    for n, i, j, o in np.ndindex(*sums.shape):
        first = o // (outputs // groups) * channels
        window = x[n, i * sh :, j * sw :, first : first + channels]
        window = window[: (fh - 1) * dh + 1 : dh, : (fw - 1) * dw + 1 : dw]
        sums[n, i, j, o] = (window * w[o]).sum()
    return sums


def as_grouped(w: Array) -> Array:
    """The filter of a depthwise convolution as that of a grouped one."""
    return w.transpose(3, 1, 2, 0)


def transpose_convolve(x: Array, w: Array, pads: Pads, strides: Sequence[int]) -> Array:
    """Sums of a transposed convolution with a filter [outputs, height, width, channels]."""
    (sh, sw), ((top, bottom), (left, right)) = strides, pads
    outputs, fh, fw, _ = w.shape
    height = x.shape[1] * sh + fh - sh - top - bottom
    width = x.shape[2] * sw + fw - sw - left - right
    sums = np.zeros((x.shape[0], height, width, outputs), np.result_type(x, w))
    for n, h, v, i, j in np.ndindex(*x.shape[:3], fh, fw):
        y, z = h * sh - top + i, v * sw - left + j
        if 0 <= y < height and 0 <= z < width:
            sums[n, y, z] += w[:, i, j] @ x[n, h, v]
    return sums


class Quantized:
    """Random quantized input, filter and bias, and what the fixed-point rule makes of sums."""

    def __init__(
        self,
        rng: np.random.Generator,
        dtype: str,
        shape: Sequence[int],
        filter_shape: Sequence[int],
        *,
        channel_dim: int = 0,
        per_channel: bool = False,
    ) -> None:
        info = np.iinfo(dtype)
        self.x = rng.integers(info.min, info.max + 1, shape).astype(dtype)
        self.zero_x, self.zero_y = (int(z) for z in rng.integers(info.min, info.max + 1, 2))
        self.scale_x, self.scale_y = 0.02, float(np.float32(rng.uniform(0.005, 1.0)))
        count = filter_shape[channel_dim]
        self.bias = rng.integers(-2000, 2000, count).astype(np.int32)
        self.per_channel = per_channel
        self.channel_dim = channel_dim
        scales = rng.uniform(0.001, 0.1, count if per_channel else 1).astype(np.float32)
        self.scales = [float(scale) for scale in scales]
        if per_channel:
            self.w, self.zero_w = rng.integers(-127, 128, filter_shape).astype(np.int8), 0
        else:
            self.w = rng.integers(info.min, info.max + 1, filter_shape).astype(dtype)
            self.zero_w = int(rng.integers(info.min, info.max + 1))

    @property
    def centered(self) -> tuple[Array, Array]:
        """Input and filter without their zero points."""
        return self.x.astype(np.int64) - self.zero_x, self.w.astype(np.int64) - self.zero_w

    def tensors(self, *, nchw: bool = False) -> list[Tensor]:
        """Input, filter and bias."""
        source = tensor(layout(self.x, nchw=nchw), scale=self.scale_x, zero_point=self.zero_x)
        if self.per_channel:
            filter = tensor(self.w, scales=self.scales, channel_dim=self.channel_dim)
            return [source, filter, tensor(self.bias)]
        product = float(np.float32(self.scale_x) * np.float32(self.scales[0]))
        filter = tensor(self.w, scale=self.scales[0], zero_point=self.zero_w)
        return [source, filter, tensor(self.bias, scale=product)]

    def ruled(self, sums: Array, fused: int) -> Array:
        """The output of the fixed-point rule for sums without bias, channels last."""
        sums = sums + self.bias
        results = np.empty_like(sums)
        for channel in range(sums.shape[-1]):
            scale = self.scales[channel if self.per_channel else 0]
            product = np.float32(self.scale_x) * np.float32(scale)
            q, shift = quantize_multiplier(float(product) / self.scale_y)
            results[..., channel] = multiply_by_quantized_multiplier(sums[..., channel], q, shift)
        output = Tensor(type=self.tensors()[0].type, scale=self.scale_y, zero_point=self.zero_y)
        bounds = quantized_bounds(fused, output)
        ruled: Array = (results + self.zero_y).clip(*bounds)
        return ruled
