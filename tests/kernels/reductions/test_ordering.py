"""ARGMAX, ARGMIN and TOPK_V2 against plain loops over the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.running import run, scalar, tensor, without_value

Op, T = OperationType, OperandType
SHAPES = hnp.array_shapes(min_dims=1, max_dims=5, max_side=5)
DTYPES = st.sampled_from(["float32", "float16", "int32", "uint8", "int8"])


def values(shape: tuple[int, ...], dtype: Any, seed: int) -> Array:
    """Few different values, so that many are equal."""
    few = np.random.default_rng(seed).integers(0, 4, shape) - 2
    return few.astype(np.int8).view(dtype) if dtype == "uint8" else few.astype(dtype)


def first_best(row: Array, sign: int) -> int:
    """The index that wins when each value is compared with the best so far."""
    best = 0
    for index, value in enumerate(row):
        if sign * float(value) > sign * float(row[best]):
            best = index
    return best


@pytest.mark.parametrize(("type", "sign"), [(Op.ARGMAX, 1), (Op.ARGMIN, -1)])
@given(SHAPES, DTYPES, st.integers(0, 99), st.data())
def test_first_of_equals(
    type: OperationType,
    sign: int,
    shape: tuple[int, ...],
    dtype: str,
    seed: int,
    data: st.DataObject,
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = values(shape, dtype, seed)
    (got,) = run(type, tensor(x, scale=0.5, zero_point=1), scalar(axis))
    expected = np.apply_along_axis(first_best, axis, x, sign)
    np.testing.assert_array_equal(got, expected.reshape(expected.shape or (1,)))


@pytest.mark.parametrize(("type", "sign"), [(Op.ARGMAX, 1), (Op.ARGMIN, -1)])
def test_values_that_are_not_finite(type: OperationType, sign: int) -> None:
    choices = [np.nan, -np.inf, np.inf, 0.0, -0.0, 1.0]
    x = np.random.default_rng(3).choice(choices, (300, 4)).astype(np.float32)
    expected = [first_best(row, sign) for row in x]
    np.testing.assert_array_equal(run(type, tensor(x), scalar(1))[0], expected)
    across = tensor(np.ascontiguousarray(x.T))
    np.testing.assert_array_equal(run(type, across, scalar(0))[0], expected)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_that_do_not_fit_into_one_block(dtype: str, axis: int) -> None:
    x = np.random.default_rng(4).integers(0, 256, (3, 300, 900)).astype(dtype)
    (got,) = run(Op.ARGMAX, tensor(x, scale=1.0), scalar(axis))
    np.testing.assert_array_equal(got, x.argmax(axis))


def test_best_refuses() -> None:
    with pytest.raises(ModelError, match=r"ARGMIN: input 1 \(axis\): is axis 2, expected within"):
        run(Op.ARGMIN, tensor(np.zeros((2, 3), np.float32)), scalar(2))


@given(SHAPES, DTYPES, st.integers(0, 99), st.data())
def test_top(shape: tuple[int, ...], dtype: str, seed: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, shape[-1]))
    x = values(shape, dtype, seed)
    best, indices = run(Op.TOPK_V2, tensor(x, scale=0.5, zero_point=1), scalar(count), scale=0.5)
    rows = x.reshape(-1, shape[-1])
    ordered = [
        sorted(((value, index) for index, value in enumerate(row.tolist())), reverse=True)[:count]
        for row in rows
    ]
    expected = np.asarray(ordered, np.float64).reshape(*shape[:-1], count, 2)
    np.testing.assert_array_equal(best, expected[..., 0])
    np.testing.assert_array_equal(indices, expected[..., 1])
    assert best.dtype == x.dtype


def test_top_of_extremes() -> None:
    x = np.asarray([3e38, -3e38, np.inf, -np.inf, 1e-45, -1e-45, 0.0, -0.0], np.float32)
    best, indices = run(Op.TOPK_V2, tensor(x), scalar(8))
    np.testing.assert_array_equal(indices, [2, 0, 4, 7, 6, 5, 1, 3])
    assert best.tobytes() == x[indices].tobytes()
    x = np.asarray([0, 2**31 - 1, -(2**31), -1, 1], np.int32)
    best, indices = run(Op.TOPK_V2, tensor(x), scalar(4))
    np.testing.assert_array_equal(indices, [1, 4, 0, 3])
    np.testing.assert_array_equal(best, x[indices])


def test_top_values_keep_the_quantization() -> None:
    q = tensor(np.zeros((2, 3), np.int8), scale=0.5, zero_point=-7)
    result, indices = OPERATIONS[Op.TOPK_V2].infer([q, scalar(2)])
    assert (result.scale, result.zero_point, result.shape) == (0.5, -7, (2, 2))
    assert (indices.type, indices.shape) == (T.TENSOR_INT32, (2, 2))


def test_top_count_that_comes_with_the_run() -> None:
    operation, x, count = OPERATIONS[Op.TOPK_V2], tensor(np.zeros((2, 3), np.int32)), scalar(2)
    late = Tensor(type=count.type)
    assert [t.shape for t in operation.infer([x, late])] == [(), ()]
    results, _ = operation.specialize([without_value(x), count], operation.infer([x, late]))
    assert [t.shape for t in results] == [(2, 2), (2, 2)]


@pytest.mark.parametrize("count", [0, -1, 4])
def test_top_refuses(count: int) -> None:
    with pytest.raises(ModelError, match=rf"TOPK_V2: input 1 \(k\): is {count}, expected at"):
        run(Op.TOPK_V2, tensor(np.zeros((2, 3), np.float32)), scalar(count))


@pytest.mark.parametrize("type", [Op.ARGMAX, Op.ARGMIN, Op.TOPK_V2])
def test_versions(type: OperationType) -> None:
    found = {s.inputs[0].type: s.since for s in OPERATIONS[type].signatures}
    earlier = (T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, T.TENSOR_QUANT8_ASYMM)
    assert found == {
        **dict.fromkeys(earlier, HalVersion.V1_2),
        T.TENSOR_QUANT8_ASYMM_SIGNED: HalVersion.V1_3,
    }
