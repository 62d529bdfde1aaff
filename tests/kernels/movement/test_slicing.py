"""SLICE and STRIDED_SLICE against numpy and index by index."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import ModelError
from nnasync.hal import OperationType
from tests.kernels.running import integers, run, scalar, tensor

Op = OperationType
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)


@given(SHAPES, st.sampled_from([np.float32, np.uint8, np.int32]), st.booleans(), st.data())
def test_slice(shape: tuple[int, ...], dtype: Any, late: bool, data: st.DataObject) -> None:
    begins = [data.draw(st.integers(0, size - 1)) for size in shape]
    sizes = [
        data.draw(st.sampled_from([-1, *range(1, size - begin + 1)]))
        for size, begin in zip(shape, begins, strict=True)
    ]
    x = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    source = tensor(x, scale=0.5 if dtype is np.uint8 else 0.0)
    runtime = (0, 1, 2) if late else (0,)
    (got,) = run(Op.SLICE, source, integers(*begins), integers(*sizes), runtime=runtime)
    part = tuple(
        slice(begin, None if size == -1 else begin + size)
        for begin, size in zip(begins, sizes, strict=True)
    )
    np.testing.assert_array_equal(got, x[part])


def test_slice_of_nothing() -> None:
    x = tensor(np.zeros((2, 3), np.float32))
    assert run(Op.SLICE, x, integers(0, 3), integers(2, -1))[0].shape == (2, 0)
    assert run(Op.SLICE, x, integers(0, 1), integers(2, 0))[0].shape == (2, 0)
    empty = tensor(np.zeros((0, 3), np.float32))
    assert run(Op.SLICE, empty, integers(0, 1), integers(-1, 2))[0].shape == (0, 2)


@pytest.mark.parametrize(
    ("begins", "sizes", "message"),
    [
        ((0, 2), (2, 2), r"2 \(size\): is \[2, 2\]"),
        ((0, 0), (2, -2), r"2 \(size\): is \[2, -2\]"),
        ((0, 4), (2, -1), r"1 \(begin\): is \[0, 4\]"),
        ((0, -1), (2, 1), r"1 \(begin\): is \[0, -1\]"),
        ((0,), (2, 1), r"1 \(begin\): has 1 elements, expected 2"),
        ((0, 0), (2, 1, 1), r"2 \(size\): has 3 elements, expected 2"),
    ],
)
def test_slice_refuses(begins: tuple[int, ...], sizes: tuple[int, ...], message: str) -> None:
    x = tensor(np.zeros((2, 3), np.float32))
    with pytest.raises(ModelError, match=f"SLICE: input {message}"):
        run(Op.SLICE, x, integers(*begins), integers(*sizes))


def bound(index: int, size: int, stride: int) -> int:
    """The reference's clamp, word by word."""
    if stride > 0:
        if index >= size:
            return size
        return int((size + math.fmod(min(max(index, -size), size), size)) % size)
    if index < -size:
        return -1
    return int((size + math.fmod(min(max(index, -size), size - 1), size)) % size)


def taken(size: int, begin: int | None, end: int | None, stride: int) -> list[int]:
    """The positions that STRIDED_SLICE takes; None is masked."""
    ends = (0, size) if stride > 0 else (size - 1, -1)
    first = ends[0] if begin is None else bound(begin, size, stride)
    last = ends[1] if end is None else bound(end, size, stride)
    count = max(0, math.ceil((last - first) / stride))
    return [first + step * stride for step in range(count)]


INDEX = st.one_of(st.integers(-7, 7), st.sampled_from([-(2**31), 2**31 - 1]))
STRIDE = st.sampled_from([1, 1, 2, 3, -1, -2, -3, 2**31 - 1, -(2**31)])


@given(SHAPES, st.booleans(), st.data())
def test_strided_slice(shape: tuple[int, ...], late: bool, data: st.DataObject) -> None:
    masks = [data.draw(st.integers(0, 31)) for _ in range(3)]
    begins, ends, strides, rows = [], [], [], []
    shrink = 0
    for axis, size in enumerate(shape):
        begin, end, stride = data.draw(INDEX), data.draw(INDEX), data.draw(STRIDE)
        masked = [bool(mask >> axis & 1) for mask in masks]
        row = taken(size, None if masked[0] else begin, None if masked[1] else end, stride)
        assume(row)
        if masked[2] and len(row) == 1 and stride > 0:
            shrink |= 1 << axis
        begins.append(begin)
        ends.append(end)
        strides.append(stride)
        rows.append(row)
    x = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    options = [integers(*begins), integers(*ends), integers(*strides)]
    options += [scalar(masks[0]), scalar(masks[1]), scalar(shrink)]
    runtime = range(7) if late else (0,)
    (got,) = run(Op.STRIDED_SLICE, tensor(x), *options, runtime=runtime)
    wanted = x[np.ix_(*rows)]
    kept = [len(row) for axis, row in enumerate(rows) if not shrink >> axis & 1]
    np.testing.assert_array_equal(got, wanted.reshape(kept or [1]))


@pytest.mark.parametrize(
    ("begin", "end", "stride", "shrink", "message"),
    [
        ((0, 0), (2, 3), (1, 0), 0, r"3 \(strides\): is \[1, 0\]"),
        ((0, 0), (2, 3), (1, 1), 1, r"6 \(shrink_axis_mask\): drops dimension 0, of which 2"),
        ((1, 0), (0, 3), (-1, 1), 1, r"6 \(shrink_axis_mask\): drops dimension 0, of which 1"),
        ((0, 3), (2, 3), (1, 1), 2, r"6 \(shrink_axis_mask\): drops dimension 1, of which 0"),
        ((0,), (2, 3), (1, 1), 0, r"1 \(begin\): has 1 elements"),
        ((0, 0), (2,), (1, 1), 0, r"2 \(end\): has 1 elements"),
        ((0, 0), (2, 3), (1, 1, 1), 0, r"3 \(strides\): has 3 elements"),
    ],
)
def test_strided_slice_refuses(
    begin: tuple[int, ...],
    end: tuple[int, ...],
    stride: tuple[int, ...],
    shrink: int,
    message: str,
) -> None:
    x = tensor(np.zeros((2, 3), np.float32))
    masks = [scalar(0), scalar(0), scalar(shrink)]
    with pytest.raises(ModelError, match=f"STRIDED_SLICE: input {message}"):
        run(Op.STRIDED_SLICE, x, integers(*begin), integers(*end), integers(*stride), *masks)
