"""The fixed-point functions against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nnasync.kernels import fixed_point
from tests.kernels.integer_rule import divided, high_mul

INT32 = st.integers(-(2**31), 2**31 - 1)


def half_away(value: Fraction) -> int:
    magnitude = abs(value)
    rounded = int(magnitude + Fraction(1, 2))
    return rounded if value >= 0 else -rounded


@given(st.floats(1e-8, 100.0))
def test_quantize_multiplier_is_within_half_a_unit_of_31_bits(multiplier: float) -> None:
    q, shift = fixed_point.quantize_multiplier(multiplier)
    assert 2**30 <= q < 2**31
    assert abs(Fraction(q, 2**31) * Fraction(2) ** shift / Fraction(multiplier) - 1) <= Fraction(
        1, 2**31
    )


def test_quantize_multiplier_of_zero_and_of_almost_nothing() -> None:
    assert fixed_point.quantize_multiplier(0.0) == (0, 0)
    assert fixed_point.quantize_multiplier(2.0**-40) == (0, 0)


def test_quantize_multiplier_of_what_is_no_float32() -> None:
    largest = float(np.finfo(np.float32).max)
    assert fixed_point.quantize_multiplier(math.inf) == fixed_point.quantize_multiplier(largest)
    assert fixed_point.quantize_multiplier(math.nan) == (0, 0)


@given(INT32, st.integers(0, 31))
def test_rounding_divide_rounds_halves_away_from_zero(x: int, exponent: int) -> None:
    got = fixed_point.rounding_divide_by_pot(np.asarray([x], np.int64), exponent)
    assert got[0] == half_away(Fraction(x, 2**exponent))


@given(INT32, st.integers(0, 2**31 - 1))
def test_high_mul_rounds_to_nearest_with_halves_up(a: int, b: int) -> None:
    got = fixed_point.saturating_rounding_doubling_high_mul(np.asarray([a], np.int64), b)
    exact = Fraction(a * b, 2**31)
    assert got[0] == (exact + Fraction(1, 2)).__floor__()


def test_high_mul_saturates() -> None:
    lowest = np.asarray([-(2**31)], np.int64)
    got = fixed_point.saturating_rounding_doubling_high_mul(lowest, -(2**31))
    assert got[0] == 2**31 - 1


@given(st.integers(-(2**20), 2**20), st.floats(1e-4, 8.0))
def test_multiply_is_within_one_of_the_real_product(x: int, multiplier: float) -> None:
    q, shift = fixed_point.quantize_multiplier(multiplier)
    got = fixed_point.multiply_by_quantized_multiplier(np.asarray([x]), q, shift)
    bound = 1 if shift <= 0 else 1 + abs(x) * 2**shift * 2**-30
    assert abs(float(got[0]) - x * multiplier) <= bound


@given(
    INT32,
    st.one_of(st.floats(1e-12, 2.0**40), st.sampled_from([0.25, 0.5, 1.0, 3.0])),
    st.sampled_from([1, -1]),
)
def test_multiply_is_the_rule_and_saturates(x: int, multiplier: float, sign: int) -> None:
    q, shift = fixed_point.quantize_multiplier(multiplier)
    got = fixed_point.multiply_by_quantized_multiplier(np.asarray([x]), sign * q, shift)
    shifted = max(-(2**31), min(2**31 - 1, x * 2 ** max(shift, 0)))
    expected = divided(high_mul(shifted, sign * q, 32), max(-shift, 0))
    assert got[0] == expected


@given(st.floats(0, 1e300))
def test_single_is_a_positive_finite_float32(value: float) -> None:
    got = fixed_point.single(value)
    assert 0 < got < math.inf
    assert got == np.float32(got)
    if 1e-37 < value < 3e38:
        assert abs(got / value - 1) <= 2**-24


def test_single_of_infinity() -> None:
    assert fixed_point.single(math.inf) == np.finfo(np.float32).max
