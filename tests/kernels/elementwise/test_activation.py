"""ELU, HARD_SWISH, LOGISTIC, RELU, RELU1, RELU6 and TANH: real functions, fixed-point rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType
from tests.kernels.integer_rule import (
    divided,
    high_mul,
    quantize_multiplier,
    saturated16,
    scaled16,
    truncated,
)
from tests.kernels.running import run, scalar, tensor

Op = OperationType

REAL: dict[OperationType, Callable[[Any], Any]] = {
    Op.RELU: lambda x: np.maximum(x, 0),
    Op.RELU1: lambda x: np.clip(x, -1, 1),
    Op.RELU6: lambda x: np.clip(x, 0, 6),
    Op.LOGISTIC: lambda x: 1 / (1 + np.exp(-x)),
    Op.TANH: np.tanh,
    Op.HARD_SWISH: lambda x: x * np.clip(x + 3, 0, 6) / 6,
}
BOUNDS = {Op.RELU: (0, math.inf), Op.RELU1: (-1, 1), Op.RELU6: (0, 6)}
SHORT_DECIMALS = [float(np.float32(scale)) for scale in (0.8, 0.48, 0.16, 0.25, 0.1, 8.0)]
"""Scales of which quantized bounds are halves in float32."""
activations = pytest.mark.parametrize("operation", REAL, ids=lambda op: op.name)
byte_types = pytest.mark.parametrize("dtype", ["uint8", "int8"])


@activations
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(3,), (2, 3, 5, 7), (300, 400)])
def test_float(operation: OperationType, dtype: type, shape: tuple[int, ...]) -> None:
    x: Array = (np.random.default_rng(1).normal(size=shape) * 4).astype(dtype)
    (got,) = run(operation, tensor(x))
    tolerance = 1e-6 if dtype is np.float32 else 1e-2
    np.testing.assert_allclose(got, REAL[operation](x.astype(np.float64)), atol=tolerance)


def test_logistic_of_extremes() -> None:
    x = np.asarray([-1e30, -100, 0, 100, 1e30], np.float32)
    (got,) = run(Op.LOGISTIC, tensor(x))
    np.testing.assert_allclose(got, [0, 0, 0.5, 1, 1], atol=1e-7)


def all_values(
    operation: OperationType,
    dtype: str,
    scale: float,
    zero: int,
    output_scale: float = 0.05,
    output_zero: int = 0,
) -> list[int]:
    """Results of the 256 values in ascending order, zero points and results as unsigned ones."""
    shift = 0 if dtype == "uint8" else 128
    x = (np.arange(256) - shift).astype(dtype).reshape(2, 128)
    (got,) = run(
        operation,
        tensor(x, scale=scale, zero_point=zero - shift),
        scale=output_scale,
        zero_point=output_zero - shift,
    )
    assert got.dtype == dtype
    shifted: Array = got.astype(np.int64) + shift
    return [int(value) for value in shifted.ravel()]


def half_away(value: float) -> int:
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


@byte_types
@given(
    st.sampled_from(list(BOUNDS)),
    st.one_of(st.floats(1e-3, 0.2), st.sampled_from(SHORT_DECIMALS)),
    st.integers(0, 255),
)
def test_relu_clamps_between_quantized_bounds(
    dtype: str, operation: OperationType, scale: float, zero: int
) -> None:
    lower, upper = BOUNDS[operation]
    least = max(0, zero + half_away(float(np.float32(lower) / np.float32(scale))))
    most = 255
    if upper < math.inf:
        most = min(255, zero + half_away(float(np.float32(upper) / np.float32(scale))))
    expected = [max(least, min(most, value)) for value in range(256)]
    assert all_values(operation, dtype, scale, zero) == expected


SQUASHED: dict[OperationType, tuple[Callable[[float], float], int, int]] = {
    Op.LOGISTIC: (lambda x: 0.5 + 0.5 * math.tanh(x / 2), 256, 0),
    Op.TANH: (math.tanh, 128, 128),
}


def squashed(operation: OperationType, x: int, scale: float) -> set[int]:
    """What the rule may say of a centered value; two results where the real one is near a half."""
    function, steps, zero = SQUASHED[operation]
    q, shift = quantize_multiplier(float(np.float32(scale)) * 2**27)
    radius = math.floor(Fraction(15 * 2**27, 2**shift))
    if x <= -radius:
        return {0}
    if x >= radius:
        return {255}
    real = function(high_mul(x * 2**shift, q, 32) / 2**27) * steps
    return {min(255, half_away(real + slack) + zero) for slack in (-2e-6, 2e-6)}


@byte_types
@given(
    st.sampled_from(list(SQUASHED)),
    st.one_of(st.floats(1e-3, 0.2), st.sampled_from([1e-8, 0.25, 0.5, 1.0, 4.0, 8.0, 300.0])),
    st.integers(0, 255),
)
def test_logistic_and_tanh_follow_the_fixed_point_rule(
    dtype: str, operation: OperationType, scale: float, zero: int
) -> None:
    got = all_values(operation, dtype, scale, zero)
    for value, result in enumerate(got):
        assert result in squashed(operation, value - zero, scale)


def hard_swish(x: int, scale: float, output_scale: float) -> int:
    """The rule in 16 bits on a centered value, less the output's zero point."""
    fine = np.float32(1 / 128) * np.float32(scale)
    wide = x * 128
    product, exponent = scaled16(wide, float(fine / np.float32(output_scale)))
    gate_multiplier = float(fine / np.float32(3 / 32768))
    gate_exponent = quantize_multiplier(gate_multiplier)[1]
    gate = saturated16(wide * 2 ** max(gate_exponent - 1, 0))
    gate, _ = scaled16(gate, gate_multiplier)
    if gate_exponent > 0:
        gate = saturated16(gate * 2)
    gate = (divided(gate, max(-gate_exponent, 0)) + 2**15) // 2
    return divided(truncated(Fraction(gate * product, 2**15)), -exponent)


