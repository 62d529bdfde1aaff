"""MEAN, the REDUCE operations, QUANTIZE and DEQUANTIZE against the real functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels import OPERATIONS
from tests.kernels.running import integers, run, scalar, tensor, without_value

Op = OperationType
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=6)


def some_axes(data: st.DataObject, rank: int) -> list[int]:
    """Axes in any order, some negative, some twice."""
    return data.draw(st.lists(st.integers(-rank, rank - 1), min_size=1, max_size=rank + 1))


def once(axes: list[int], rank: int) -> tuple[int, ...]:
    return tuple({axis % rank for axis in axes})


def with_dimensions(x: Array) -> Array:
    return x.reshape(x.shape or (1,))


@given(SHAPES, st.sampled_from(["float32", "uint8", "int8"]), st.integers(-1, 2), st.data())
def test_mean(shape: tuple[int, ...], dtype: Any, keep: int, data: st.DataObject) -> None:
    axes = some_axes(data, len(shape))
    x = np.random.default_rng(5).normal(size=shape) * 60
    x = x.astype(np.int8).view(dtype) if dtype != "float32" else x.astype(dtype)
    source = tensor(x, scale=0.5, zero_point=2)
    (got,) = run(Op.MEAN, source, integers(*axes), scalar(keep))
    wide, dims = x.astype(np.int64), once(axes, len(shape))
    keeps: Any = keep > 0  # Numpy's types tell True from False.
    if dtype == "float32":
        expected = with_dimensions(x.astype(np.float64).mean(dims, keepdims=keeps))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    else:
        expected = wide.sum(dims, keepdims=keeps) // math.prod(shape[dim] for dim in dims)
        np.testing.assert_array_equal(got, with_dimensions(np.asarray(expected)))


def test_mean_is_the_same_for_signed_and_unsigned() -> None:
    q = np.random.default_rng(6).integers(0, 256, (3, 7, 5)).astype(np.uint8)
    (got,) = run(Op.MEAN, tensor(q, scale=0.5, zero_point=9), integers(1), scalar(0))
    twin = tensor((q ^ 128).view(np.int8), scale=0.5, zero_point=-119)
    (signed,) = run(Op.MEAN, twin, integers(1), scalar(0))
    np.testing.assert_array_equal(signed.view(np.uint8) ^ 128, got)


FUNCTIONS: dict[OperationType, tuple[Any, list[str]]] = {
    Op.REDUCE_MAX: (max, ["float32", "float16", "uint8", "int8"]),
    Op.REDUCE_MIN: (min, ["float32", "float16", "uint8", "int8"]),
    Op.REDUCE_SUM: (sum, ["float32", "float16"]),
    Op.REDUCE_PROD: (math.prod, ["float32", "float16"]),
    Op.REDUCE_ALL: (all, ["bool"]),
    Op.REDUCE_ANY: (any, ["bool"]),
}
CASES = [(type, dtype) for type, (_, dtypes) in FUNCTIONS.items() for dtype in dtypes]


@pytest.mark.parametrize(("type", "dtype"), CASES, ids=lambda value: getattr(value, "name", value))
@given(SHAPES, st.booleans(), st.data())
def test_reduce(
    type: OperationType, dtype: Any, shape: tuple[int, ...], keep: bool, data: st.DataObject
) -> None:
    axes = some_axes(data, len(shape))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    x = rng.integers(0, 256, shape).astype(np.uint8)
    x = (x > 60).astype(bool) if dtype == "bool" else x.view(np.int8)
    x = x.view(dtype) if x.itemsize == np.dtype(dtype).itemsize else (x / 80).astype(dtype)
    source = tensor(x, scale=0.5, zero_point=2)
    (got,) = run(type, source, integers(*axes), scalar(keep))
    dims = once(axes, len(shape))
    kept = tuple(1 if dim in dims else size for dim, size in enumerate(shape))
    expected = np.empty(kept, np.float64)
    for index in np.ndindex(*kept):
        part = tuple(slice(None) if dim in dims else at for dim, at in enumerate(index))
        expected[index] = FUNCTIONS[type][0](x[part].astype(np.float64).reshape(-1).tolist())
    if not keep:
        expected = with_dimensions(
            expected.reshape([n for d, n in enumerate(shape) if d not in dims])
        )
    tolerance = {"float32": 1e-4, "float16": 2e-3}.get(dtype, 0)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def test_reduced_quantization_is_the_inputs() -> None:
    source = tensor(np.zeros((2, 3), np.uint8), scale=0.5, zero_point=9)
    for type, keep in ((Op.REDUCE_MAX, scalar(True)), (Op.REDUCE_MIN, scalar(True))):
        (result,) = OPERATIONS[type].infer([source, integers(0), keep])
        assert (result.scale, result.zero_point, result.shape) == (0.5, 9, (1, 3))


@pytest.mark.parametrize(
    ("type", "expected"), [(Op.REDUCE_ALL, [0, 1, 0]), (Op.REDUCE_ANY, [1, 1, 0])]
)
def test_any_byte_but_zero_is_true(type: OperationType, expected: list[int]) -> None:
    raw = np.asarray([[2, 0], [4, 255], [0, 0]], np.uint8)
    (got,) = run(type, tensor(raw.view(np.bool_)), integers(1), scalar(False))
    np.testing.assert_array_equal(got.view(np.uint8), expected)


def test_extremes_never_are_nan_and_have_a_bound() -> None:
    x = np.asarray([[np.nan, 1, -2], [-np.inf] * 3, [np.inf] * 3], np.float32)
    largest = np.finfo(np.float32).max
    (got,) = run(Op.REDUCE_MAX, tensor(x), integers(1), scalar(False))
    np.testing.assert_array_equal(got, [1, -largest, np.inf])
    (got,) = run(Op.REDUCE_MIN, tensor(x), integers(1), scalar(False))
    np.testing.assert_array_equal(got, [-2, -np.inf, largest])
    (got,) = run(Op.REDUCE_MAX, tensor(x.astype(np.float16)), integers(1), scalar(False))
    np.testing.assert_array_equal(got, [1, -65504, np.inf])


def test_a_factor_of_zero_makes_the_product_zero() -> None:
    x = np.asarray([[np.inf, 0, 1], [np.nan, 2, 0], [np.nan, 2, 3], [np.inf, 2, -3]], np.float32)
    with np.errstate(all="ignore"):
        (got,) = run(Op.REDUCE_PROD, tensor(x), integers(1), scalar(False))
    np.testing.assert_array_equal(got, [0, 0, np.nan, -np.inf])


@pytest.mark.parametrize("type", [Op.MEAN, *FUNCTIONS], ids=lambda type: type.name)
def test_reductions_refuse(type: OperationType) -> None:
    dtype = np.bool_ if type in (Op.REDUCE_ALL, Op.REDUCE_ANY) else np.float32
    x, keep = tensor(np.zeros((2, 3), dtype)), scalar(0) if type == Op.MEAN else scalar(False)
    with pytest.raises(ModelError, match=rf"{type.name}: input 1 \(axes\): is axis 2"):
        run(type, x, integers(2), keep)
    with pytest.raises(ModelError, match=r"input 1 \(axes\): has shape \(1, 1\), expected rank 1"):
        run(type, x, tensor(np.zeros((1, 1), np.int32)), keep)
    with pytest.raises(ModelError, match=r"input 0 \(input\): has shape .* rank 1 or 2 or 3 or 4"):
        run(type, tensor(np.zeros((1,) * 5, dtype)), integers(0), keep)
    with pytest.raises(ModelError, match=r"input 1 \(axes\): .* no elements"):
        run(type, x, integers(), keep)


def test_axes_that_come_with_the_run() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    inputs = tensor(x), integers(-1, 1), scalar(False)
    (got,) = run(Op.REDUCE_SUM, *inputs, runtime=(0, 1))
    np.testing.assert_array_equal(got, [3, 12])
    late = [inputs[0], without_value(inputs[1]), inputs[2]]
    assert OPERATIONS[Op.REDUCE_SUM].infer(late)[0].shape == ()


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
