"""HARD_SWISH, LOGISTIC, RELU, RELU1, RELU6 and TANH against the real functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import OperationType
from tests.kernels.running import run, tensor

Op = OperationType

REAL: dict[OperationType, Callable[[Any], Any]] = {
    Op.RELU: lambda x: np.maximum(x, 0),
    Op.RELU1: lambda x: np.clip(x, -1, 1),
    Op.RELU6: lambda x: np.clip(x, 0, 6),
    Op.LOGISTIC: lambda x: 1 / (1 + np.exp(-x)),
    Op.TANH: np.tanh,
    Op.HARD_SWISH: lambda x: x * np.clip(x + 3, 0, 6) / 6,
}
SAME_QUANTIZATION = (Op.RELU, Op.RELU1, Op.RELU6)


@pytest.mark.parametrize("operation", REAL, ids=lambda op: op.name)
@pytest.mark.parametrize("shape", [(3,), (2, 3, 5, 7), (300, 400)])
def test_float(operation: OperationType, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32) * 4
    (got,) = run(operation, tensor(x))
    np.testing.assert_allclose(got, REAL[operation](x.astype(np.float64)), atol=1e-6)


def test_logistic_of_extremes() -> None:
    x = np.asarray([-1e30, -100, 0, 100, 1e30], np.float32)
    (got,) = run(Op.LOGISTIC, tensor(x))
    np.testing.assert_allclose(got, [0, 0, 0.5, 1, 1], atol=1e-7)


@given(
    st.sampled_from(list(REAL)),
    st.sampled_from(["uint8", "int8"]),
    st.floats(0.01, 0.1),
    st.integers(0, 255),
    st.floats(0.03, 0.1),
    st.integers(0, 255),
)
def test_quantized_is_near_the_real_function(
    operation: OperationType,
    dtype: str,
    scale: float,
    zero: int,
    output_scale: float,
    output_zero: int,
) -> None:
    shift = 0 if dtype == "uint8" else 128
    x = (np.arange(256) - shift).astype(dtype).reshape(2, 128)
    (got,) = run(
        operation,
        tensor(x, scale=scale, zero_point=zero - shift),
        scale=output_scale,
        zero_point=output_zero - shift,
    )
    if operation in SAME_QUANTIZATION:
        output_scale, output_zero = scale, zero
    if operation is Op.LOGISTIC:
        output_scale, output_zero = 1 / 256, 0
    if operation is Op.TANH:
        output_scale, output_zero = 1 / 128, 128
    real = REAL[operation]((np.arange(256) - zero) * scale) / output_scale + output_zero
    expected = np.clip(real, 0, 255).reshape(2, 128)
    assert np.abs(got.astype(np.int64) + shift - expected).max() <= 1.51


def test_input_without_scale() -> None:
    with pytest.raises(ModelError, match=r"LOGISTIC: input 0 \(input\): has scale 0.0"):
        run(Op.LOGISTIC, tensor(np.zeros(3, np.uint8)))
