"""The fixed-point functions against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nnasync.kernels import fixed_point

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


@given(st.floats(0.01, 0.1), st.integers(0, 255), st.floats(0.02, 0.1), st.integers(0, 255))
def test_hard_swish_is_within_two_steps_of_the_real_function(
    scale: float, zero: int, output_scale: float, output_zero: int
) -> None:
    q = np.arange(256)
    got = fixed_point.hard_swish(q, scale, zero, output_scale, output_zero)
    x = (q - zero) * scale
    real = x * np.clip(x + 3, 0, 6) / 6 / output_scale + output_zero
    inside = (real > 1) & (real < 254)
    assert np.abs(got - real)[inside].max(initial=0) <= 2
