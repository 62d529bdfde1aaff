"""The fixed-point arithmetic that NNAPI prescribes for quantized operations, vectorized and exact.

Tables of all 8-bit values are made with these functions; kernels that compute in floating point are
proven or tested against them.
"""

from __future__ import annotations

import math

import numpy as np

from nnasync.hal import Array
from nnasync.kernels.operation import Arguments

_INT32 = np.iinfo(np.int32)
_INT16 = np.iinfo(np.int16)
_MOST_SHIFT = 31
_SMALLEST, _LARGEST = 2.0**-149, float(np.finfo(np.float32).max)


def single(value: float) -> float:
    """A positive number as float32 holds it, neither 0 nor infinite."""
    return float(np.float32(min(max(value, _SMALLEST), _LARGEST)))


def quantize_multiplier(multiplier: float) -> tuple[int, int]:
    """A real multiplier as (q, shift): multiplier is about q * 2**(shift - 31).

    One beyond float32, as quotients of extreme scales are, counts as the largest; NaN as 0.
    """
    if multiplier == 0.0 or math.isnan(multiplier):
        return 0, 0
    fraction, exponent = math.frexp(min(multiplier, _LARGEST))
    q = math.floor(fraction * 2**31 + 0.5)
    if q == 2**31:
        q //= 2
        exponent += 1
    return (0, 0) if exponent < -31 else (q, exponent)


def quantize_multiplier_below_one(arguments: Arguments, multiplier: float) -> tuple[int, int]:
    """Quantizes a multiplier that must be below 1; raises ModelError for others."""
    q, shift = quantize_multiplier(multiplier) if multiplier < 1 else (0, 1)
    if shift > 0:
        raise arguments.fail(
            f"the scale of the inputs is {multiplier:g} times the scale of the output, expected"
            " less than 1"
        )
    return q, shift


def saturating_rounding_doubling_high_mul(a: Array, b: int) -> Array:
    """The high half of 2 * a * b for 32-bit integers, halves up; (-2**31)**2 saturates."""
    high: Array = a.astype(np.int64, copy=False) * b
    high += 2**30
    high >>= 31
    return np.minimum(high, _INT32.max)


def rounding_divide_by_pot(x: Array, exponent: int) -> Array:
    """x / 2**exponent, rounded to nearest, halves away from zero; x has bits to spare."""
    if not exponent:
        return x
    return (x + (1 << (exponent - 1)) - (x < 0)) >> exponent


def multiply_by_quantized_multiplier(x: Array, q: int, shift: int) -> Array:
    """x * q * 2**(shift - 31) as the rule computes it; x holds 32-bit integers.

    What leaves 32 bits by a shift to the left saturates.
    """
    if shift > 0:
        x = np.clip(x.astype(np.int64) << min(shift, _MOST_SHIFT), _INT32.min, _INT32.max)
    return rounding_divide_by_pot(saturating_rounding_doubling_high_mul(x, q), max(-shift, 0))


def hard_swish_shift(scale: float, output_scale: float) -> int:
    """The exponent of the output's multiplier in `hard_swish`, which the rule wants at most 0."""
    return _quantize_multiplier16(_fine(scale) / single(output_scale))[1]


def hard_swish(
    q: Array, scale: float, zero_point: int, output_scale: float, output_zero_point: int
) -> Array:
    """HARD_SWISH of quantized values in 16-bit fixed point, not yet clamped to 8 bits."""
    fine = _fine(scale)
    multiplier, exponent = _quantize_multiplier16(fine / single(output_scale))
    relu_multiplier, relu_exponent = _quantize_multiplier16(fine / (3 / 32768))
    wide = (q.astype(np.int64) - zero_point) << 7
    product = _high_mul16(wide, multiplier)
    gate = _saturate16(wide << min(max(relu_exponent - 1, 0), _MOST_SHIFT))
    gate = _high_mul16(gate, relu_multiplier)
    if relu_exponent > 0:
        gate = _saturate16(gate << 1)
    elif relu_exponent < 0:
        gate = rounding_divide_by_pot(gate, -relu_exponent)
    gate = (gate + (1 << 15)) >> 1
    result = _saturate16(_divide_towards_zero(gate * product, 15))
    if exponent > 0:
        result = _saturate16(result << min(exponent, _MOST_SHIFT))
    else:
        result = rounding_divide_by_pot(result, -exponent)
    return result + output_zero_point


def _fine(scale: float) -> float:
    return single(single(scale) / 128)


def _divide_towards_zero(x: Array, exponent: int) -> Array:
    magnitude = np.abs(x) >> exponent
    return np.where(x < 0, -magnitude, magnitude)


def _quantize_multiplier16(multiplier: float) -> tuple[int, int]:
    q, exponent = quantize_multiplier(single(multiplier))
    return min((q + (1 << 15)) >> 16, _INT16.max), exponent


def _saturate16(x: Array) -> Array:
    return np.clip(x, _INT16.min, _INT16.max)


def _high_mul16(a: Array, b: int) -> Array:
    return _saturate16((a.astype(np.int64) * b + (1 << 14)) >> 15)
