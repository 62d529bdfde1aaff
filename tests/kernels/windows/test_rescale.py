"""Requantization is bit-exact against fixed point, in float32 as in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.hal import Array, OperandType
from nnasync.kernels import Tensor
from nnasync.kernels.fixed_point import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    saturating_rounding_doubling_high_mul,
)
from nnasync.kernels.steps import quantized_bounds, sequence
from nnasync.kernels.windows.rescale import Halves, Rescale

TYPES = (OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED)


def rescaled(
    sums: Array, multiplier: float, bias: int, output: Tensor, fused: int, halves: Halves
) -> Array:
    dtype = np.dtype(np.float32)
    rescale = Rescale(
        np.asarray([multiplier]), np.asarray([bias]), output, fused, dtype, halves=halves
    )
    shape = (len(sums), 1)
    scratch = [np.empty(spec.shape, spec.dtype) for spec in rescale.scratch(shape, dtype)]
    target = np.empty(shape, output.dtype)
    floats = sums.astype(np.float32).reshape(shape)
    sequence(rescale.calls(floats, target, scratch))()
    return target[:, 0].astype(np.int64)


def ruled(sums: Array, multiplier: float, output: Tensor, fused: int, halves: Halves) -> Array:
    q, shift = quantize_multiplier(multiplier)
    if halves is Halves.AWAY:
        scaled = multiply_by_quantized_multiplier(sums, q, shift)
    else:
        scaled = saturating_rounding_doubling_high_mul(sums * (1 << max(shift, 0)), q)
        right = max(-shift, 0)
        scaled = (scaled + ((1 << right) >> 1)) >> right
    bounds = quantized_bounds(fused, output)
    clipped: Array = (scaled + output.zero_point).clip(*bounds)
    return clipped


@given(
    st.floats(1e-4, 2.0),
    st.sampled_from(TYPES),
    st.integers(-128, 127),
    st.integers(0, 3),
    st.sampled_from(Halves),
    st.integers(-1000, 1000),
)
def test_bit_exact_at_every_sum_near_a_change_of_the_output(
    multiplier: float,
    type: OperandType,
    zero: int,
    fused: int,
    halves: Halves,
    bias: int,
) -> None:
    zero_point = zero if type == TYPES[1] else zero + 128
    output = Tensor(type=type, shape=(1,), scale=0.05, zero_point=zero_point)
    changes = ((np.arange(-130, 260) - zero_point + 0.5) / multiplier).astype(np.int64)
    sums = (changes[:, None] + np.arange(-2, 3)).reshape(-1)
    sums = sums[np.abs(sums) < 2**23]
    got = rescaled(sums - bias, multiplier, bias, output, fused, halves)
    np.testing.assert_array_equal(got, ruled(sums, multiplier, output, fused, halves))


def test_one_channel_of_four_has_no_exact_float32_factors() -> None:
    multipliers, biases = (
        np.array([0.05, 0.06, 0.07, 0.0017576797444247261]),
        np.array([0, 0, 0, 160]),
    )
    output = Tensor(type=TYPES[0], shape=(4,), scale=0.05, zero_point=158)
    rescale = Rescale(multipliers, biases, output, 0, np.dtype(np.float32), halves=Halves.UP)
    sums = np.repeat(np.arange(-20_000, 40_000)[:, None], 4, axis=1)
    floats = sums.astype(np.float32)
    scratch = [
        np.empty(spec.shape, spec.dtype) for spec in rescale.scratch(sums.shape, floats.dtype)
    ]
    target = np.empty(sums.shape, output.dtype)
    sequence(rescale.calls(floats, target, scratch))()
    for channel, (multiplier, bias) in enumerate(zip(multipliers, biases, strict=True)):
        expected = ruled(sums[:, channel] + bias, multiplier, output, 0, Halves.UP)
        np.testing.assert_array_equal(target[:, channel], expected)


@pytest.mark.parametrize("halves", Halves)
def test_all_sums_of_a_range(halves: Halves) -> None:
    output = Tensor(type=TYPES[0], shape=(1,), scale=0.1, zero_point=100)
    sums = np.arange(-40_000, 60_000)
    got = rescaled(sums, 0.003051757, 0, output, 0, halves)
    np.testing.assert_array_equal(got, ruled(sums, 0.003051757, output, 0, halves))


def test_float32_is_used_where_it_is_proven() -> None:
    output = Tensor(type=TYPES[0], shape=(1,), scale=0.1, zero_point=0)
    dtype = np.dtype(np.float32)
    one, zero = np.asarray([0.5]), np.zeros(1)
    rescale = Rescale(one, zero, output, 0, dtype, halves=Halves.UP)
    assert rescale.scratch((4, 1), dtype) == []
    fine = Rescale(one / 1000, zero, output, 0, dtype, halves=Halves.UP)
    assert [spec.dtype for spec in fine.scratch((4, 1), dtype)] == [np.float64]
