"""L2, local response and instance normalization against their definitions, element by element."""

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
LRN = Op.LOCAL_RESPONSE_NORMALIZATION


def axis_of(data: st.DataObject, shape: tuple[int, ...]) -> int:
    return data.draw(st.integers(-len(shape), len(shape) - 1))


def normal(shape: tuple[int, ...], seed: int = 3) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) * 3


@given(SHAPES, st.data())
def test_l2_float(shape: tuple[int, ...], data: st.DataObject) -> None:
    x, axis = normal(shape), axis_of(data, shape)
    cases: list[tuple[list[Tensor], int]] = [([scalar(axis)], axis), ([], -1)]
    for options, along in cases:
        (got,) = run(Op.L2_NORMALIZATION, tensor(x), *options)
        norm = np.sqrt((x.astype(float) ** 2).sum(along, keepdims=True))
        expected: Array = x / norm
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_l2_of_nothing_but_zeros_is_zero() -> None:
    x = np.asarray([[0, 0], [3e-7, 4e-7], [3, -4]], np.float32)
    (got,) = run(Op.L2_NORMALIZATION, tensor(x))
    np.testing.assert_allclose(got, [[0.0, 0.0], [0.3, 0.4], [0.6, -0.8]], rtol=1e-6)
    (got,) = run(Op.L2_NORMALIZATION, tensor(np.full((2, 3), 7, np.uint8), scale=1.0, zero_point=7))
    np.testing.assert_array_equal(got, 128)


