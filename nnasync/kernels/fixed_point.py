"""The fixed-point arithmetic that NNAPI prescribes for quantised operations, vectorised and exact.

The kernels compute in floating point and stay within one step of these functions, which are the
rule itself: tables of 256 entries are made with them, and tests compare against them.
"""

from __future__ import annotations

import math

import numpy as np

from nnasync.hal import Array

__all__ = [
    "hard_swish",
    "multiply_by_quantized_multiplier",
    "quantize_multiplier",
    "rounding_divide_by_pot",
    "saturating_rounding_doubling_high_mul",
]

_INT32 = np.iinfo(np.int32)
_INT16 = np.iinfo(np.int16)


def quantize_multiplier(multiplier: float) -> tuple[int, int]:
    """A real multiplier as (q, shift): multiplier is about q * 2**(shift - 31)."""
    if multiplier == 0.0:
        return 0, 0
    fraction, exponent = math.frexp(multiplier)
    q = math.floor(fraction * 2**31 + 0.5)
    if q == 2**31:
        q //= 2
        exponent += 1
    return (0, 0) if exponent < -31 else (q, exponent)


def saturating_rounding_doubling_high_mul(a: Array, b: int) -> Array:
    """The high half of 2 * a * b for 32-bit integers, rounded; (-2**31)**2 saturates."""
    product = a.astype(np.int64) * b
    nudge = np.where(product >= 0, 2**30, 1 - 2**30)
    high = _divide_towards_zero(product + nudge, 31)
    return np.minimum(high, _INT32.max)


def rounding_divide_by_pot(x: Array, exponent: int) -> Array:
    """x / 2**exponent, rounded to nearest, halves away from zero."""
    mask = (1 << exponent) - 1
    remainder = x & mask
    threshold = (mask >> 1) + (x < 0)
    return (x >> exponent) + (remainder > threshold)


def multiply_by_quantized_multiplier(x: Array, q: int, shift: int) -> Array:
    """x * q * 2**(shift - 31) as the rule computes it; x holds 32-bit integers."""
    shifted = x.astype(np.int64) * (1 << max(shift, 0))
    return rounding_divide_by_pot(saturating_rounding_doubling_high_mul(shifted, q), max(-shift, 0))


def hard_swish(
    q: Array, scale: float, zero_point: int, output_scale: float, output_zero_point: int
) -> Array:
    """HARD_SWISH of quantised values in 16-bit fixed point, not yet clamped to 8 bits."""
    fine = np.float32(1 / 128) * np.float32(scale)
    multiplier, exponent = _quantize_multiplier16(float(fine / np.float32(output_scale)))
    relu_multiplier, relu_exponent = _quantize_multiplier16(float(fine / np.float32(3 / 32768)))
    wide = (q.astype(np.int64) - zero_point) << 7
    product = _high_mul16(wide, multiplier)
    gate = _saturate16(wide << max(relu_exponent - 1, 0))
    gate = _high_mul16(gate, relu_multiplier)
    if relu_exponent > 0:
        gate = _saturate16(gate << 1)
    elif relu_exponent < 0:
        gate = rounding_divide_by_pot(gate, -relu_exponent)
    gate = (gate + (1 << 15)) >> 1
    result = _saturate16(_divide_towards_zero(gate * product, 15))
    if exponent > 0:
        result = _saturate16(result << exponent)
    else:
        result = rounding_divide_by_pot(result, -exponent)
    return result + output_zero_point


def _divide_towards_zero(x: Array, exponent: int) -> Array:
    magnitude = np.abs(x) >> exponent
    return np.where(x < 0, -magnitude, magnitude)


def _quantize_multiplier16(multiplier: float) -> tuple[int, int]:
    q, exponent = quantize_multiplier(multiplier)
    return min((q + (1 << 15)) >> 16, _INT16.max), exponent


def _saturate16(x: Array) -> Array:
    return np.clip(x, _INT16.min, _INT16.max)


def _high_mul16(a: Array, b: int) -> Array:
    product = a.astype(np.int64) * b
    nudge = np.where(product >= 0, 1 << 14, 1 - (1 << 14))
    return _saturate16(_divide_towards_zero(product + nudge, 15))
