"""exp(x) and 1 / (1 + x) in 32-bit fixed point, as NNAPI prescribes them for quantised operations.

Raw values are 64-bit integers that hold the 32-bit numbers of the rule: with n integer bits, a raw
value stands for raw * 2**(n - 31). The exponential is a Taylor polynomial on [-1/4, 0), around
-1/8, times a constant for each bit of what is left; the reciprocal is three steps of Newton's
method. Both are exact to the bit, and so made for tables and for the few values of a row's sum.
"""

from __future__ import annotations

import math

import numpy as np

from nnasync.hal import Array
from nnasync.kernels.fixed_point import rounding_divide_by_pot

__all__ = ["exp_on_negative_values", "multiply", "one_over_one_plus_x"]

_ONE = 2**31 - 1
_MOST_INTEGER_BITS = 5


def _constant(value: float, integer_bits: int = 0) -> int:
    return math.floor(value * float(2 ** (31 - integer_bits)) + 0.5)


_EXP_EIGHTH, _THIRD = _constant(math.exp(-1 / 8)), _constant(1 / 3)
_48_OVER_17, _32_OVER_17 = _constant(48 / 17, 2), _constant(32 / 17, 2)
_POWERS = {bit: _constant(math.exp(-(2.0**bit))) for bit in range(-2, _MOST_INTEGER_BITS)}


def multiply(a: Array, b: Array | int) -> Array:
    """The product of two raw values: the integer bits add up, halves go up.

    It is the rule's saturating rounding doubling high multiply, but for (-2**31)**2.
    """
    wide: Array = a * b
    high: Array = (wide + 2**30) >> 31
    return high


def exp_on_negative_values(x: Array, integer_bits: int) -> Array:
    """exp(x) without integer bits, for x <= 0 with `integer_bits`, of which there are at most 5."""
    fraction = 31 - integer_bits
    quarter = 1 << (fraction - 2)
    near = (x & (quarter - 1)) - quarter
    result = _exp_near_zero(near << integer_bits)
    remainder = near - x
    for bit in range(-2, integer_bits):
        is_set = remainder & (1 << (fraction + bit)) != 0
        result = np.where(is_set, multiply(result, _POWERS[bit]), result)
    return np.where(x == 0, _ONE, result)


def _exp_near_zero(x: Array) -> Array:
    """exp(x) for -1/4 <= x < 0, both without integer bits."""
    y = x + (1 << 28)
    y2 = multiply(y, y)
    y3, y4 = multiply(y2, y), multiply(y2, y2)
    high = multiply(rounding_divide_by_pot(y4, 2) + y3, _THIRD) + y2
    return _EXP_EIGHTH + multiply(y + rounding_divide_by_pot(high, 1), _EXP_EIGHTH)


def one_over_one_plus_x(x: Array) -> Array:
    """1 / (1 + x) for 0 <= x < 1, both without integer bits."""
    half_denominator = (x + _ONE + 1) >> 1
    y = _48_OVER_17 + multiply(half_denominator, -_32_OVER_17)
    for _ in range(3):
        rest = (1 << 29) - multiply(half_denominator, y)
        y = y + (multiply(y, rest) << 2)
    result: Array = np.minimum(y << 1, _ONE)
    return result
