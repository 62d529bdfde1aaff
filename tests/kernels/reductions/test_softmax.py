"""SOFTMAX and LOG_SOFTMAX against the real functions and, bit by bit, the fixed-point rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.running import run, scalar, tensor

Op, T = OperationType, OperandType
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=6)
ONE = 2**31 - 1


def softmax(x: Array, beta: float, axis: int) -> Array:
    scaled = np.exp((x - x.max(axis, keepdims=True)) * beta)
    shares: Array = scaled / scaled.sum(axis, keepdims=True)
    return shares


@given(SHAPES, st.floats(0.1, 3.0), st.data())
def test_softmax_float(shape: tuple[int, ...], beta: float, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32) * 9
    (got,) = run(Op.SOFTMAX, tensor(x), scalar(float(beta)), scalar(axis))
    np.testing.assert_allclose(got, softmax(x.astype(float), beta, axis), atol=1e-6)
    (got,) = run(Op.SOFTMAX, tensor(x), scalar(float(beta)))
    np.testing.assert_allclose(got, softmax(x.astype(float), beta, -1), atol=1e-6)


@given(hnp.array_shapes(min_dims=1, max_dims=5, max_side=5), st.sampled_from([0.0, 1.0, 2.5, -1.0]))
def test_log_softmax(shape: tuple[int, ...], beta: float) -> None:
    x = np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32) * 3
    for axis in range(-len(shape), len(shape)):
        (got,) = run(Op.LOG_SOFTMAX, tensor(x), scalar(beta), scalar(axis))
        scaled = (x.astype(float) - x.max(axis, keepdims=True)) * beta
        expected = scaled - np.log(np.exp(scaled).sum(axis, keepdims=True))
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_rows_that_do_not_fit_into_one_block() -> None:
    x = np.random.default_rng(1).normal(size=(3, 700, 500)).astype(np.float32)
    for axis in (0, 1, 2):
        (got,) = run(Op.SOFTMAX, tensor(x), scalar(1.0), scalar(axis))
        np.testing.assert_allclose(got, softmax(x.astype(float), 1.0, axis), atol=1e-6)


@pytest.mark.parametrize("type", [Op.SOFTMAX, Op.LOG_SOFTMAX])
def test_float16(type: OperationType) -> None:
    x = np.random.default_rng(2).normal(size=(3, 5)).astype(np.float16)
    half = scalar(1.5, T.FLOAT16)
    (got,) = run(type, tensor(x), half, scalar(0))
    (expected,) = run(type, tensor(x.astype(np.float32)), scalar(1.5), scalar(0))
    np.testing.assert_array_equal(got, expected.astype(np.float16))


def high_mul(a: int, b: int) -> int:
    """The rule's product of two 32-bit fractions, cut towards zero after a nudge."""
    product = a * b
    nudged = product + (2**30 if product >= 0 else 1 - 2**30)
    high = abs(nudged) >> 31
    return high if nudged >= 0 else -high


def halved(x: int, times: int) -> int:
    """x / 2**times, halves away from zero."""
    magnitude = (abs(x) + (1 << times >> 1)) >> times
    return magnitude if x >= 0 else -magnitude


def exponential(a: int) -> int:
    """exp of a number <= 0 with 26 fractional bits, as a fraction of 31 bits."""
    if a == 0:
        return ONE
    inside = (a & (2**24 - 1)) - 2**24
    x = (inside << 5) + 2**28
    x2 = high_mul(x, x)
    x3, x4 = high_mul(x2, x), high_mul(x2, x2)
    series = halved(high_mul(halved(x4, 2) + x3, 715827883) + x2, 1)
    result = 1895147668 + high_mul(1895147668, x + series)
    factors = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
    for place, factor in enumerate(factors):
        if (inside - a) >> (24 + place) & 1:
            result = high_mul(result, factor)
    return result


def reciprocal(a: int) -> int:
    """1 / (1 + a) of a fraction of 31 bits."""
    half_denominator = (a + ONE + 1) // 2
    x = 1515870810 + high_mul(half_denominator, -1010580540)
    for _ in range(3):
        x += high_mul(x, 2**29 - high_mul(half_denominator, x)) << 2
    return min(x << 1, ONE)


def quantized_row(row: list[int], scale: float, beta: float) -> list[int]:
    """One row of quantized SOFTMAX, in steps above the lowest value."""
    multiplier = min(float(np.float32(beta)) * float(np.float32(scale)) * 2**26, 2**31 - 1.0)
    mantissa, shift = math.frexp(multiplier)
    q = round(mantissa * 2**31)
    if q == 2**31:
        q, shift = q // 2, shift + 1
    radius = 31 * 2**26 // 2**shift
    largest = max(row)
    terms = [
        exponential(high_mul((x - largest) * 2**shift, q)) if largest - x <= radius else None
        for x in row
    ]
    total = sum(halved(term, 12) for term in terms if term is not None)
    zeros = 32 - total.bit_length()
    factor = reciprocal((total << zeros) - 2**31)
    return [
        0 if term is None else min(255, halved(high_mul(factor, term), 12 - zeros + 23))
        for term in terms
    ]


