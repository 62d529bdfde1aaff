"""MAXIMUM, MINIMUM, PRELU and SELECT against their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import OperationType
from nnasync.kernels import Tensor
from tests.kernels.integer_rule import on_pairs, scaled
from tests.kernels.running import run, tensor

Op = OperationType

SHAPES = [((3, 4), (3, 4)), ((2, 3, 4, 5), (4, 1)), ((1,), (2, 5)), ((1, 7), (5, 1))]
EXTREMES: dict[OperationType, Callable[[Any, Any], Any]] = {Op.MAXIMUM: max, Op.MINIMUM: min}
byte_types = pytest.mark.parametrize("dtype", ["uint8", "int8"])
scales = st.one_of(st.floats(0.01, 0.5), st.sampled_from([0.5, 0.25, 1.0]))
zeros = st.integers(0, 255)


def quantized(dtype: str, shape: tuple[int, ...], scale: float, zero: int) -> Tensor:
    """Random values; the zero point is that of the unsigned type."""
    low = 0 if dtype == "uint8" else -128
    raw = np.random.default_rng(zero).integers(low, low + 256, shape).astype(dtype)
    return tensor(raw, scale=scale, zero_point=zero + low)


def lowest(given: Tensor) -> int:
    assert given.value is not None
    return 0 if given.value.dtype == np.uint8 else -128


def requantized(value: int, source: Tensor, scale: float, zero: int) -> int:
    """A value of one quantization as that of another, both halves and range as unsigned ones."""
    real = float(np.float32(value - source.zero_point) * np.float32(source.scale))
    steps = real / float(np.float32(scale)) + zero
    return max(0, min(255, math.floor(steps + 0.5)))


@pytest.mark.parametrize("operation", EXTREMES, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("pair", SHAPES)
def test_extremes(operation: OperationType, dtype: str, pair: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-9, 9, shape).astype(dtype) for shape in pair)
    (got,) = run(operation, tensor(a), tensor(b), runtime=(0, 1))
    np.testing.assert_array_equal(got, on_pairs(EXTREMES[operation], a, b))


@byte_types
@given(
    st.sampled_from(list(EXTREMES)),
    st.sampled_from(SHAPES),
    st.tuples(scales, scales, scales),
    st.tuples(zeros, zeros, zeros),
)
def test_quantized_extremes_are_of_requantized_values(
    dtype: str, operation: OperationType, pair: Any, three: Any, zero: Any
) -> None:
    a, b = (quantized(dtype, *parts) for parts in zip(pair, three[:2], zero[:2], strict=True))
    low = lowest(a)
    (got,) = run(operation, a, b, runtime=(0, 1), scale=three[2], zero_point=zero[2] + low)

    def expected(x: int, y: int) -> int:
        left, right = (
            requantized(value, source, three[2], zero[2]) for value, source in ((x, a), (y, b))
        )
        return int(EXTREMES[operation](left, right))

    assert a.value is not None
    assert b.value is not None
    np.testing.assert_array_equal(got.astype(int) - low, on_pairs(expected, a.value, b.value))


@byte_types
def test_extremes_of_the_output_s_quantization_are_those_of_the_bytes(dtype: str) -> None:
    a, b = quantized(dtype, (4, 9), 0.5, 7), quantized(dtype, (9,), 0.5, 7)
    (got,) = run(Op.MAXIMUM, a, b, runtime=(0, 1), scale=0.5, zero_point=a.zero_point)
    assert a.value is not None
    assert b.value is not None
    np.testing.assert_array_equal(got, on_pairs(max, a.value, b.value))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("pair", SHAPES)
def test_prelu(dtype: type, pair: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(2)
    x, alpha = (rng.normal(size=shape).astype(dtype) for shape in pair)
    (got,) = run(Op.PRELU, tensor(x), tensor(alpha), runtime=(0, 1))
    left, right = np.broadcast_arrays(x.astype(np.float32), alpha.astype(np.float32))
    expected = [
        value if value >= 0 else np.float32(value) * np.float32(slope)
        for value, slope in zip(left.ravel().tolist(), right.ravel().tolist(), strict=True)
    ]
    np.testing.assert_array_equal(got.ravel(), np.asarray(expected, np.float32).astype(dtype))


def test_prelu_of_infinite_numbers() -> None:
    x = np.asarray([np.inf, -np.inf, 0.0, -2.0], np.float32)
    with np.errstate(all="ignore"):
        (got,) = run(Op.PRELU, tensor(x), tensor(np.asarray([0.5], np.float32)), runtime=(0, 1))
    assert got.tolist() == [np.inf, -np.inf, 0, -1]


@byte_types
@given(st.sampled_from(SHAPES), st.tuples(scales, scales, scales), st.tuples(zeros, zeros, zeros))
def test_quantized_prelu(dtype: str, pair: Any, three: Any, zero: Any) -> None:
    x, alpha = (quantized(dtype, *parts) for parts in zip(pair, three[:2], zero[:2], strict=True))
    low = lowest(x)
    (got,) = run(Op.PRELU, x, alpha, runtime=(0, 1), scale=three[2], zero_point=zero[2] + low)
    s = [np.float32(scale) for scale in three]
    positive, negative = float(s[0] / s[2]), float(s[0] * s[1]) / float(s[2])

    def expected(value: int, slope: int) -> int:
        first, second = value - x.zero_point, slope - alpha.zero_point
        result = scaled(first, positive) if first >= 0 else scaled(first * second, negative)
        return max(0, min(255, result + int(zero[2])))

    assert x.value is not None
    assert alpha.value is not None
    np.testing.assert_array_equal(got.astype(int) - low, on_pairs(expected, x.value, alpha.value))


def condition(shape: tuple[int, ...]) -> Tensor:
    raw = np.random.default_rng(1).choice([0, 0, 1, 2, 255], shape).astype(np.uint8)
    return tensor(raw.view(np.bool_))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("shape", [(7,), (2, 3, 4, 5, 2)])
def test_select(dtype: str, shape: tuple[int, ...]) -> None:
    holds = condition(shape)
    a, b = (np.full(shape, value, dtype) for value in (3, -4))
    (got,) = run(Op.SELECT, holds, tensor(a), tensor(b), runtime=(0, 1, 2))
    assert holds.value is not None
    np.testing.assert_array_equal(got, np.where(holds.value.view(np.uint8) != 0, a, b))


@byte_types
@given(st.tuples(scales, scales, scales), st.tuples(zeros, zeros, zeros), st.integers(0, 3))
def test_quantized_select_requantizes(dtype: str, three: Any, zero: Any, same: int) -> None:
    """`same` says which of the two have the output's quantization."""
    shape = (3, 5, 7)
    pairs = [
        (three[2], zero[2]) if same & bit else (three[index], zero[index])
        for index, bit in ((0, 1), (1, 2))
    ]
    holds, a, b = condition(shape), *(quantized(dtype, shape, *pair) for pair in pairs)
    low = lowest(a)
    (got,) = run(
        Op.SELECT, holds, a, b, runtime=(0, 1, 2), scale=three[2], zero_point=zero[2] + low
    )
    chosen = []
    arrays = [given.value for given in (holds, a, b) if given.value is not None]
    for true, x, y in zip(
        arrays[0].view(np.uint8).ravel(), arrays[1].ravel(), arrays[2].ravel(), strict=True
    ):
        value, source = (int(x), a) if true else (int(y), b)
        chosen.append(requantized(value, source, three[2], zero[2]))
    assert (got.astype(int) - low).ravel().tolist() == chosen


