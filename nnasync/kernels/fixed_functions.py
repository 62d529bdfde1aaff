"""Exponential, logistic, tanh, reciprocal and inverse root in fixed point, exact to the bit.

A number with `integer` bits before the point is the integer x * 2**(bits - 1 - integer) in a word
of 16 or 32 `bits`. The rules are those of the quantized operations: a Taylor polynomial around
-1/8 and one multiplication per bit for the exponential, Newton's iteration for division and root.
Everything is done in int64 on whole arrays; words are saturated only where the rule saturates.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from nnasync.hal import Array
from nnasync.kernels.fixed_point import rounding_divide_by_pot
from nnasync.kernels.steps import clip

_EXPONENTS = range(-2, 5)
_NEWTON_STEPS_OF_ROOT = 5
_FEW = 8
"""Up to this many, Python integers are faster than an array."""


class _Word:
    """A word of 16 or 32 bits."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.largest = 2 ** (bits - 1) - 1

    def constant(self, value: float, integer: int) -> int:
        """A number, rounded to 32 bits first and to the word's bits then."""
        wide = math.floor(abs(value) * 2.0 ** (31 - integer) + 0.5)
        near = np.asarray(wide if value >= 0 else -wide, np.int64)
        return int(rounding_divide_by_pot(near, 32 - self.bits))

    def saturate(self, x: Array) -> Array:
        result: Array = clip(x, -self.largest - 1, self.largest)
        return result

    def multiply(self, a: Array, b: Array | int) -> Array:
        """The high half of 2 * a * b, rounded, halves up; the integer bits add up."""
        high = (a * b + 2 ** (self.bits - 2)) >> (self.bits - 1)
        result: Array = np.minimum(high, self.largest)
        return result

    def shift(self, x: Array, exponent: int) -> Array:
        """x * 2**exponent, saturated or rounded."""
        return (
            self.saturate(x << exponent) if exponent > 0 else rounding_divide_by_pot(x, -exponent)
        )

    def add(self, a: Array | int, b: Array) -> Array:
        """The sum, saturated in words of 16 bits."""
        return self.saturate(a + b) if self.bits == 16 else a + b


class _Number(_Word):
    """A word in Python's own integers, which are faster where there are few."""

    def saturate(self, x: Any) -> Any:
        return min(max(x, -self.largest - 1), self.largest)

    def multiply(self, a: Any, b: Any) -> Any:
        """The high half of 2 * a * b, rounded, halves up; the integer bits add up."""
        return min((a * b + (1 << (self.bits - 2))) >> (self.bits - 1), self.largest)


_WORDS = {16: _Word(16), 32: _Word(32)}
_NUMBER = _Number(32)


def exp_on_negative(x: Array, integer: int, bits: int = 32) -> Array:
    """exp(x) for x <= 0 with `integer` bits before the point; the result has none."""
    word = _WORDS[bits]
    fraction = bits - 1 - integer
    quarter = 1 << (fraction - 2)
    inside = (x & (quarter - 1)) - quarter
    result = _exp_near_zero(word, word.shift(inside, integer))
    rest = inside - x
    for exponent in _EXPONENTS:
        if exponent < integer:
            factor = word.constant(math.exp(-(2.0**exponent)), 0)
            chosen = (rest & (1 << (fraction + exponent))) != 0
            result = np.where(chosen, word.multiply(result, factor), result)
    if integer > 5:
        result = np.where(x < -(32 << fraction), 0, result)
    return np.where(x == 0, word.largest, result)


def _exp_near_zero(word: _Word, a: Array) -> Array:
    """exp(a) for a in [-1/4, 0), both without integer bits."""
    x = a + (1 << (word.bits - 4))
    x2 = word.multiply(x, x)
    x3 = word.multiply(x2, x)
    x4 = word.shift(word.multiply(x2, x2), -2)
    cubes = word.multiply(word.add(x4, x3), word.constant(1 / 3, 0))
    series = word.shift(word.add(cubes, x2), -1)
    middle = word.constant(math.exp(-1 / 8), 0)
    return word.add(middle, word.multiply(word.add(x, series), middle))


