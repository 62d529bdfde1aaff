"""The comparisons and the logical operations against Python's own."""

from __future__ import annotations

import operator
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

COMPARISONS: dict[OperationType, Callable[[Any, Any], bool]] = {
    Op.EQUAL: operator.eq,
    Op.NOT_EQUAL: operator.ne,
    Op.LESS: operator.lt,
    Op.LESS_EQUAL: operator.le,
    Op.GREATER: operator.gt,
    Op.GREATER_EQUAL: operator.ge,
}
SHAPES = [((3, 4), (3, 4)), ((2, 3, 4), (3, 1)), ((1,), (2, 5)), ((1, 2, 1, 3, 1), (4, 1, 3))]
operations = pytest.mark.parametrize("operation", COMPARISONS, ids=lambda op: op.name)


@operations
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("pair", SHAPES)
def test_numbers(operation: OperationType, dtype: str, pair: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-2, 3, shape).astype(dtype) for shape in pair)
    (got,) = run(operation, tensor(a), tensor(b), runtime=(0, 1))
    assert got.dtype == np.bool_
    compare = np.vectorize(COMPARISONS[operation], otypes=[bool])
    np.testing.assert_array_equal(got, compare(a, b))


@operations
def test_nan_only_differs(operation: OperationType) -> None:
    nan, one = np.asarray([np.nan, 1], np.float32), np.asarray([1, np.nan], np.float32)
    with np.errstate(all="ignore"):
        (got,) = run(operation, tensor(nan), tensor(one))
    assert got.tolist() == [operation is Op.NOT_EQUAL] * 2


@operations
def test_booleans_are_compared_by_their_bytes(operation: OperationType) -> None:
    a, b = (np.asarray(raw, np.uint8).view(np.bool_) for raw in ([0, 1, 2, 255], [0, 2, 1, 255]))
    (got,) = run(operation, tensor(a), tensor(b), runtime=(0, 1))
    expected = [
        COMPARISONS[operation](x, y) for x, y in zip([0, 1, 2, 255], [0, 2, 1, 255], strict=True)
    ]
    assert got.view(np.uint8).tolist() == [int(value) for value in expected]


@given(
    st.sampled_from(list(COMPARISONS)),
    st.sampled_from(["uint8", "int8"]),
    st.tuples(*[st.sampled_from([0.5, 0.25, 0.1, 1.0])] * 2),
    st.tuples(*[st.sampled_from([0, 1, 128, 255])] * 2),
)
def test_quantized_values_are_compared_as_real_ones(
    operation: OperationType, dtype: str, scales: tuple[float, float], zeros: tuple[int, int]
) -> None:
    low = 0 if dtype == "uint8" else -128
    rng = np.random.default_rng(5)
    raw = [rng.integers(low, low + 256, shape) for shape in ((40, 1), (1, 50))]
    a, b = (
        tensor(value.astype(dtype), scale=scale, zero_point=zero + low)
        for value, scale, zero in zip(raw, scales, zeros, strict=True)
    )
    (got,) = run(operation, a, b, runtime=(0, 1))
    x, y = (
        (value - zero - low).astype(np.float32) * np.float32(scale)
        for value, scale, zero in zip(raw, scales, zeros, strict=True)
    )
    compare = np.vectorize(COMPARISONS[operation], otypes=[bool])
    np.testing.assert_array_equal(got, compare(x, y))


@pytest.mark.parametrize("pair", SHAPES)
def test_logical(pair: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(4)
    raw = [rng.choice([0, 0, 1, 2, 255], shape).astype(np.uint8) for shape in pair]
    a, b = (tensor(value.view(np.bool_)) for value in raw)
    (both,) = run(Op.LOGICAL_AND, a, b, runtime=(0, 1))
    (either,) = run(Op.LOGICAL_OR, a, b, runtime=(0, 1))
    (no,) = run(Op.LOGICAL_NOT, a)
    x, y = np.broadcast_arrays(*raw)
    np.testing.assert_array_equal(both.view(np.uint8), ((x > 0) & (y > 0)).astype(int))
    np.testing.assert_array_equal(either.view(np.uint8), ((x > 0) | (y > 0)).astype(int))
    np.testing.assert_array_equal(no.view(np.uint8), (raw[0] == 0).astype(int))


def test_refusals() -> None:
    a, b = tensor(np.zeros(3, np.float32)), tensor(np.zeros(2, np.float32))
    with pytest.raises(ModelError, match=r"LESS: input 1 \(b\): has shape \(2,\)"):
        run(Op.LESS, a, b)
    with pytest.raises(ModelError, match=r"LESS: input 1 \(b\) is TENSOR_INT32"):
        run(Op.LESS, a, tensor(np.zeros(3, np.int32)))
    with pytest.raises(ModelError, match=r"input 0 \(a\): has shape \(0,\)"):
        run(Op.EQUAL, tensor(np.zeros(0, np.float32)), tensor(np.zeros(1, np.float32)))
    with pytest.raises(ModelError, match=r"input 1 \(b\): has scale 0.0"):
        run(Op.EQUAL, *(tensor(np.zeros(1, np.uint8), scale=scale) for scale in (0.5, 0.0)))
    with pytest.raises(ModelError, match="LOGICAL_AND"):
        run(Op.LOGICAL_AND, a, a)
