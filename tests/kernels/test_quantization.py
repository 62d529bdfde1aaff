"""QUANTIZE and DEQUANTIZE against the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.running import run, tensor

QUANTIZE, DEQUANTIZE = OperationType.QUANTIZE, OperationType.DEQUANTIZE
T = OperandType
RANGES = {T.TENSOR_QUANT8_ASYMM: (0, 255), T.TENSOR_QUANT8_ASYMM_SIGNED: (-128, 127)}


def quantized(value: float, scale: float, zero: int, type: OperandType) -> int:
    low, high = RANGES[type]
    if math.isnan(value):
        return high
    with np.errstate(over="ignore"):
        steps = float(np.float32(value) / np.float32(scale))
    if math.isinf(steps):
        return high if steps > 0 else low
    return min(max(int(math.copysign(math.floor(abs(steps) + 0.5), steps)) + zero, low), high)


def quantize(x: Array, type: OperandType, scale: float, zero: int) -> Array:
    with np.errstate(all="ignore"):
        (got,) = run(QUANTIZE, tensor(x), scale=scale, zero_point=zero, output_types=[type])
    return got


@given(
    arrays(np.float32, array_shapes(max_dims=5, max_side=4), elements=st.floats(width=32)),
    st.sampled_from([*RANGES]),
    st.sampled_from([1.0, 0.5, 0.1, 0.007, 3.0, 1e-3]),
    st.integers(0, 255),
)
def test_quantize(x: Array, type: OperandType, scale: float, zero: int) -> None:
    zero += RANGES[type][0]
    got = quantize(x, type, scale, zero)
    expected = [quantized(float(value), scale, zero, type) for value in x.flat]
    assert got.reshape(-1).tolist() == expected


@pytest.mark.parametrize("type", RANGES)
def test_halves_are_quantized_away_from_zero(type: OperandType) -> None:
    x = np.asarray([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, -0.49999997], np.float32)
    got = quantize(x, type, 1.0, 20)
    assert got.tolist() == [21, 22, 23, 19, 18, 20, 20]


def test_large_and_float16() -> None:
    x = np.linspace(-3, 3, 600_000, dtype=np.float32)
    got = quantize(x, T.TENSOR_QUANT8_ASYMM, 0.02, 128)
    steps = x.astype(np.float64) / float(np.float32(0.02))
    near = np.abs(np.abs(steps) % 1 - 0.5) < 1e-4
    expected = np.clip(np.rint(steps) + 128, 0, 255)
    np.testing.assert_array_equal(got[~near], expected[~near])
    half = x[::5000].astype(np.float16)
    np.testing.assert_array_equal(
        quantize(half, T.TENSOR_QUANT8_ASYMM_SIGNED, 0.02, 0),
        quantize(half.astype(np.float32), T.TENSOR_QUANT8_ASYMM_SIGNED, 0.02, 0),
    )


FROM = (T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED, T.TENSOR_QUANT8_SYMM)


@pytest.mark.parametrize("target", [T.TENSOR_FLOAT32, T.TENSOR_FLOAT16])
@pytest.mark.parametrize("source", FROM)
def test_dequantize(source: OperandType, target: OperandType) -> None:
    dtype = np.uint8 if source == T.TENSOR_QUANT8_ASYMM else np.int8
    x = np.arange(256).astype(np.uint8).view(dtype).reshape(2, 4, 32)
    zero = 0 if source == T.TENSOR_QUANT8_SYMM else 7
    given = tensor(x, source, scale=0.1, zero_point=zero)
    (got,) = run(DEQUANTIZE, given, output_types=[target])
    expected = np.float32(0.1) * (x.astype(np.float32) - zero)
    assert got.dtype == (np.float32 if target == T.TENSOR_FLOAT32 else np.float16)
    np.testing.assert_array_equal(got, expected.astype(got.dtype))


@pytest.mark.parametrize("target", [T.TENSOR_FLOAT32, T.TENSOR_FLOAT16])
@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_dequantize_per_channel(dim: int, target: OperandType) -> None:
    shape = (2, 3, 4, 5)
    x = np.random.default_rng(dim).integers(-127, 128, shape).astype(np.int8)
    scales = [float(np.float32(0.25 * (i + 1))) for i in range(shape[dim])]
    given = tensor(x, scales=scales, channel_dim=dim)
    (got,) = run(DEQUANTIZE, given, output_types=[target])
    places = np.arange(shape[dim]).reshape([-1 if axis == dim else 1 for axis in range(4)])
    expected = x * np.asarray(scales, np.float32)[places]
    np.testing.assert_array_equal(got, expected.astype(got.dtype))


def test_refusals() -> None:
    deep = Tensor(type=T.TENSOR_QUANT8_ASYMM, shape=(1, 1, 1, 1, 1), scale=1.0)
    with pytest.raises(ModelError, match="expected rank 1 or 2 or 3 or 4"):
        OPERATIONS[DEQUANTIZE].infer([deep])
    bare = Tensor(type=T.TENSOR_QUANT8_SYMM_PER_CHANNEL, shape=(2,))
    with pytest.raises(ModelError, match="has no per-channel scales"):
        OPERATIONS[DEQUANTIZE].prepare([bare], OPERATIONS[DEQUANTIZE].infer([bare]))
    few = tensor(np.zeros(2, np.int8), scales=[1.0])
    with pytest.raises(ModelError, match="has 1 scales, expected 2"):
        OPERATIONS[DEQUANTIZE].prepare([few], OPERATIONS[DEQUANTIZE].infer([few]))


def test_empty_tensors_and_versions() -> None:
    empty = Tensor(type=T.TENSOR_FLOAT32, shape=(2, 0), exact=True)
    assert OPERATIONS[QUANTIZE].infer([empty])[0].shape == (2, 0)
    empty = Tensor(type=T.TENSOR_QUANT8_ASYMM, shape=(0,), scale=1.0, exact=True)
    assert OPERATIONS[DEQUANTIZE].infer([empty])[0].shape == (0,)
    assert OPERATIONS[DEQUANTIZE].since == HalVersion.V1_0
    assert OPERATIONS[QUANTIZE].since == HalVersion.V1_2
    wide = OPERATIONS[DEQUANTIZE].signature([T.TENSOR_QUANT8_SYMM], [T.TENSOR_FLOAT16])
    assert wide.since == HalVersion.V1_2