def _newton_inverse(word: _Word, a: Any) -> Any:
    """2 / (1 + a) for a in [0, 1], with two integer bits."""
    half = (a + word.largest + 1) >> 1
    x = word.constant(48 / 17, 2) + word.multiply(half, word.constant(-32 / 17, 2))
    one = 1 << (word.bits - 3)
    for _ in range(3):
        missing = one - word.multiply(half, x)
        x = x + word.shift(word.multiply(x, missing), 2)
    return x


def logistic(x: Array, integer: int, bits: int = 16) -> Array:
    """1 / (1 + exp(-x)) with no integer bits."""
    word = _WORDS[bits]
    inverse = _newton_inverse(word, exp_on_negative(-np.abs(x), integer, bits))
    positive = word.shift(inverse, 1)
    result = np.where(x > 0, positive, word.largest - positive)
    return np.where(x == 0, 1 << (bits - 2), result)


def tanh(x: Array, integer: int, bits: int = 16) -> Array:
    """The hyperbolic tangent with no integer bits."""
    word = _WORDS[bits]
    inverse = _newton_inverse(word, exp_on_negative(-np.abs(x), integer + 1, bits))
    positive = word.shift(inverse - (1 << (bits - 3)), 2)
    return np.where(x == 0, 0, np.where(x < 0, -positive, positive))


def reciprocal(x: Array, integer: int) -> tuple[Array, Array]:
    """1 / x of positive 32-bit numbers as 0 integer bits, and the bits by which that is too large.

    With the pair (y, n), 1 / x is y * 2**(-31 - n).
    """
    headroom = 32 - np.frexp(x.astype(np.float64))[1]
    rest = (x << headroom) - (1 << 31)
    if x.size > _FEW:
        return _WORDS[32].shift(_newton_inverse(_WORDS[32], rest), 1), integer - headroom
    inverses = [_newton_inverse(_NUMBER, each) for each in rest.reshape(-1).tolist()]
    shifted = [_NUMBER.shift(inverse, 1) for inverse in inverses]
    return np.asarray(shifted, np.int64).reshape(x.shape), integer - headroom


def inverse_root(x: Array) -> tuple[Array, Array]:
    """1 / sqrt(x) of 32-bit integers as multipliers (q, shift); x below 1 counts as 1."""
    large = x >= 1 << 29
    reduced = np.where(large, x >> 2, np.maximum(x, 2))
    pairs = (31 - np.frexp(reduced.astype(np.float64))[1].astype(np.int64)) // 2 - 1
    word = _WORDS[32]
    whole = (reduced << (2 * pairs)) >> 1
    half = word.shift(whole, -1)
    y = np.full(x.shape, 1 << 28, np.int64)
    for _ in range(_NEWTON_STEPS_OF_ROOT):
        cube = word.shift(word.multiply(word.multiply(y, y), y), 6)
        y = word.shift(word.multiply(y, 3 << 27) - word.multiply(half, cube), 3)
    q = word.multiply(y, word.constant(math.sqrt(0.5), 0))
    right = 11 + large - pairs
    small = x <= 1
    q = np.where(small, word.largest, q << np.maximum(-right, 0))
    return q, np.where(small, 0, -np.maximum(right, 0))


@functools.cache
def logistic_table() -> Array:
    """The logistic function of all 16-bit numbers with 3 integer bits, by the word's bytes."""
    return _by_word(logistic(_all_words(), 3))


@functools.cache
def tanh_table(integer: int) -> Array:
    """tanh of all 16-bit numbers with `integer` bits before the point, by the word's bytes."""
    return _by_word(tanh(_all_words(), integer))


def _all_words() -> Array:
    return np.arange(-(2**15), 2**15, dtype=np.int64)


def _by_word(values: Array) -> Array:
    """Results of all signed words as a read-only table by unsigned word."""
    table = np.roll(values, -(2**15)).astype(np.int16)
    table.flags.writeable = False
    return table