@byte_types
@given(
    st.one_of(st.floats(1e-3, 0.3), st.sampled_from([0.1, 0.25, 1.0])),
    st.integers(0, 255),
    st.one_of(st.floats(0.01, 0.3), st.sampled_from([0.1, 0.25, 1.0])),
    st.integers(0, 255),
)
def test_hard_swish_follows_the_fixed_point_rule(
    dtype: str, scale: float, zero: int, output_scale: float, output_zero: int
) -> None:
    got = all_values(Op.HARD_SWISH, dtype, scale, zero, output_scale, output_zero)
    expected = [
        max(0, min(255, hard_swish(value - zero, scale, output_scale) + output_zero))
        for value in range(256)
    ]
    assert got == expected


@given(
    st.sampled_from(list(REAL)),
    st.floats(0.01, 0.1),
    st.integers(0, 255),
    st.floats(0.03, 0.1),
    st.integers(0, 255),
)
def test_quantized_is_near_the_real_function(
    operation: OperationType, scale: float, zero: int, output_scale: float, output_zero: int
) -> None:
    got = all_values(operation, "uint8", scale, zero, output_scale, output_zero)
    if operation in BOUNDS:
        output_scale, output_zero = scale, zero
    if operation in SQUASHED:
        output_scale, output_zero = 1 / SQUASHED[operation][1], SQUASHED[operation][2]
    real = REAL[operation]((np.arange(256) - zero) * scale) / output_scale + output_zero
    assert np.abs(np.asarray(got) - np.clip(real, 0, 255)).max() <= 1.51


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("runtime", [(0,), (0, 1)])
@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0, 0.0])
def test_elu(dtype: type, runtime: tuple[int, ...], alpha: float) -> None:
    x: Array = np.asarray([[-20, -1, -1e-3, 0, 0.5, 10, 200]], dtype)
    half = dtype is np.float16
    given = scalar(alpha, OperandType.FLOAT16 if half else OperandType.FLOAT32)
    with np.errstate(all="ignore"):
        (got,) = run(Op.ELU, tensor(x), given, runtime=runtime)
    expected = [
        value if value >= 0 else alpha * (math.exp(value) - 1) for value in x.ravel().tolist()
    ]
    tolerance = 2e-3 if half else 1e-6
    np.testing.assert_allclose(got.ravel(), expected, rtol=tolerance, atol=tolerance)


@activations
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_no_elements(operation: OperationType, dtype: str) -> None:
    x = tensor(np.zeros((0, 3), dtype), scale=0.5 if dtype.endswith("int8") else 0.0)
    (got,) = run(operation, x, scale=0.5)
    assert got.shape == (0, 3)


def test_elu_refuses_no_elements() -> None:
    with pytest.raises(ModelError, match=r"ELU: input 0 \(input\): has shape \(0,\)"):
        run(Op.ELU, tensor(np.zeros(0, np.float32)), scalar(1.0))


@activations
def test_ranks(operation: OperationType) -> None:
    x = tensor(np.zeros((1,) * 5, np.float32))
    if operation is Op.HARD_SWISH:
        assert run(operation, x)[0].shape == (1,) * 5
    else:
        with pytest.raises(ModelError, match=r"input 0 \(input\): .* expected rank 1 or 2"):
            run(operation, x)


def test_scales_that_are_refused() -> None:
    q = np.zeros(3, np.uint8)
    with pytest.raises(ModelError, match=r"LOGISTIC: input 0 \(input\): has scale 0.0"):
        run(Op.LOGISTIC, tensor(q))
    for operation in SQUASHED:
        with pytest.raises(ModelError, match=r"has scale 7e-09, expected more than 2\*\*-27"):
            run(operation, tensor(q, scale=7e-9))
    with pytest.raises(ModelError, match=r"HARD_SWISH: input 0 .* less than 128 times"):
        run(Op.HARD_SWISH, tensor(q, scale=12.8), scale=0.05)
