"""ADD, MUL, SUB and LOG: broadcasting, activations, the fixed-point rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from nnasync.kernels.fixed_point import multiply_by_quantized_multiplier, quantize_multiplier
from nnasync.kernels.steps import float_bounds, quantized_bounds
from tests.kernels.running import run, scalar, tensor

ADD, MUL, SUB = OperationType.ADD, OperationType.MUL, OperationType.SUB
FUNCTIONS = {ADD: np.add, MUL: np.multiply, SUB: np.subtract}


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    full = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    pair = []
    for _ in range(2):
        start = draw(st.integers(0, len(full)))
        kept = [draw(st.sampled_from([size, size, 1])) for size in full[start:]]
        pair.append(tuple(kept) or (1,))
    return pair[0], pair[1]


@given(st.sampled_from(list(FUNCTIONS)), shapes(), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_float(
    operation: OperationType, pair: tuple[tuple[int, ...], tuple[int, ...]], fused: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=shape).astype(np.float32) * 3 for shape in pair)
    (got,) = run(operation, tensor(a), tensor(b), scalar(fused), runtime=(0, 1))
    np.testing.assert_array_equal(got, FUNCTIONS[operation](a, b).clip(*float_bounds(fused)))


def rule(
    operation: OperationType, a: Array, b: Array, ts: tuple[Tensor, Tensor], out: Tensor
) -> Array:
    """Fixed-point arithmetic of NNAPI on raw values."""
    x, y = a.astype(np.int64) - ts[0].zero_point, b.astype(np.int64) - ts[1].zero_point
    s1, s2 = ts[0].scale, ts[1].scale
    if operation is MUL:
        scaled = multiply_by_quantized_multiplier(x * y, *quantize_multiplier(s1 * s2 / out.scale))
        return scaled + out.zero_point
    twice = 2 * max(s1, s2)
    left = multiply_by_quantized_multiplier(x << 20, *quantize_multiplier(s1 / twice))
    right = multiply_by_quantized_multiplier(y << 20, *quantize_multiplier(s2 / twice))
    total = left + right if operation is ADD else left - right
    final = quantize_multiplier(twice / (2**20 * out.scale))
    return multiply_by_quantized_multiplier(total, *final) + out.zero_point


@settings(max_examples=200)
@given(
    st.sampled_from(list(FUNCTIONS)),
    shapes(),
    st.integers(0, 3),
    st.sampled_from(["uint8", "int8"]),
    st.integers(0, 2**32 - 1),
)
def test_quantized(
    operation: OperationType,
    pair: tuple[tuple[int, ...], tuple[int, ...]],
    fused: int,
    dtype: str,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    low, high = (0, 256) if dtype == "uint8" else (-128, 128)
    a, b = (rng.integers(low, high, shape).astype(dtype) for shape in pair)
    ts = tuple(
        tensor(value, scale=float(rng.uniform(0.01, 0.1)), zero_point=int(rng.integers(low, high)))
        for value in (a, b)
    )
    scale, zero = float(rng.uniform(0.02, 0.2)), int(rng.integers(low, high))
    (got,) = run(operation, *ts, scalar(fused), runtime=(0, 1), scale=scale, zero_point=zero)
    out = Tensor(type=ts[0].type, scale=scale, zero_point=zero)
    expected = rule(operation, a, b, (ts[0], ts[1]), out).clip(*quantized_bounds(fused, out))
    assert np.abs(got.astype(np.int64) - expected).max() <= (0 if operation is MUL else 1)


def test_large_quantized_operands_are_computed_in_blocks() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (1, 60, 70, 24)).astype(np.uint8)
    for shape in (a.shape, (1, 1, 1, 24), (24,), (1,)):
        b = rng.integers(0, 256, shape).astype(np.uint8)
        ts = tensor(a, scale=0.02, zero_point=3), tensor(b, scale=0.03, zero_point=120)
        for operation in (ADD, MUL, SUB):
            (got,) = run(operation, *ts, scalar(0), runtime=(0, 1), scale=0.1, zero_point=100)
            out = Tensor(type=ts[0].type, scale=0.1, zero_point=100)
            expected = rule(operation, a, b, ts, out).clip(0, 255)
            assert np.abs(got.astype(np.int64) - expected).max() <= 1


def test_int32_wraps_and_takes_no_activation() -> None:
    a, b = np.asarray([2**31 - 1, 5], np.int32), np.asarray([1, -7], np.int32)
    (got,) = run(ADD, tensor(a), tensor(b), scalar(0))
    assert got.tolist() == [-(2**31), -2]
    with pytest.raises(ModelError, match=r"input 2 \(activation\): is 1, expected 0"):
        run(ADD, tensor(a), tensor(b), scalar(1))


def test_shapes_that_do_not_broadcast() -> None:
    with pytest.raises(ModelError, match=r"input 1 \(b\): has shape \(2,\)"):
        run(ADD, tensor(np.zeros(3, np.float32)), tensor(np.zeros(2, np.float32)), scalar(0))
    with pytest.raises(ModelError, match="expected at most rank 4"):
        OPERATIONS[ADD].infer([*[tensor(np.zeros((1,) * 5, np.float32))] * 2, scalar(0)])


def test_log() -> None:
    x = np.asarray([0.5, 1.0, 20.0], np.float32)
    (got,) = run(OperationType.LOG, tensor(x))
    np.testing.assert_allclose(got, np.log(x), rtol=1e-6)