def test_refusals() -> None:
    x, y = tensor(np.zeros(3, np.float32)), tensor(np.zeros(2, np.float32))
    for operation in (*EXTREMES, Op.PRELU):
        with pytest.raises(ModelError, match=rf"{operation.name}: input 1 .*: has shape \(2,\)"):
            run(operation, x, y)
    with pytest.raises(ModelError, match=r"SELECT: input 2 \(b\): has shape \(2,\), expected"):
        run(Op.SELECT, condition((3,)), x, y)
    with pytest.raises(ModelError, match=r"SELECT: input 1 \(a\): has shape \(2,\), expected"):
        run(Op.SELECT, condition((3,)), y, x)
    with pytest.raises(ModelError, match=r"SELECT: input 0 \(condition\) is TENSOR_FLOAT32"):
        run(Op.SELECT, x, x, x)
    with pytest.raises(ModelError, match=r"MINIMUM: input 0 \(a\): has shape \(0,\)"):
        run(Op.MINIMUM, tensor(np.zeros(0, np.float32)), tensor(np.zeros(1, np.float32)))
    flat = tensor(np.zeros(3, np.uint8))
    for operation in (*EXTREMES, Op.PRELU):
        with pytest.raises(ModelError, match="input 0 .* has scale 0.0, expected a positive one"):
            run(operation, flat, flat, scale=0.5)
    with pytest.raises(ModelError, match=r"SELECT: input 1 \(a\): has scale 0.0"):
        run(Op.SELECT, condition((3,)), flat, flat, scale=0.5)
