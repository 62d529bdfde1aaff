"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR against the rule, pixel by pixel."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.running import run, scalar, tensor
from tests.kernels.windows.images import layout, scalars

BILINEAR, NEAREST = OperationType.RESIZE_BILINEAR, OperationType.RESIZE_NEAREST_NEIGHBOR
F = np.float32

Pair = tuple[int, int]

cases = {
    "size": st.tuples(st.integers(1, 6), st.integers(1, 6)),
    "target": st.tuples(st.integers(1, 13), st.integers(1, 13)),
    "centers": st.sampled_from([(False, False), (True, False), (False, True)]),
    "dtype": st.sampled_from(["float32", "uint8", "int8"]),
    "nchw": st.booleans(),
    "seed": st.integers(0, 2**32 - 1),
}


def image(rng: np.random.Generator, dtype: str, *shape: int) -> Array:
    if dtype == "float32":
        return rng.normal(size=shape).astype(F)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def resize(operation: OperationType, x: Array, target: Pair, *flags: bool, nchw: bool) -> Array:
    source = tensor(layout(x, nchw=nchw), scale=0.5, zero_point=3)
    (got,) = run(operation, source, *scalars(target[1], target[0], nchw, *flags))
    return got.transpose(0, 2, 3, 1) if nchw else got


def scale(size: int, target: int, align: bool) -> np.float32:
    return F(size - 1) / F(target - 1) if align and target > 1 else F(size) / F(target)


def nearest(place: int, size: int, target: int, align: bool, half: bool) -> int:
    value = float((F(place) + F(0.5 if half else 0)) * scale(size, target, align))
    return min(math.floor(value + 0.5) if align else math.floor(value), size - 1)


def between(place: int, size: int, target: int, align: bool, half: bool) -> tuple[int, int, F]:
    step = scale(size, target, align)
    value = (F(place) + F(0.5)) * step - F(0.5) if half else F(place) * step
    lower, upper = max(math.floor(value), 0), min(math.ceil(value), size - 1)
    return min(lower, size - 1), max(upper, 0), value - F(min(lower, size - 1))


@given(**cases)
def test_nearest(
    size: Pair, target: Pair, centers: tuple[bool, bool], dtype: str, nchw: bool, seed: int
) -> None:
    x = image(np.random.default_rng(seed), dtype, 2, *size, 3)
    got = resize(NEAREST, x, target, *centers, nchw=nchw)
    assert got.shape == (2, *target, 3)
    for i, j in np.ndindex(*target):
        row = nearest(i, size[0], target[0], *centers)
        column = nearest(j, size[1], target[1], *centers)
        np.testing.assert_array_equal(got[:, i, j], x[:, row, column])


@given(**cases)
def test_bilinear_to_the_bit(
    size: Pair, target: Pair, centers: tuple[bool, bool], dtype: str, nchw: bool, seed: int
) -> None:
    x = image(np.random.default_rng(seed), dtype, 2, *size, 3)
    got = resize(BILINEAR, x, target, *centers, nchw=nchw)
    values: Array = x.view(np.uint8) ^ np.uint8(128) if dtype == "int8" else x
    values = values.astype(F)
    for i, j in np.ndindex(*target):
        top, bottom, dy = between(i, size[0], target[0], *centers)
        left, right, dx = between(j, size[1], target[1], *centers)
        expected = values[:, top, left] * (F(1) - dy) * (F(1) - dx)
        expected = expected + values[:, bottom, left] * dy * (F(1) - dx)
        expected = expected + values[:, top, right] * (F(1) - dy) * dx
        expected = expected + values[:, bottom, right] * dy * dx
        if dtype != "float32":
            expected = expected.astype(np.uint8)
        if dtype == "int8":
            expected = (expected.view(np.uint8) ^ np.uint8(128)).view(np.int8)
        np.testing.assert_array_equal(got[:, i, j], expected)


def test_a_large_image_is_resized_in_blocks() -> None:
    x = image(np.random.default_rng(4), "float32", 1, 90, 120, 6)
    got = resize(BILINEAR, x, (179, 239), True, False, nchw=False)
    np.testing.assert_array_equal(got[:, ::2, ::2], x)
    middle = (x[:, :-1, :-1] + x[:, 1:, :-1] + x[:, :-1, 1:] + x[:, 1:, 1:]) / 4
    np.testing.assert_allclose(got[:, 1::2, 1::2], middle, atol=1e-6)


