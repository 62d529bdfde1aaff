"""Fixed-point functions: near the real ones, and exact against a transcript on single integers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.kernels.fixed_functions import (
    exp_on_negative,
    inverse_root,
    logistic,
    logistic_table,
    reciprocal,
    tanh,
    tanh_table,
)
from tests.kernels.integer_rule import divided, high_mul

WORDS = np.arange(-(2**15), 2**15, dtype=np.int64)


class Number:
    """A fixed-point number: a raw integer, its integer bits and the size of its word."""

    def __init__(self, raw: int, integer: int, bits: int) -> None:
        self.raw, self.integer, self.bits = raw, integer, bits

    def __mul__(self, other: Number) -> Number:
        return Number(
            high_mul(self.raw, other.raw, self.bits), self.integer + other.integer, self.bits
        )

    def with_integer_bits(self, integer: int) -> Number:
        return Number(self.shifted(self.integer - integer).raw, integer, self.bits)

    def shifted(self, exponent: int) -> Number:
        """Times 2**exponent, rounded or saturated."""
        raw = divided(self.raw, -exponent) if exponent < 0 else self.raw * 2**exponent
        largest = 2 ** (self.bits - 1) - 1
        return Number(max(-largest - 1, min(largest, raw)), self.integer, self.bits)


def constant(value: float, integer: int, bits: int) -> Number:
    wide = math.floor(abs(value) * 2.0 ** (31 - integer) + 0.5)
    return Number(divided(wide if value > 0 else -wide, 32 - bits), integer, bits)


def exponential(x: Number) -> Number:
    bits = x.bits
    if x.raw == 0:
        return Number(2 ** (bits - 1) - 1, 0, bits)
    one = 2 ** (bits - 1 - x.integer)
    if x.integer > 5 and x.raw < -32 * one:
        return Number(0, 0, bits)
    inside = x.raw % (one // 4) - one // 4
    a = Number(inside, x.integer, bits).with_integer_bits(0).raw
    y = Number(a + 2 ** (bits - 4), 0, bits)
    y2 = y * y
    series = Number((y2 * y2).shifted(-2).raw + (y2 * y).raw, 0, bits) * constant(1 / 3, 0, bits)
    half = Number(series.raw + y2.raw, 0, bits).shifted(-1)
    middle = constant(math.exp(-1 / 8), 0, bits)
    more = Number(y.raw + half.raw, 0, bits) * middle
    result = Number(middle.raw + more.raw, 0, bits)
    rest = inside - x.raw
    for exponent in range(-2, x.integer):
        if rest & int(one * 2.0**exponent):
            result = result * constant(math.exp(-(2.0**exponent)), 0, bits)
    return result


def newton(a: Number) -> Number:
    """2 / (1 + a), with two integer bits."""
    bits = a.bits
    half = Number((a.raw + 2 ** (bits - 1)) // 2, 0, bits)
    x = Number(constant(48 / 17, 2, bits).raw + (half * constant(-32 / 17, 2, bits)).raw, 2, bits)
    for _ in range(3):
        missing = Number(2 ** (bits - 3) - (half * x).raw, 2, bits)
        x = Number(x.raw + (x * missing).with_integer_bits(2).raw, 2, bits)
    return x


def slow_logistic(raw: int, integer: int, bits: int) -> int:
    largest = int(2 ** (bits - 1)) - 1
    inverse = newton(exponential(Number(-abs(raw), integer, bits)))
    positive = Number(inverse.raw, 1, bits).with_integer_bits(0).raw
    if raw == 0:
        return (largest + 1) // 2
    return positive if raw > 0 else largest - positive


def slow_tanh(raw: int, integer: int, bits: int) -> int:
    inverse = newton(exponential(Number(-abs(raw), integer + 1, bits)))
    less = Number(inverse.raw - 2 ** (bits - 3), 2, bits).with_integer_bits(0).raw
    return 0 if raw == 0 else less if raw > 0 else -less


@given(st.integers(-(2**15), 2**15 - 1), st.integers(0, 6))
def test_words_are_exact(raw: int, integer: int) -> None:
    x = np.asarray([raw], np.int64)
    assert tanh(x, integer)[0] == slow_tanh(raw, integer, 16)
    assert logistic(x, 3)[0] == slow_logistic(raw, 3, 16)


@given(st.integers(-(2**31), 2**31 - 1), st.sampled_from([3, 4, 5, 7]))
def test_double_words_are_exact(raw: int, integer: int) -> None:
    x = np.asarray([raw], np.int64)
    assert tanh(x, integer - 1, 32)[0] == slow_tanh(raw, integer - 1, 32)
    assert logistic(x, integer, 32)[0] == slow_logistic(raw, integer, 32)
    below = exponential(Number(-abs(raw), integer, 32)).raw
    assert exp_on_negative(-np.abs(x), integer)[0] == below


@pytest.mark.parametrize("integer", range(7))
def test_tanh_is_near_the_real_one(integer: int) -> None:
    real = np.tanh(WORDS / 2.0 ** (15 - integer)) * 2**15
    found = tanh_table(integer)[WORDS.astype(np.uint16)]
    assert np.abs(found - real).max() < 13
    np.testing.assert_array_equal(found[1:], -found[:0:-1])


def test_logistic_is_near_the_real_one() -> None:
    real = 2**15 / (1 + np.exp(-WORDS / 2.0**12))
    found = logistic_table()[WORDS.astype(np.uint16)]
    assert np.abs(found - real).max() < 7
    assert found[2**15] == 2**14


def test_double_words_are_near_the_real_functions() -> None:
    x = np.random.default_rng(0).integers(-(2**31), 2**31, 5000)
    real = x / 2.0**27
    assert np.abs(tanh(x, 4, 32) / 2.0**31 - np.tanh(real)).max() < 2e-7
    assert np.abs(logistic(x, 4, 32) / 2.0**31 - 1 / (1 + np.exp(-real))).max() < 2e-7
    below = np.exp(-np.abs(real))
    assert np.abs(exp_on_negative(-np.abs(x), 4) / 2.0**31 - below).max() < 3e-7


def test_reciprocal() -> None:
    x = np.concatenate([2 ** np.arange(0, 31), np.random.default_rng(0).integers(1, 2**31, 500)])
    found, bits = reciprocal(x, 12)
    np.testing.assert_allclose(found * 2.0 ** (-31 - bits), 2.0**19 / x, rtol=1e-8)


def test_reciprocals_of_few_are_those_of_many() -> None:
    x = np.random.default_rng(1).integers(1, 2**32, (50, 2))
    found, bits = reciprocal(x, 12)
    for row in range(len(x)):
        few, few_bits = reciprocal(x[row], 12)
        np.testing.assert_array_equal(few, found[row])
        np.testing.assert_array_equal(few_bits, bits[row])


def test_inverse_root() -> None:
    many = np.random.default_rng(0).integers(2, 2**31, 500)
    x = np.concatenate([np.arange(2, 300), 2 ** np.arange(1, 31), many, [2**29 - 1, 2**31 - 1]])
    q, shift = inverse_root(x)
    np.testing.assert_allclose(q * 2.0 ** (shift - 31), 1 / np.sqrt(x), rtol=2e-6)
    assert (q < 2**31).all()
    assert (shift <= 0).all()


@pytest.mark.parametrize("x", [-5, 0, 1])
def test_inverse_root_of_what_is_not_above_1(x: int) -> None:
    q, shift = inverse_root(np.asarray([x]))
    assert (int(q[0]), int(shift[0])) == (2**31 - 1, 0)
