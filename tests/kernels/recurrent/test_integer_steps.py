"""Fixed-point arithmetic in place against the rule on single integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.kernels.recurrent.integer_steps import Multiplier, exact_dtype, multiplied, round_shift
from nnasync.kernels.steps import sequence
from tests.kernels.integer_rule import divided, quantize_multiplier, scaled

INTEGERS = st.integers(-(2**31), 2**31 - 1)
FACTORS = st.floats(2.0**-30, 0.999)


@given(st.lists(st.tuples(INTEGERS, FACTORS), min_size=1, max_size=5))
def test_multiplier(pairs: list[tuple[int, float]]) -> None:
    values = np.asarray([x for x, _ in pairs], np.int64)
    work = np.full_like(values, 77)
    sequence(Multiplier([factor for _, factor in pairs], values.shape).calls(values, work))()
    assert values.tolist() == [scaled(x, factor) for x, factor in pairs]


@given(st.integers(-(2**20), 2**20), st.floats(1.0, 1000.0))
def test_multiplier_above_1(x: int, factor: float) -> None:
    values = np.asarray([[x, -x]], np.int64)
    sequence(Multiplier([factor]).calls(values, np.empty_like(values)))()
    assert values.tolist() == [[scaled(x, factor), scaled(-x, factor)]]


@given(INTEGERS, FACTORS)
def test_multiplied(x: int, factor: float) -> None:
    q, shift = quantize_multiplier(factor)
    found = multiplied(np.asarray([x], np.int64), q, shift)
    assert found.tolist() == [scaled(x, factor)]


def test_what_leaves_32_bits_saturates() -> None:
    values = np.asarray([2**31 - 1, -(2**31)], np.int64)
    sequence(Multiplier([2.0**100]).calls(values, np.empty_like(values)))()
    assert values.tolist() == [2**30, -(2**30)]


@pytest.mark.parametrize("exponents", [[0, 0, 0], [1, 2, 0], [5, 6, 7]])
def test_round_shift(exponents: list[int]) -> None:
    x = np.random.default_rng(0).integers(-(2**20), 2**20, (50, 3))
    values, work = x.copy(), np.empty_like(x)
    sequence(round_shift(values, np.asarray(exponents), work))()
    expected = [[divided(int(a), e) for a, e in zip(row, exponents, strict=True)] for row in x]
    assert values.tolist() == expected


def test_sums_are_exact_in_the_smaller_type_while_they_can_be() -> None:
    weights = np.full((1032, 2), 127)
    assert exact_dtype(weights, 128) == np.float32
    assert exact_dtype(np.full((1033, 2), 127), 128) == np.float64
