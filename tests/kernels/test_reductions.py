"""MEAN, SOFTMAX, QUANTIZE and DEQUANTIZE against the real functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType
from tests.kernels.running import integers, run, scalar, tensor

Op = OperationType
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=6)


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


@given(SHAPES, st.sampled_from(["uint8", "int8"]), st.floats(0.01, 0.5), st.data())
def test_softmax_quantized(
    shape: tuple[int, ...], dtype: str, scale: float, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    q = np.random.default_rng(7).integers(0, 256, shape).astype(np.uint8).view(dtype)
    (got,) = run(Op.SOFTMAX, tensor(q, scale=scale, zero_point=3), scalar(1.0), scalar(axis))
    lowest = np.iinfo(dtype).min
    expected = (softmax(q.astype(float) * scale, 1.0, axis) * 256 + lowest).clip(None, lowest + 255)
    assert np.abs(got - expected).max() <= 0.51


def test_softmax_refuses() -> None:
    x = tensor(np.zeros((2, 3), np.float32))
    with pytest.raises(ModelError, match=r"input 1 \(beta\): is 0.0, expected a positive"):
        run(Op.SOFTMAX, x, scalar(0.0))
    with pytest.raises(ModelError, match=r"input 2 \(axis\): is axis 2, expected within \[-2, 2\)"):
        run(Op.SOFTMAX, x, scalar(1.0), scalar(2))


@given(SHAPES, st.sampled_from(["float32", "uint8", "int8"]), st.booleans(), st.data())
def test_mean(shape: tuple[int, ...], dtype: Any, keep: bool, data: st.DataObject) -> None:
    rank = len(shape)
    axes = data.draw(st.lists(st.integers(-rank, rank - 1), min_size=1, max_size=rank + 1))
    x = np.random.default_rng(5).normal(size=shape) * 60
    x = x.astype(np.int8).view(dtype) if dtype != "float32" else x.astype(dtype)
    source = tensor(x, scale=0.5, zero_point=2)
    (got,) = run(Op.MEAN, source, integers(*axes), scalar(int(keep)))
    once = tuple({axis % rank for axis in axes})
    expected = x.astype(np.float64).mean(once, keepdims=keep)
    if dtype != "float32":
        expected = np.trunc(expected + np.copysign(1e-9, expected))
    np.testing.assert_allclose(got, expected.reshape(expected.shape or (1,)), rtol=1e-4, atol=1e-4)


def test_mean_refuses() -> None:
    with pytest.raises(ModelError, match=r"MEAN: input 1 \(axes\): is axis 2"):
        run(Op.MEAN, tensor(np.zeros((2, 3), np.float32)), integers(2), scalar(0))


@given(SHAPES, st.sampled_from(["uint8", "int8"]), st.floats(0.01, 3.0), st.data())
def test_quantize_and_back(
    shape: tuple[int, ...], dtype: str, scale: float, data: st.DataObject
) -> None:
    info = np.iinfo(dtype)
    zero = data.draw(st.integers(info.min, info.max))
    x = np.random.default_rng(9).normal(size=shape).astype(np.float32) * 100
    kind = OperandType.TENSOR_QUANT8_ASYMM
    kind = kind if dtype == "uint8" else OperandType.TENSOR_QUANT8_ASYMM_SIGNED
    (q,) = run(Op.QUANTIZE, tensor(x), scale=scale, zero_point=zero, output_types=[kind])
    steps = x / np.float32(scale)
    expected = np.trunc(steps + np.copysign(np.float32(0.5), steps)) + zero
    np.testing.assert_array_equal(q, expected.clip(info.min, info.max).astype(dtype))
    (back,) = run(Op.DEQUANTIZE, tensor(q, scale=scale, zero_point=zero))
    np.testing.assert_allclose(back, (q.astype(np.float64) - zero) * scale, rtol=1e-6)


def test_dequantize_per_channel_and_to_float16() -> None:
    q = np.arange(-6, 6).astype(np.int8).reshape(2, 3, 2)
    source = tensor(q, scales=[0.5, 2.0, 4.0], channel_dim=1)
    expected = q * np.asarray([0.5, 2.0, 4.0]).reshape(1, 3, 1)
    for kind in (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16):
        (got,) = run(Op.DEQUANTIZE, source, output_types=[kind])
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(ModelError, match="has 2 scales, expected 3"):
        run(Op.DEQUANTIZE, tensor(q, scales=[0.5, 2.0], channel_dim=1))