def quantized_l2(row: list[int], zero: int) -> list[int]:
    """round(128 * v / norm), halves away from zero, decided in whole numbers."""
    values = [x - zero for x in row]
    total = max(sum(v * v for v in values), 1)
    results = []
    for v in values:
        steps = (math.isqrt(4 * 128**2 * v * v // total) + 1) // 2
        results.append(min(255, 128 + (steps if v >= 0 else -steps)))
    return results


@given(SHAPES, st.integers(0, 255), st.integers(0, 2**32), st.data())
def test_l2_quantized_is_rounded_exactly(
    shape: tuple[int, ...], zero: int, seed: int, data: st.DataObject
) -> None:
    axis = axis_of(data, shape)
    q = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    (got,) = run(Op.L2_NORMALIZATION, tensor(q, scale=0.5, zero_point=zero), scalar(axis))
    expected = np.apply_along_axis(lambda row: quantized_l2(row.tolist(), zero), axis, q)
    np.testing.assert_array_equal(got, expected)
    twin = tensor((q ^ 128).view(np.int8), scale=0.5, zero_point=zero - 128)
    (signed,) = run(Op.L2_NORMALIZATION, twin, scalar(axis))
    np.testing.assert_array_equal(signed.view(np.uint8) ^ 128, got)


def test_l2_quantized_halves_go_away_from_zero() -> None:
    """Of norm 256: 128 * v / 256 is a half for each odd v."""
    q = np.asarray(
        [[129, 127, 131, 125, *[192] * 15, *[128 + 32] * 3, 128 + 30, 128 + 9]], np.uint8
    )
    rest = 256**2 - int(((q.astype(int) - 128) ** 2).sum())
    squares = []
    while rest:
        squares.append(min(math.isqrt(rest), 127))
        rest -= squares[-1] ** 2
    q = np.concatenate([q, np.asarray([squares], np.uint8) + 128], 1)
    (got,) = run(Op.L2_NORMALIZATION, tensor(q, scale=1.0, zero_point=128))
    np.testing.assert_array_equal(got[0, :4], [129, 127, 130, 126])
    np.testing.assert_array_equal(got[0], quantized_l2(q[0].tolist(), 128))


def responses(row: Array, radius: int, bias: float, alpha: float, beta: float) -> Array:
    n = len(row)
    sums = [
        sum(float(row[d]) ** 2 for d in range(max(0, i - radius), min(n, i + radius + 1)))
        for i in range(n)
    ]
    return row * (bias + alpha * np.asarray(sums)) ** -beta


@given(SHAPES, st.integers(-2, 9), st.data())
def test_local_response(shape: tuple[int, ...], radius: int, data: st.DataObject) -> None:
    x, axis = normal(shape), axis_of(data, shape)
    numbers = 0.5, 0.75, data.draw(st.sampled_from([0.5, 1.0, 0.75, 0.0, -1.0]))
    options = [scalar(radius), *(scalar(number) for number in numbers)]
    (got,) = run(LRN, tensor(x), *options, scalar(axis))
    expected = np.apply_along_axis(responses, axis, x.astype(float), radius, *numbers)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)
    if axis in (-1, len(shape) - 1):
        np.testing.assert_array_equal(run(LRN, tensor(x), *options)[0], got)


def test_local_response_of_any_radius() -> None:
    x = normal((1, 1, 2, 40))
    for radius in (0, 5, 38, 39, 40, 2**31 - 1):
        (got,) = run(LRN, tensor(x), scalar(radius), scalar(1.0), scalar(0.1), scalar(0.5))
        expected = np.apply_along_axis(
            responses, -1, x.astype(float), min(radius, 40), 1.0, 0.1, 0.5
        )
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_local_response_keeps_what_is_not_finite_inside_its_window() -> None:
    x = np.ones((1, 1, 1, 9), np.float32)
    x[..., 4] = np.nan
    (got,) = run(LRN, tensor(x), scalar(1), scalar(1.0), scalar(1.0), scalar(0.5))
    np.testing.assert_array_equal(np.isnan(got[0, 0, 0]), [0, 0, 0, 1, 1, 1, 0, 0, 0])


@given(hnp.array_shapes(min_dims=4, max_dims=4, max_side=5), st.booleans())
def test_instance(shape: tuple[int, ...], channels_first: bool) -> None:
    x = normal(shape)
    gamma, beta, epsilon = 1.5, -0.25, 1e-3
    options = [scalar(gamma), scalar(beta), scalar(epsilon), scalar(channels_first)]
    (got,) = run(Op.INSTANCE_NORMALIZATION, tensor(x), *options)
    axes = (2, 3) if channels_first else (1, 2)
    wide = x.astype(float)
    mean, variance = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    expected = (wide - mean) * gamma / np.sqrt(variance + epsilon) + beta
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_planes_that_do_not_fit_into_one_block() -> None:
    x = normal((2, 80, 90, 200))
    options = [scalar(1.0), scalar(0.0), scalar(0.0), scalar(False)]
    (got,) = run(Op.INSTANCE_NORMALIZATION, tensor(x), *options)
    np.testing.assert_allclose(got.mean((1, 2)), 0, atol=1e-4)
    np.testing.assert_allclose(got.std((1, 2)), 1, atol=1e-4)
    (got,) = run(Op.L2_NORMALIZATION, tensor(x), scalar(1))
    np.testing.assert_allclose((got.astype(float) ** 2).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("type", "numbers"),
    [
        (Op.L2_NORMALIZATION, []),
        (LRN, [scalar(1), 1.0, 0.5, 0.5]),
        (Op.INSTANCE_NORMALIZATION, [1.5, 0.5, 0.01, scalar(True)]),
    ],
)
def test_float16(type: OperationType, numbers: list[Any]) -> None:
    x = normal((2, 3, 4, 5)).astype(np.float16)
    half, full = (
        [scalar(number, kind) if isinstance(number, float) else number for number in numbers]
        for kind in (T.FLOAT16, T.FLOAT32)
    )
    (got,) = run(type, tensor(x), *half)
    (expected,) = run(type, tensor(x.astype(np.float32)), *full)
    np.testing.assert_allclose(got, expected.astype(np.float16), rtol=2e-3)


def test_refusals() -> None:
    x = tensor(normal((2, 3)))
    with pytest.raises(ModelError, match=r"input 1 \(axis\): is axis -3"):
        run(Op.L2_NORMALIZATION, x, scalar(-3))
    with pytest.raises(ModelError, match=r"input 5 \(axis\): is axis 2"):
        run(LRN, x, scalar(1), scalar(1.0), scalar(1.0), scalar(1.0), scalar(2))
    with pytest.raises(ModelError, match=r"input 0 \(input\): has shape \(2, 3\), expected rank 4"):
        options = [scalar(1.0), scalar(1.0), scalar(1.0), scalar(False)]
        run(Op.INSTANCE_NORMALIZATION, x, *options)
    with pytest.raises(ModelError, match="has scale 0.5 and zero point 0, expected 0.0078125"):
        q = Tensor(type=T.TENSOR_QUANT8_ASYMM, shape=(2, 3), scale=0.5)
        OPERATIONS[Op.L2_NORMALIZATION].prepare([q], [q])


@pytest.mark.parametrize(
    ("type", "shape", "axis", "since"),
    [
        (T.TENSOR_FLOAT32, (1, 2, 3, 4), False, HalVersion.V1_0),
        (T.TENSOR_FLOAT32, (2, 3), False, HalVersion.V1_2),
        (T.TENSOR_FLOAT32, (1, 2, 3, 4), True, HalVersion.V1_2),
        (T.TENSOR_FLOAT16, (1, 2, 3, 4), False, HalVersion.V1_2),
    ],
)
def test_versions(type: OperandType, shape: Any, axis: bool, since: HalVersion) -> None:
    kind = T.FLOAT32 if type == T.TENSOR_FLOAT32 else T.FLOAT16
    data = Tensor(type=type, shape=shape)
    last = [scalar(0)] if axis else []
    for operation, options in (
        (Op.L2_NORMALIZATION, []),
        (LRN, [scalar(1), *[scalar(1.0, kind)] * 3]),
    ):
        assert OPERATIONS[operation].minimum_version([data, *options, *last], [data]) == since
