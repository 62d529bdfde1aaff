"""NNAPI's fixed-point rule on single Python integers, written from its definition."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from nnasync.hal import Array

__all__ = [
    "divided",
    "high_mul",
    "on_pairs",
    "quantize_multiplier",
    "saturated16",
    "scaled",
    "scaled16",
    "truncated",
]


def truncated(value: Fraction) -> int:
    return math.trunc(value)


def high_mul(a: int, b: int, bits: int) -> int:
    """The high half of twice the product, with the nudge that the rule adds before it cuts."""
    product = a * b
    half = 1 << (bits - 2)
    nudge = half if product >= 0 else 1 - half
    return min(truncated(Fraction(product + nudge, 1 << (bits - 1))), (1 << (bits - 1)) - 1)


def divided(x: int, exponent: int) -> int:
    """x / 2**exponent, halves away from zero."""
    quotient = abs(Fraction(x, 2**exponent))
    magnitude = math.floor(quotient + Fraction(1, 2))
    return magnitude if x >= 0 else -magnitude


@functools.cache
def quantize_multiplier(multiplier: float) -> tuple[int, int]:
    exponent = 0
    fraction = Fraction(multiplier)
    while fraction >= 1:
        fraction, exponent = fraction / 2, exponent + 1
    while fraction < Fraction(1, 2):
        fraction, exponent = fraction * 2, exponent - 1
    q = math.floor(fraction * 2**31 + Fraction(1, 2))
    return (q // 2, exponent + 1) if q == 2**31 else (q, exponent)


@functools.lru_cache(maxsize=2**16)
def scaled(x: int, multiplier: float, sign: int = 1) -> int:
    """x times a real multiplier in 32 bits; with a sign, that of the integer multiplier."""
    q, shift = quantize_multiplier(multiplier)
    return divided(high_mul(x * 2 ** max(shift, 0), sign * q, 32), max(-shift, 0))


def saturated16(x: int) -> int:
    return max(-(2**15), min(2**15 - 1, x))


def scaled16(x: int, multiplier: float) -> tuple[int, int]:
    """x times the 16-bit fraction of a multiplier, and the multiplier's exponent."""
    q, shift = quantize_multiplier(multiplier)
    return high_mul(x, min((q + 2**15) // 2**16, 2**15 - 1), 16), shift


def on_pairs(function: Callable[[int, int], int], a: Array, b: Array) -> Array:
    """A function of two integers on broadcast arrays."""
    left, right = np.broadcast_arrays(a, b)
    pairs = zip(left.ravel().tolist(), right.ravel().tolist(), strict=True)
    return np.asarray([function(x, y) for x, y in pairs], np.int64).reshape(left.shape)