@given(
    hnp.array_shapes(min_dims=1, max_dims=4, max_side=5),
    st.floats(2.0**-20, 4.0, width=32),
    st.sampled_from([0.25, 1.0, 10.0]),
    st.integers(0, 2**32),
    st.data(),
)
def test_quantized_is_the_rule_to_the_bit(
    shape: tuple[int, ...], scale: float, beta: float, seed: int, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    spread = data.draw(st.sampled_from([2, 20, 256]))
    q = np.random.default_rng(seed).integers(0, spread, shape).astype(np.uint8)
    (got,) = run(Op.SOFTMAX, tensor(q, scale=scale, zero_point=3), scalar(beta), scalar(axis))
    expected = np.apply_along_axis(lambda row: quantized_row(row.tolist(), scale, beta), axis, q)
    np.testing.assert_array_equal(got, expected)
    twin = tensor((q ^ 128).view(np.int8), scale=scale, zero_point=-125)
    (signed,) = run(Op.SOFTMAX, twin, scalar(beta), scalar(axis))
    np.testing.assert_array_equal(signed.view(np.uint8) ^ 128, got)


@pytest.mark.parametrize("length", [1, 3, 500, 513, 1024, 3000])
def test_quantized_sums_of_all_sizes(length: int) -> None:
    for row in (np.full(length, 7), np.arange(length) % 5, np.arange(length) == length // 2):
        q = row.astype(np.uint8)
        (got,) = run(Op.SOFTMAX, tensor(q, scale=0.5), scalar(1.0))
        np.testing.assert_array_equal(got, quantized_row(q.tolist(), 0.5, 1.0))


def test_quantized_sums_that_do_not_fit_into_32_bits() -> None:
    q = np.full((2, 20000), 9, np.uint8)
    (got,) = run(Op.SOFTMAX, tensor(q, scale=0.5), scalar(1.0))
    np.testing.assert_array_equal(got, 0)


def test_quantized_differences_beyond_the_radius_count_as_nothing() -> None:
    """Of scale 1 the radius is 15, though e**-16 of 4000 terms would be seen in the sum."""
    q = np.asarray([16, *[0] * 4000], np.uint8)
    (got,) = run(Op.SOFTMAX, tensor(q, scale=0.5), scalar(1.0))
    assert quantized_row(q.tolist(), 0.5, 1.0)[0] == got[0] < 255
    q[0] = 32
    (got,) = run(Op.SOFTMAX, tensor(q, scale=0.5), scalar(1.0))
    np.testing.assert_array_equal(got, [255] + [0] * 4000)


def test_values_that_are_not_finite_flow_through() -> None:
    x = np.asarray([[0, -np.inf, 0, 0], [0, np.inf, 0, 0], [0, np.nan, 0, 0]], np.float32)
    with np.errstate(all="ignore"):
        (got,) = run(Op.SOFTMAX, tensor(x), scalar(1.0))
        (logarithms,) = run(Op.LOG_SOFTMAX, tensor(x), scalar(1.0), scalar(-1))
    np.testing.assert_allclose(got[0], [1 / 3, 0, 1 / 3, 1 / 3], rtol=1e-6)
    assert np.isnan(got[1, 1])
    assert np.isnan(got[2]).all()
    assert logarithms[0, 1] == -np.inf
    assert np.isnan(logarithms[2]).all()


def test_no_rows_are_legal() -> None:
    (got,) = run(Op.SOFTMAX, tensor(np.zeros((0, 4), np.float32)), scalar(1.0))
    assert got.shape == (0, 4)
    with pytest.raises(ModelError, match="no elements"):
        run(Op.LOG_SOFTMAX, tensor(np.zeros((0, 4), np.float32)), scalar(1.0), scalar(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([scalar(0.0)], r"input 1 \(beta\): is 0.0, expected a positive"),
        ([scalar(1.0), scalar(2)], r"input 2 \(axis\): is axis 2, expected within \[-2, 2\)"),
    ],
)
def test_softmax_refuses(options: list[Tensor], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        run(Op.SOFTMAX, tensor(np.zeros((2, 3), np.float32)), *options)


def test_softmax_refuses_what_the_rule_cannot_scale() -> None:
    q = tensor(np.zeros((2, 3), np.uint8), scale=2.0**-26)
    with pytest.raises(ModelError, match=r"input 1 \(beta\): is 1.0, expected beta \* scale"):
        run(Op.SOFTMAX, q, scalar(1.0))
    with pytest.raises(ModelError, match=r"input 0 \(input\): has shape \(1, 1, 1, 1, 1\)"):
        run(Op.SOFTMAX, tensor(np.zeros((1,) * 5, np.float32)), scalar(1.0))


@pytest.mark.parametrize(
    ("type", "shape", "axis", "since"),
    [
        (T.TENSOR_FLOAT32, (2, 3), None, HalVersion.V1_0),
        (T.TENSOR_QUANT8_ASYMM, (1, 2, 3, 4), None, HalVersion.V1_0),
        (T.TENSOR_FLOAT32, (2,), None, HalVersion.V1_2),
        (T.TENSOR_QUANT8_ASYMM, (1, 2, 3), None, HalVersion.V1_2),
        (T.TENSOR_FLOAT32, (2, 3), scalar(0), HalVersion.V1_2),
        (T.TENSOR_QUANT8_ASYMM_SIGNED, (2, 3), None, HalVersion.V1_3),
    ],
)
def test_versions(type: OperandType, shape: Any, axis: Tensor | None, since: HalVersion) -> None:
    data = Tensor(type=type, shape=shape, scale=0.5 if "QUANT" in type.name else 0.0)
    inputs = [data, scalar(1.0), *([] if axis is None else [axis])]
    operation = OPERATIONS[Op.SOFTMAX]
    assert operation.minimum_version(inputs, operation.infer(inputs)) == since
