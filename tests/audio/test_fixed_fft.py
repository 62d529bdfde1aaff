"""The transform in 16-bit integers: near the real one, and of several rows at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.audio import fixed_rfft
from nnasync.errors import InvalidArgument


@given(st.integers(2, 10), st.integers(1, 32_767), st.integers(0, 2**31))
def test_it_is_the_transform_divided_by_its_size(bits: int, loudest: int, seed: int) -> None:
    size = 1 << bits
    samples = np.random.default_rng(seed).integers(-loudest, loudest + 1, size).astype(np.int16)
    real, imaginary = fixed_rfft(samples)
    expected = np.fft.rfft(samples) / size
    assert np.abs(real - expected.real).max() < 6
    assert np.abs(imaginary - expected.imag).max() < 6


def test_several_are_transformed_at_once() -> None:
    samples = np.random.default_rng(0).integers(-9999, 9999, (3, 2, 64)).astype(np.int16)
    real, imaginary = fixed_rfft(samples)
    assert real.shape == imaginary.shape == (3, 2, 33)
    one = fixed_rfft(samples[1, 1])
    assert np.array_equal(real[1, 1], one[0])
    assert np.array_equal(imaginary[1, 1], one[1])


def test_a_constant_is_its_mean_but_for_rounding() -> None:
    real, imaginary = fixed_rfft(np.full(16, 16_384, np.int16))
    assert real[0] == pytest.approx(16_384, abs=6)
    assert np.abs(imaginary).max() <= 1


@pytest.mark.parametrize("size", [2, 12, 1 << 16])
def test_sizes_that_are_no_power_of_2_are_refused(size: int) -> None:
    with pytest.raises(InvalidArgument, match="power of 2"):
        fixed_rfft(np.zeros(size, np.int16))
