"""CONCATENATION, SPLIT and TILE against numpy; requantization against the rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.running import integers, run, scalar, tensor, without_value

Op, T = OperationType, OperandType
DTYPES = st.sampled_from([np.float32, np.uint8, np.int8, np.float16])
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)


def values(shape: tuple[int, ...], dtype: Any) -> Array:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def replaced(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


@given(SHAPES, DTYPES, st.data())
def test_concatenation(shape: tuple[int, ...], dtype: Any, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any))
    parts = [values(replaced(shape, axis, size), dtype) for size in sizes]
    tensors = [tensor(part, scale=0.5, zero_point=3) for part in parts]
    runtime = range(len(parts))
    joined = run(Op.CONCATENATION, *tensors, scalar(axis), runtime=runtime, scale=0.5, zero_point=3)
    np.testing.assert_array_equal(joined[0], np.concatenate(parts, axis))


def requantized(q: int, source: Tensor, scale: float, zero_point: int) -> int:
    """The rule for one unsigned value."""
    ratio = np.float32(source.scale) * (np.float32(1) / np.float32(scale))
    real = float(np.float32(q) * ratio + np.float32(-source.zero_point) * ratio)
    away = math.copysign(math.floor(abs(real) + 0.5), real)
    return max(0, min(255, int(away) + zero_point))


SCALES = st.sampled_from([0.1, 0.25, 0.3, 0.5, 1.0, 0.0078125, 3.7])
ZEROS = st.integers(0, 255)


@given(st.tuples(SCALES, ZEROS), st.tuples(SCALES, ZEROS), st.tuples(SCALES, ZEROS))
def test_concatenation_requantizes_both_types_alike(
    first: tuple[float, int], second: tuple[float, int], result: tuple[float, int]
) -> None:
    x = np.arange(256, dtype=np.uint8).reshape(2, 128)
    results = []
    for shift in (0, 128):
        data = x if not shift else (x ^ 0x80).view(np.int8)
        sources = [tensor(data, scale=s, zero_point=z - shift) for s, z in (first, second)]
        joined = run(
            Op.CONCATENATION,
            *sources,
            scalar(0),
            runtime=(0, 1),
            scale=result[0],
            zero_point=result[1] - shift,
        )
        results.append(joined[0].astype(int) + shift)
    np.testing.assert_array_equal(results[0], results[1])
    for part, (scale, zero_point) in ((results[0][:2], first), (results[0][2:], second)):
        source = Tensor(T.TENSOR_QUANT8_ASYMM, (1,), scale, zero_point)
        wanted = [requantized(int(q), source, *result) for q in x.reshape(-1)]
        if (scale, zero_point) == result:
            wanted = list(range(256))
        np.testing.assert_array_equal(part.reshape(-1), wanted)


def test_concatenation_before_1_2_has_one_quantization() -> None:
    a, b = (Tensor(T.TENSOR_QUANT8_ASYMM, (2, 2), scale, 3) for scale in (0.5, 0.25))
    axis = Tensor(type=T.INT32)
    join = OPERATIONS[Op.CONCATENATION]
    assert join.minimum_version([a, a, axis], [a]) == HalVersion.V1_0
    assert join.minimum_version([a, b, axis], [a]) == HalVersion.V1_2
    assert join.minimum_version([a, a, axis], [b]) == HalVersion.V1_2


@pytest.mark.parametrize(
    ("other", "axis", "message"),
    [
        ((2, 4), 0, r"1 \(input\): has shape \(2, 4\)"),
        ((2, 3, 1), 0, r"1 \(input\): has shape \(2, 3, 1\)"),
        ((2, 3), -1, r"2 \(axis\): is axis -1"),
        ((2, 3), 2, r"2 \(axis\): is axis 2"),
        ((1, 1, 1, 2, 3), 0, r"1 \(input\): has shape .* rank 1 or 2 or 3 or 4"),
    ],
)
def test_concatenation_refuses(other: tuple[int, ...], axis: int, message: str) -> None:
    a, b = tensor(np.zeros((2, 3), np.float32)), tensor(np.zeros(other, np.float32))
    with pytest.raises(ModelError, match=f"CONCATENATION: input {message}"):
        run(Op.CONCATENATION, a, b, scalar(axis))


@given(SHAPES, DTYPES, st.integers(1, 4), st.booleans(), st.data())
def test_split(
    shape: tuple[int, ...], dtype: Any, count: int, late: bool, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = values(replaced(shape, axis % len(shape), shape[axis] * count), dtype)
    source = tensor(x, scale=0.5, zero_point=3)
    got = run(Op.SPLIT, source, scalar(axis), scalar(count), runtime=range(3 if late else 1))
    assert len(got) == count
    for part, wanted in zip(got, np.split(x, count, axis), strict=True):
        np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize(
    ("axis", "count", "message"),
    [
        (1, 4, r"input 2 \(num_splits\): is 4, which does not divide the size 6"),
        (1, 0, r"input 2 \(num_splits\): is 0"),
        (2, 2, r"input 1 \(axis\): is axis 2"),
        (-3, 2, r"input 1 \(axis\): is axis -3"),
    ],
)
def test_split_refuses(axis: int, count: int, message: str) -> None:
    with pytest.raises(ModelError, match=f"SPLIT: {message}"):
        run(Op.SPLIT, tensor(np.zeros((2, 6), np.float32)), scalar(axis), scalar(count))


def test_split_has_as_many_outputs_as_it_says() -> None:
    split, x = OPERATIONS[Op.SPLIT], tensor(np.zeros((2, 6), np.float32))
    inputs = [x, scalar(1), scalar(3)]
    assert [out.shape for out in split.infer(inputs, [x.type] * 3)] == [(2, 2)] * 3
    with pytest.raises(ModelError, match="SPLIT: has 2 outputs, expected 3"):
        split.infer(inputs, [x.type] * 2)
    with pytest.raises(ModelError, match="SPLIT: has 2 outputs, expected 3"):
        split.prepare(inputs, [Tensor(x.type, (2, 2))] * 2)
    with pytest.raises(ModelError, match="SPLIT: outputs are"):
        split.infer(inputs, [x.type, x.type, T.TENSOR_INT32])


def test_split_answers_for_every_output_before_its_number_is_known() -> None:
    x = tensor(np.zeros((2, 6), np.float32))
    inputs = [x, scalar(1), without_value(scalar(3))]
    unknown = OPERATIONS[Op.SPLIT].infer(inputs, [x.type] * 3)
    assert [out.type for out in unknown] == [x.type] * 3
    assert not any(out.is_known for out in unknown)


@given(SHAPES, st.sampled_from([np.float32, np.uint8, np.int32]), st.booleans(), st.data())
def test_tile(shape: tuple[int, ...], dtype: Any, late: bool, data: st.DataObject) -> None:
    counts = [data.draw(st.integers(0, 3)) for _ in shape]
    x = values(shape, dtype)
    source = tensor(x, scale=0.5 if dtype is np.uint8 else 0.0)
    (got,) = run(Op.TILE, source, integers(*counts), runtime=(0, 1) if late else (0,))
    np.testing.assert_array_equal(got, np.tile(x, counts))


def test_tile_in_many_dimensions() -> None:
    x = values((1,) * 24 + (2, 3), np.float32)
    counts = (1, 2, 1) * 6 + (1,) * 6 + (2, 1)
    (got,) = run(Op.TILE, tensor(x), integers(*counts))
    np.testing.assert_array_equal(got, np.tile(x, counts))


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((1,), r"input 1 \(multiples\): has 1 elements, expected 2"),
        ((1, -1), r"input 1 \(multiples\): is \[1, -1\]"),
        ((2**31 - 1, 2**31 - 1), "output 0 would have shape .* too large"),
    ],
)
def test_tile_refuses(counts: tuple[int, ...], message: str) -> None:
    with pytest.raises(ModelError, match=f"TILE: {message}"):
        run(Op.TILE, tensor(np.zeros((2, 3), np.float32)), integers(*counts))
