"""CONCATENATION, PAD, RESHAPE and SLICE against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import ModelError
from nnasync.hal import Array, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.running import integers, run, scalar, tensor

Op = OperationType
DTYPES = st.sampled_from([np.float32, np.uint8, np.int8, np.float16])
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)


def values(shape: tuple[int, ...], dtype: Any) -> Array:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


@given(SHAPES, DTYPES, st.data())
def test_reshape(shape: tuple[int, ...], dtype: Any, data: st.DataObject) -> None:
    x = values(shape, dtype)
    target = data.draw(st.permutations(shape))
    wanted = list(target)
    if data.draw(st.booleans()):
        wanted[data.draw(st.integers(0, len(wanted) - 1))] = -1
    (got,) = run(Op.RESHAPE, tensor(x, scale=0.5, zero_point=3), integers(*wanted))
    np.testing.assert_array_equal(got, x.reshape(target))


@pytest.mark.parametrize("wanted", [(-1, -1), (4,), (-2, 3), (-1, 4)])
def test_reshape_refuses(wanted: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"RESHAPE: input 1 \(shape\): is "):
        run(Op.RESHAPE, tensor(np.zeros((2, 3), np.float32)), integers(*wanted))


def test_reshape_to_a_shape_that_comes_too_late_is_checked_when_it_comes() -> None:
    x, wanted = tensor(np.zeros((2, 3), np.float32)), integers(6)
    unknown = Tensor(type=wanted.type, shape=(1,))
    output = Tensor(type=x.type, shape=(3, 2))
    kernel = OPERATIONS[Op.RESHAPE].prepare([x, unknown], [output])
    step = kernel.bind([x.value, wanted.value], [np.zeros((3, 2), np.float32)], [])
    with pytest.raises(ModelError, match=r"output 0: has shape \(3, 2\), expected \(6,\)"):
        step()


def test_reshape_may_share_memory() -> None:
    x = tensor(np.zeros((2, 3), np.float32))
    outputs = OPERATIONS[Op.RESHAPE].infer([x, integers(6)])
    assert OPERATIONS[Op.RESHAPE].prepare([x, integers(6)], outputs).view_of == 0


@given(SHAPES, DTYPES, st.data())
def test_concatenation(shape: tuple[int, ...], dtype: Any, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    parts = [values((*shape[:axis], size, *shape[axis + 1 :]), dtype) for size in sizes]
    tensors = [tensor(part, scale=0.5, zero_point=3) for part in parts]
    (got,) = run(Op.CONCATENATION, *tensors, scalar(axis), runtime=range(len(parts)))
    np.testing.assert_array_equal(got, np.concatenate(parts, axis))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_concatenation_requantizes(dtype: str) -> None:
    x = np.arange(256).astype(np.uint8).view(dtype).reshape(2, 128)
    first, second = tensor(x, scale=0.1, zero_point=20), tensor(x, scale=0.3, zero_point=-1)
    (got,) = run(Op.CONCATENATION, first, second, scalar(0), scale=0.2, zero_point=5)
    info = np.iinfo(dtype)
    for part, source in ((got[:2], first), (got[2:], second)):
        real = (x.astype(float) - source.zero_point) * source.scale / 0.2 + 5
        assert np.abs(part - real.clip(info.min, info.max)).max() <= 0.5 + 1e-9


def test_concatenation_refuses() -> None:
    a, b = tensor(np.zeros((2, 3), np.float32)), tensor(np.zeros((2, 4), np.float32))
    with pytest.raises(ModelError, match=r"input 1 \(input\): has shape \(2, 4\)"):
        run(Op.CONCATENATION, a, b, scalar(0))
    with pytest.raises(ModelError, match=r"input 2 \(axis\): is axis -1"):
        run(Op.CONCATENATION, a, b, scalar(-1))


@given(SHAPES, st.sampled_from([np.float32, np.uint8, np.int8]), st.data())
def test_pad(shape: tuple[int, ...], dtype: Any, data: st.DataObject) -> None:
    pads = [(data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in shape]
    x = values(shape, dtype)
    paddings = tensor(np.asarray(pads, np.int32))
    zero = 0 if dtype is np.float32 else 9
    (got,) = run(Op.PAD, tensor(x, scale=0.5, zero_point=zero), paddings)
    np.testing.assert_array_equal(got, np.pad(x, pads, constant_values=zero))


def test_pad_refuses() -> None:
    x = tensor(np.zeros((2, 3), np.float32))
    with pytest.raises(ModelError, match="expected 2 pairs"):
        run(Op.PAD, x, tensor(np.asarray([[0, 1]], np.int32)))


@given(SHAPES, st.sampled_from([np.float32, np.uint8, np.int32]), st.data())
def test_slice(shape: tuple[int, ...], dtype: Any, data: st.DataObject) -> None:
    begins = [data.draw(st.integers(0, size - 1)) for size in shape]
    sizes = [
        data.draw(st.sampled_from([-1, *range(1, size - begin + 1)]))
        for size, begin in zip(shape, begins, strict=True)
    ]
    x = values(shape, dtype)
    source = tensor(x, scale=0.5 if dtype is np.uint8 else 0.0)
    (got,) = run(Op.SLICE, source, integers(*begins), integers(*sizes))
    part = tuple(
        slice(begin, None if size == -1 else begin + size)
        for begin, size in zip(begins, sizes, strict=True)
    )
    np.testing.assert_array_equal(got, x[part])


def test_slice_refuses() -> None:
    x = tensor(np.zeros((2, 3), np.float32))
    assert run(Op.SLICE, x, integers(0, 3), integers(2, -1))[0].shape == (2, 0)
    with pytest.raises(ModelError, match=r"input 2 \(size\)"):
        run(Op.SLICE, x, integers(0, 2), integers(2, 2))
    with pytest.raises(ModelError, match=r"input 1 \(begin\)"):
        run(Op.SLICE, x, integers(0, 4), integers(2, 1))
