"""DEPTH_TO_SPACE, SPACE_TO_DEPTH and the batch forms, element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, OperationType
from nnasync.kernels import Tensor
from tests.kernels.running import integers, run, scalar, tensor

Op = OperationType
SIZE = st.integers(1, 3)
IMAGE = st.tuples(SIZE, SIZE, SIZE, SIZE)
LAYOUT = st.sampled_from([None, False, True])


def image(*shape: int) -> Array:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def in_layout(x: Array, layout: bool | None) -> tuple[Tensor, list[Tensor]]:
    """The image in the layout, and the argument that says so."""
    given = x.transpose(0, 3, 1, 2) if layout else x
    return tensor(given), [] if layout is None else [scalar(layout)]


def back(result: list[Array], layout: bool | None) -> Array:
    return result[0].transpose(0, 2, 3, 1) if layout else result[0]


def depth_to_space(x: Array, b: int) -> Array:
    n, h, w, c = x.shape
    out = np.full((n, h * b, w * b, c // b**2), np.nan, np.float32)
    for i, j in np.ndindex(b, b):
        start = (i * b + j) * out.shape[3]
        for y, z in np.ndindex(h, w):
            out[:, y * b + i, z * b + j] = x[:, y, z, start : start + out.shape[3]]
    return out


def batch_to_space(x: Array, bh: int, bw: int) -> Array:
    n, h, w, c = x.shape
    out = np.full((n // (bh * bw), h * bh, w * bw, c), np.nan, np.float32)
    for b, y, z in np.ndindex(*out.shape[:3]):
        source = (y % bh * bw + z % bw) * out.shape[0] + b
        out[b, y, z] = x[source, y // bh, z // bw]
    return out


@given(IMAGE, SIZE, LAYOUT)
def test_depth_to_space(shape: tuple[int, ...], block: int, layout: bool | None) -> None:
    n, h, w, c = shape
    x = image(n, h, w, c * block**2)
    source, flag = in_layout(x, layout)
    got = back(run(Op.DEPTH_TO_SPACE, source, scalar(block), *flag), layout)
    np.testing.assert_array_equal(got, depth_to_space(x, block))


@given(IMAGE, SIZE, LAYOUT)
def test_space_to_depth_is_its_inverse(
    shape: tuple[int, ...], block: int, layout: bool | None
) -> None:
    n, h, w, c = shape
    x = image(n, h * block, w * block, c)
    source, flag = in_layout(x, layout)
    got = back(run(Op.SPACE_TO_DEPTH, source, scalar(block), *flag), layout)
    assert got.shape == (n, h, w, c * block**2)
    np.testing.assert_array_equal(depth_to_space(got, block), x)


@given(IMAGE, SIZE, SIZE, LAYOUT, st.booleans())
def test_batch_to_space(
    shape: tuple[int, ...], rows: int, columns: int, layout: bool | None, late: bool
) -> None:
    n, h, w, c = shape
    x = image(n * rows * columns, h, w, c)
    source, flag = in_layout(x, layout)
    options = [integers(rows, columns), *flag]
    runtime = range(len(options) + 1) if late else (0,)
    got = back(run(Op.BATCH_TO_SPACE_ND, source, *options, runtime=runtime), layout)
    np.testing.assert_array_equal(got, batch_to_space(x, rows, columns))


@given(IMAGE, SIZE, SIZE, LAYOUT, st.tuples(SIZE, SIZE), st.booleans())
def test_space_to_batch_is_its_inverse_with_a_border(
    shape: tuple[int, ...],
    rows: int,
    columns: int,
    layout: bool | None,
    before: tuple[int, int],
    late: bool,
) -> None:
    n, h, w, c = shape
    top, left = before[0] - 1, before[1] - 1
    bottom, right = -(top + h) % rows, -(left + w) % columns
    x = image(n, h, w, c) + 1
    source, flag = in_layout(x, layout)
    paddings = tensor(np.asarray([[top, bottom], [left, right]], np.int32))
    options = [integers(rows, columns), paddings, *flag]
    runtime = range(len(options) + 1) if late else (0,)
    got = back(run(Op.SPACE_TO_BATCH_ND, source, *options, runtime=runtime), layout)
    padded = np.pad(x, [(0, 0), (top, bottom), (left, right), (0, 0)])
    assert got.shape[0] == n * rows * columns
    np.testing.assert_array_equal(batch_to_space(got, rows, columns), padded)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_the_border_is_the_zero_point(dtype: type) -> None:
    x = tensor(np.full((1, 1, 1, 1), 7, dtype), scale=0.5, zero_point=5)
    paddings = tensor(np.asarray([[1, 0], [0, 1]], np.int32))
    (got,) = run(Op.SPACE_TO_BATCH_ND, x, integers(2, 2), paddings)
    np.testing.assert_array_equal(got.reshape(-1), [5, 5, 7, 5])


@pytest.mark.parametrize(
    ("type", "shape", "options", "message"),
    [
        (Op.DEPTH_TO_SPACE, (1, 2, 2, 6), [scalar(2)], r"0 \(input\): has depth 6"),
        (Op.DEPTH_TO_SPACE, (1, 6, 2, 4), [scalar(2), scalar(True)], "has depth 6"),
        (Op.DEPTH_TO_SPACE, (1, 2, 2, 4), [scalar(0)], r"1 \(block_size\): is 0"),
        (Op.DEPTH_TO_SPACE, (2, 2, 4), [scalar(2)], r"0 \(input\): has shape .* rank 4"),
        (Op.SPACE_TO_DEPTH, (1, 3, 4, 1), [scalar(2)], r"0 \(input\): has height 3"),
        (Op.SPACE_TO_DEPTH, (1, 4, 3, 1), [scalar(2)], r"0 \(input\): has width 3"),
        (Op.SPACE_TO_DEPTH, (1, 4, 4, 1), [scalar(-2)], r"1 \(block_size\): is -2"),
        (Op.BATCH_TO_SPACE_ND, (3, 1, 1, 1), [integers(2, 1)], r"0 \(input\): has batch 3"),
        (Op.BATCH_TO_SPACE_ND, (4, 1, 1, 1), [integers(2)], r"1 \(block_shape\): has 1 el"),
        (Op.BATCH_TO_SPACE_ND, (4, 1, 1, 1), [integers(0, 2)], r"1 \(block_shape\): is \[0, 2\]"),
    ],
)
def test_refuses(
    type: OperationType, shape: tuple[int, ...], options: list[Tensor], message: str
) -> None:
    with pytest.raises(ModelError, match=rf"{type.name}: input .*{message}"):
        run(type, tensor(np.zeros(shape, np.float32)), *options)


@pytest.mark.parametrize(
    ("pads", "message"),
    [
        ([[0, 0], [0, 0]], r"0 \(input\): has padded width 3, expected a multiple of 2"),
        ([[0, 1], [0, 1]], r"0 \(input\): has padded height 3"),
        ([[0, 0], [2, -1]], r"2 \(paddings\): is \[0, 0, 2, -1\]"),
        ([[0, 0, 0, 1]], r"2 \(paddings\): has shape \(1, 4\)"),
    ],
)
def test_space_to_batch_refuses(pads: list[list[int]], message: str) -> None:
    x, paddings = tensor(np.zeros((1, 2, 3, 1), np.float32)), tensor(np.asarray(pads, np.int32))
    with pytest.raises(ModelError, match=rf"SPACE_TO_BATCH_ND: input {message}"):
        run(Op.SPACE_TO_BATCH_ND, x, integers(2, 2), paddings)