@pytest.mark.parametrize("operation", [BILINEAR, NEAREST])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_scales_give_the_size(operation: OperationType, dtype: str) -> None:
    x = tensor(np.arange(24).reshape(1, 3, 4, 2).astype(dtype), scale=0.5)
    real = OperandType.FLOAT16 if dtype == "float16" else OperandType.FLOAT32
    factors = [scalar(1.8, real), scalar(0.75, real)]
    (got,) = run(operation, x, *factors, scalar(False))
    assert got.shape == (1, 2, 7, 2)
    assert got.dtype == dtype
    (same,) = run(operation, x, *scalars(7, 2, False))
    np.testing.assert_array_equal(got, same)


def test_sizes_known_only_at_run_time() -> None:
    x = tensor(np.ones((1, 2, 2, 1), np.float32))
    (got,) = run(BILINEAR, x, *scalars(3, 5), runtime=(0, 1, 2))
    np.testing.assert_array_equal(got, np.ones((1, 5, 3, 1)))


def inputs(*options: Tensor, dtype: str = "float32") -> list[Tensor]:
    return [tensor(np.zeros((1, 4, 4, 2), dtype), scale=0.5, zero_point=1), *options]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (scalars(0, 1, False), r"input 1 \(width\): is 0, expected at least 1"),
        ([scalar(0.1), scalar(1.0), scalar(False)], r"input 1 \(width\): is scale 0.1.* nothing"),
        ([scalar(1.0), scalar(-1.0), scalar(False)], r"input 2 \(height\): is scale -1.0"),
        ([scalar(1.0), scalar(math.nan), scalar(False)], r"input 2 \(height\): is scale nan"),
        (scalars(1, 1, False, True, True), "must not be set together with align_corners"),
        ([*scalars(1), scalar(1.0), scalar(False)], r"input 2 \(height\) is FLOAT32"),
        (scalars(2**31 - 1, 1, False), r"input 1 \(width\): makes 2147483647 pixels, expected at"),
        ([scalar(1.0), scalar(1e30), scalar(False)], r"input 2 \(height\): makes .* pixels"),
        (scalars(2**24, 2**24, False), "too large"),
    ],
)
def test_refusals(options: list[Tensor], message: str) -> None:
    for operation in (BILINEAR, NEAREST):
        with pytest.raises(ModelError, match=message):
            OPERATIONS[operation].infer(inputs(*options))


def test_versions_and_quantization() -> None:
    bilinear, nearest = OPERATIONS[BILINEAR], OPERATIONS[NEAREST]
    for known, operands, version in (
        (bilinear, inputs(*scalars(1, 1)), HalVersion.V1_0),
        (bilinear, inputs(*scalars(1, 1), dtype="uint8"), HalVersion.V1_2),
        (bilinear, inputs(scalar(1.0), scalar(1.0)), HalVersion.V1_2),
        (bilinear, inputs(*scalars(1, 1, False)), HalVersion.V1_2),
        (bilinear, inputs(*scalars(1, 1, False, False)), HalVersion.V1_3),
        (bilinear, inputs(*scalars(1, 1, False), dtype="int8"), HalVersion.V1_3),
        (nearest, inputs(*scalars(1, 1, False)), HalVersion.V1_2),
        (nearest, inputs(*scalars(1, 1, False, False, True)), HalVersion.V1_3),
    ):
        (out,) = known.infer(operands)
        assert known.minimum_version(operands, [out]) == version
        assert (out.scale, out.zero_point) == (0.5, 1)
    with pytest.raises(ModelError, match="has 3 inputs"):
        nearest.infer(inputs(*scalars(1, 1)))


def test_empty_batches_give_empty_outputs() -> None:
    empty = Tensor(type=OperandType.TENSOR_FLOAT32, shape=(0, 4, 4, 2), exact=True)
    for operation in (BILINEAR, NEAREST):
        (out,) = OPERATIONS[operation].infer([empty, *scalars(3, 5, False)])
        assert out.shape == (0, 5, 3, 2)
        flat = Tensor(type=empty.type, shape=(1, 4, 0, 2), exact=True)
        with pytest.raises(ModelError, match="only the batch may be empty"):
            OPERATIONS[operation].infer([flat, *scalars(3, 5, False)])
