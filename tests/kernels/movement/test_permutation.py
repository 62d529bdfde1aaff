"""TRANSPOSE and CHANNEL_SHUFFLE against numpy and element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.running import integers, run, scalar, tensor

Op = OperationType
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)


@given(SHAPES, st.booleans(), st.data())
def test_transpose(shape: tuple[int, ...], late: bool, data: st.DataObject) -> None:
    x = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    perm = data.draw(st.permutations(range(len(shape))))
    (got,) = run(Op.TRANSPOSE, tensor(x), integers(*perm), runtime=(0, 1) if late else (0,))
    np.testing.assert_array_equal(got, x.transpose(perm))


@given(SHAPES)
def test_transpose_without_a_permutation_reverses(shape: tuple[int, ...]) -> None:
    x = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(run(Op.TRANSPOSE, tensor(x), None)[0], x.T)
    none = Tensor(OperandType.TENSOR_INT32, (0,), value=np.zeros(0, np.int32))
    np.testing.assert_array_equal(run(Op.TRANSPOSE, tensor(x), none)[0], x.T)


def test_transpose_takes_a_dimension_twice() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (got,) = run(Op.TRANSPOSE, tensor(x), integers(1, 1))
    np.testing.assert_array_equal(got, np.repeat(x[0, :, None], 3, axis=1))


def test_transpose_of_nothing() -> None:
    x = tensor(np.zeros((0, 2, 3), np.float32))
    assert run(Op.TRANSPOSE, x, integers(2, 0, 1))[0].shape == (3, 0, 2)
    with pytest.raises(ModelError, match=r"TRANSPOSE: input 1 \(perm\): is \[1, 1, 2\]"):
        run(Op.TRANSPOSE, x, integers(1, 1, 2))


@pytest.mark.parametrize("perm", [(0,), (0, 1, 2), (0, 2), (-1, 0)])
def test_transpose_refuses(perm: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"TRANSPOSE: input 1 \(perm\): is "):
        run(Op.TRANSPOSE, tensor(np.zeros((2, 3), np.float32)), integers(*perm))


@given(SHAPES, st.data())
def test_channel_shuffle(shape: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    groups, size = data.draw(st.integers(1, 4)), shape[axis]
    shape = tuple(
        size * groups if at == axis % len(shape) else each for at, each in enumerate(shape)
    )
    x = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    (got,) = run(Op.CHANNEL_SHUFFLE, tensor(x), scalar(groups), scalar(axis))
    for k, g in np.ndindex(size, groups):
        np.testing.assert_array_equal(got.take(k * groups + g, axis), x.take(g * size + k, axis))


@pytest.mark.parametrize(
    ("groups", "axis", "message"),
    [
        (4, 1, r"1 \(groups\): is 4, which does not divide the size 6"),
        (0, 1, r"1 \(groups\): is 0"),
        (2, 2, r"2 \(axis\): is axis 2"),
        (2, -3, r"2 \(axis\): is axis -3"),
    ],
)
def test_channel_shuffle_refuses(groups: int, axis: int, message: str) -> None:
    x = tensor(np.zeros((2, 6), np.float32))
    with pytest.raises(ModelError, match=f"CHANNEL_SHUFFLE: input {message}"):
        run(Op.CHANNEL_SHUFFLE, x, scalar(groups), scalar(axis))


def test_a_rank_above_four_is_refused() -> None:
    x = tensor(np.zeros((1, 1, 1, 1, 2), np.float32))
    with pytest.raises(ModelError, match=r"TRANSPOSE: input 0 \(input\): .* rank 1 or 2 or 3 or 4"):
        OPERATIONS[Op.TRANSPOSE].infer([x, None])
