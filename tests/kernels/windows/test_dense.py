"""FULLY_CONNECTED against the definition and the fixed-point rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from nnasync.kernels.fixed_point import multiply_by_quantized_multiplier, quantize_multiplier
from tests.kernels.running import run, scalar, tensor

DENSE = OperationType.FULLY_CONNECTED


@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(1, 20),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)
def test_float(
    rows: int, units: int, terms: int, fused: int, image: bool, weights_late: bool
) -> None:
    rng = np.random.default_rng(rows * 100 + units)
    x, w = rng.normal(size=(rows, terms)), rng.normal(size=(units, terms))
    bias = rng.normal(size=units)
    shaped = x.reshape(rows, 1, terms, 1) if image else x
    tensors = [tensor(value.astype(np.float32)) for value in (shaped, w, bias)]
    runtime = (0, 1, 2) if weights_late else (0,)
    (got,) = run(DENSE, *tensors, scalar(fused), runtime=runtime)
    bounds = {0: (-np.inf, np.inf), 1: (0, np.inf), 2: (-1, 1), 3: (0, 6)}[fused]
    np.testing.assert_allclose(got, (x @ w.T + bias).clip(*bounds), rtol=1e-4, atol=1e-5)


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 300), st.sampled_from(["u1", "i1"]))
def test_quantized(rows: int, units: int, terms: int, dtype: str) -> None:
    rng = np.random.default_rng(units * 1000 + terms)
    info = np.iinfo(dtype)
    x, w = (rng.integers(info.min, info.max + 1, (n, terms)).astype(dtype) for n in (rows, units))
    bias = rng.integers(-999, 999, units).astype(np.int32)
    product = float(np.float32(0.02) * np.float32(0.03))
    (got,) = run(
        DENSE,
        tensor(x, scale=0.02, zero_point=5),
        tensor(w, scale=0.03, zero_point=9),
        tensor(bias, scale=product),
        scalar(0),
        scale=0.5,
        zero_point=40,
    )
    sums = (x.astype(np.int64) - 5) @ (w.astype(np.int64) - 9).T + bias
    expected = multiply_by_quantized_multiplier(sums, *quantize_multiplier(product / 0.5)) + 40
    assert np.abs(got.astype(np.int64) - expected.clip(info.min, info.max)).max() <= 1


def test_sizes_that_do_not_fit() -> None:
    x, w = np.zeros((2, 5), np.float32), np.zeros((3, 4), np.float32)
    with pytest.raises(ModelError, match="has 10 elements, expected a multiple of the weights' 4"):
        run(DENSE, tensor(x), tensor(w), tensor(np.zeros(3, np.float32)), scalar(0))
    w = np.zeros((3, 5), np.float32)
    with pytest.raises(ModelError, match=r"input 2 \(bias\): has 2 elements, expected 3"):
        run(DENSE, tensor(x), tensor(w), tensor(np.zeros(2, np.float32)), scalar(0))


def test_signed_is_unsigned_shifted() -> None:
    rng = np.random.default_rng(8)
    x, w = rng.integers(0, 256, (4, 600)), rng.integers(0, 256, (9, 600))
    product = float(np.float32(0.02) * np.float32(0.03))
    bias = tensor(rng.integers(-999, 999, 9).astype(np.int32), scale=product)
    results = []
    for dtype, shift in ((np.uint8, 0), (np.int8, 128)):
        (got,) = run(
            DENSE,
            tensor((x - shift).astype(dtype), scale=0.02, zero_point=120 - shift),
            tensor((w - shift).astype(dtype), scale=0.03, zero_point=100 - shift),
            bias,
            scalar(0),
            scale=0.9,
            zero_point=128 - shift,
        )
        results.append(got.astype(int) + shift)
    np.testing.assert_array_equal(results[0], results[1])
    assert len(np.unique(results[0])) > 20


def test_empty_batches_and_float16() -> None:
    empty = Tensor(type=OperandType.TENSOR_FLOAT32, shape=(0, 5), exact=True)
    w, bias = np.ones((3, 5), np.float32), np.zeros(3, np.float32)
    (out,) = OPERATIONS[DENSE].infer([empty, tensor(w), tensor(bias), scalar(0)])
    assert out.shape == (0, 3)
    half = [tensor(value.astype(np.float16)) for value in (np.ones((2, 5)), w, bias)]
    (got,) = run(DENSE, *half, scalar(2))
    assert got.dtype == np.float16
    assert got.tolist() == [[1.0] * 3] * 2


def test_versions_and_ranks() -> None:
    x = tensor(np.zeros((2, 5), np.uint8), scale=0.5)
    w = tensor(np.zeros((3, 5), np.uint8), scale=0.5)
    inputs = [x, w, tensor(np.zeros(3, np.int32), scale=0.25), scalar(0)]
    for scale, version in ((0.3, HalVersion.V1_0), (0.25, HalVersion.V1_2)):
        output = Tensor(type=x.type, shape=(2, 3), scale=scale)
        assert OPERATIONS[DENSE].minimum_version(inputs, [output]) == version
    inputs[2] = tensor(np.zeros(3, np.int32), scale=0.5)
    with pytest.raises(ModelError, match=r"input 2 \(bias\): has scale 0.5, expected 0.25"):
        OPERATIONS[DENSE].minimum_version(inputs, [Tensor(type=x.type, scale=1.0)])
    flat = Tensor(type=x.type, shape=(10,), scale=0.5)
    with pytest.raises(ModelError, match="expected rank 2 or 3 or 4"):
        OPERATIONS[DENSE].infer([flat, *inputs[1:]])
