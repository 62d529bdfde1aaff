"""Floats that roundings explain, and those that they do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.compilation.conditioning import is_rounding
from nnasync._core.compilation.samples import neighbors
from nnasync.hal import Array


def runs(scale: float, seed: int = 0) -> list[Array]:
    """Results of two runs, and what is added to them."""
    random = np.random.default_rng(seed)
    return [(scale * random.standard_normal((1, 100))).astype(np.float32) for _ in range(2)]


def added(expected: list[Array], other: list[Array]) -> list[Array]:
    return [a + b for a, b in zip(expected, other, strict=True)]


def test_many_operations_round_more_often() -> None:
    expected = runs(10)
    rounded, actual = added(expected, runs(1e-3, 1)), added(expected, runs(4e-3, 2))
    assert is_rounding(expected, actual, rounded, 100)
    assert not is_rounding(expected, actual, rounded, 4)


def test_never_more_than_a_hundredth() -> None:
    expected = runs(10)
    rounded, actual = added(expected, runs(5, 1)), [1.03 * each for each in expected]
    assert not is_rounding(expected, actual, rounded, 1000)


def test_an_error_that_is_small_and_everywhere_is_none() -> None:
    expected = runs(10)
    spike = [np.zeros_like(each) for each in expected]
    spike[0][0, 0] = 0.05
    rounded = added(expected, spike)
    assert is_rounding(expected, rounded, rounded, 10)
    assert not is_rounding(expected, [each + np.float32(0.05) for each in expected], rounded, 10)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_no_rounding(value: float) -> None:
    expected = runs(1)
    actual = [each.copy() for each in expected]
    actual[1][0, 3] = value
    for given_ in ((expected, actual, expected), (actual, actual, actual)):
        assert not is_rounding(*given_, 100)


def test_without_answers_to_neighbors_nothing_is_explained() -> None:
    assert not is_rounding(runs(1), runs(1), [], 100)
    empty = [np.zeros((0, 4), np.float32)]
    assert is_rounding(empty, empty, empty, 1)


@given(operations=st.integers(1, 10_000), scale=st.floats(1e-6, 1e3), seed=st.integers(0, 99))
def test_who_is_a_hundredth_off_is_refused_whatever_the_network_does(
    operations: int, scale: float, seed: int
) -> None:
    expected = runs(1, seed)
    actual = [np.float32(1.011) * each for each in expected]
    assert not is_rounding(expected, actual, added(expected, runs(scale, seed + 1)), operations)


def test_neighbors_differ_by_the_last_bit() -> None:
    inputs = [np.array([1.0, -2.5, 0.0], np.float32), np.array([3], np.int32)]
    moved = neighbors(inputs, 0)
    assert np.array_equal(moved[1], inputs[1])
    assert moved[0].dtype == np.float32
    for value, other in zip(inputs[0], moved[0], strict=True):
        assert other in (np.nextafter(value, np.float32(9)), np.nextafter(value, np.float32(-9)))
