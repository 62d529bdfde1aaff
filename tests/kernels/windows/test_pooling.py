"""AVERAGE_POOL_2D, L2_POOL_2D and MAX_POOL_2D against the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from nnasync.kernels.steps import float_bounds, quantized_bounds
from tests.kernels.running import run, tensor
from tests.kernels.windows.images import layout, same_pads, scalars

AVERAGE, MAXIMUM = OperationType.AVERAGE_POOL_2D, OperationType.MAX_POOL_2D
L2 = OperationType.L2_POOL_2D


def rounded_average(values: Array) -> int:
    """The mean of bytes, halves away from zero."""
    total, count = int(values.sum()), values.size
    size = (abs(total) + count // 2) // count
    return size if total > 0 else -size


def pooled(operation: OperationType, window: Array) -> float:
    """What the rule makes of the cells of one window."""
    if operation is MAXIMUM:
        return float(window.max())
    if operation is L2:
        return float(np.sqrt(np.mean(window.astype(np.float64) ** 2)))
    if window.dtype == np.float32:
        return float(window.astype(np.float64).mean())
    return rounded_average(window.astype(np.int64))


@given(
    st.sampled_from([AVERAGE, MAXIMUM, L2]),
    st.sampled_from(["float32", "uint8", "int8"]),
    st.tuples(*[st.integers(1, 4)] * 2),
    st.tuples(*[st.integers(0, 7)] * 2),
    st.tuples(*[st.integers(1, 3)] * 2),
    st.sampled_from(["same", "valid", "explicit"]),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_pooling_matches_the_definition(
    operation: OperationType,
    dtype: str,
    filter: tuple[int, int],
    extra: tuple[int, int],
    stride: tuple[int, int],
    padding: str,
    fused: int,
    nchw: bool,
    seed: int,
) -> None:
    dtype = "float32" if operation is L2 else dtype
    rng = np.random.default_rng(seed)
    size = filter[0] + extra[0], filter[1] + extra[1]
    x = rng.normal(size=(2, *size, 3)) * 90
    x = (x if dtype == "float32" else x.clip(0, 255) - 128 * (dtype == "int8")).astype(dtype)
    pads = [(0, 0), (0, 0)]
    if padding == "same":
        pads = same_pads(size, filter, stride)
    if padding == "explicit":
        pads = [(f - 1, f // 2) for f in filter]
    first = [*pads[1], *pads[0]] if padding == "explicit" else [1 if padding == "same" else 2]
    options = scalars(*first, stride[1], stride[0], filter[1], filter[0], fused)
    source = tensor(layout(x, nchw=nchw), scale=0.05, zero_point=7)
    (got,) = run(operation, source, *options, *scalars(True)[: int(nchw)])
    got = got.transpose(0, 2, 3, 1) if nchw else got
    output = Tensor(type=source.type, scale=0.05, zero_point=7)
    bounds = float_bounds(fused) if dtype == "float32" else quantized_bounds(fused, output)
    for n, i, j, c in np.ndindex(*got.shape):
        top, left = i * stride[0] - pads[0][0], j * stride[1] - pads[1][0]
        rows = slice(max(top, 0), top + filter[0])
        columns = slice(max(left, 0), left + filter[1])
        expected = np.clip(pooled(operation, x[n, rows, columns, c]), *bounds)
        np.testing.assert_allclose(got[n, i, j, c], expected, rtol=1e-5, atol=1e-5)


def test_global_average_of_many_pixels() -> None:
    for dtype in (np.uint8, np.int8):
        x = np.random.default_rng(3).integers(0, 256, (2, 80, 70, 5)).astype(np.uint8).view(dtype)
        (got,) = run(AVERAGE, tensor(x, scale=0.1), *scalars(2, 1, 1, 70, 80, 0))
        cells = x.astype(np.int64).reshape(2, -1, 5)
        expected = [rounded_average(cells[n, :, c]) for n, c in np.ndindex(2, 5)]
        assert got.reshape(-1).tolist() == expected


def test_halves_are_rounded_away_from_zero() -> None:
    """As the HAL rounds: -11.5 is -12, where the average of the bytes 128 larger is 117."""
    pairs = np.array([[-12, -11], [0, -1], [0, 1], [11, 12], [-128, -127], [126, 127]], np.int8)
    source = tensor(pairs.reshape(6, 1, 2, 1), scale=0.1, zero_point=-5)
    (got,) = run(AVERAGE, source, *scalars(2, 1, 1, 2, 1, 0))
    assert got.reshape(-1).tolist() == [-12, -1, 1, 12, -128, 127]


@pytest.mark.parametrize("side", [2, 45, 64, 70])
def test_only_halves_are_rounded_away(side: int) -> None:
    """A sum one less than that of a half, of the largest windows in float32 too."""
    half = side * side // 2
    for dtype, step in ((np.uint8, 1), (np.int8, -1)):
        last = np.iinfo(dtype).max if step > 0 else np.iinfo(dtype).min
        cells = np.full((3, side * side), last, dtype)
        for row, cut in enumerate((half, half + 1, half + 2)):
            cells[row, :cut] -= step
        source = tensor(cells.reshape(3, side, side, 1), scale=0.1)
        (got,) = run(AVERAGE, source, *scalars(2, 1, 1, side, side, 0))
        assert got.reshape(-1).tolist() == [rounded_average(row) for row in cells.astype(int)]


def test_global_l2_and_float16() -> None:
    x = np.random.default_rng(3).normal(size=(2, 9, 7, 5))
    expected = np.sqrt((x**2).mean(axis=(1, 2), keepdims=True))
    for dtype, tolerance in ((np.float32, 1e-6), (np.float16, 1e-2)):
        (got,) = run(L2, tensor(x.astype(dtype)), *scalars(2, 1, 1, 7, 9, 0))
        np.testing.assert_allclose(got, expected, atol=tolerance)


@pytest.mark.parametrize("operation", [AVERAGE, MAXIMUM, L2])
def test_long_windows_and_images_of_several_blocks(operation: OperationType) -> None:
    x = np.random.default_rng(4).normal(size=(1, 300, 400, 3)).astype(np.float32)
    (got,) = run(operation, tensor(x), *scalars(1, 7, 5, 41, 29, 0))
    assert got.shape == (1, 60, 58, 3)
    for i, j in ((0, 0), (30, 20), (59, 57)):
        top, left = 5 * i - 12, 7 * j - 20
        window = x[0, max(top, 0) : top + 29, max(left, 0) : left + 41].reshape(-1, 3)
        expected = [pooled(operation, window[:, c]) for c in range(3)]
        np.testing.assert_allclose(got[0, i, j], expected, rtol=1e-4, atol=1e-5)


def test_a_window_of_padding_for_the_most_part() -> None:
    x = tensor(np.full((1, 2, 2, 1), 3, np.float32))
    wide = scalars(99, 99, 99, 99, 50, 50, 100, 100, 0)
    for operation in (AVERAGE, MAXIMUM, L2):
        (got,) = run(operation, x, *wide)
        np.testing.assert_allclose(got, np.full((1, 3, 3, 1), 3))


def test_refusals() -> None:
    x = tensor(np.zeros((1, 8, 8, 1), np.float32))
    with pytest.raises(ModelError, match="the window spans .* too large for input"):
        run(MAXIMUM, x, *scalars(1, 1, 1, 10_000, 10_000, 0))
    with pytest.raises(ModelError, match=r"input 1 \(padding_left\): is 3, expected less than"):
        run(AVERAGE, x, *scalars(3, 0, 0, 0, 1, 1, 3, 3, 0))
    with pytest.raises(ModelError, match=r"input 0 \(input\) is TENSOR_QUANT8_ASYMM"):
        run(L2, tensor(np.zeros((1, 8, 8, 1), np.uint8), scale=1.0), *scalars(1, 1, 1, 2, 2, 0))
    with pytest.raises(ModelError, match=r"input 0 \(input\): has shape \(8, 8, 1\)"):
        run(MAXIMUM, tensor(np.zeros((8, 8, 1), np.float32)), *scalars(1, 1, 1, 2, 2, 0))


def test_versions_quantization_and_empty_batches() -> None:
    x = Tensor(type=OperandType.TENSOR_QUANT8_ASYMM, shape=(0, 4, 4, 2), scale=0.5, exact=True)
    options = scalars(2, 2, 2, 2, 2, 0)
    for operation in (AVERAGE, MAXIMUM):
        (out,) = OPERATIONS[operation].infer([x, *options])
        assert (out.shape, out.scale, out.zero_point) == ((0, 2, 2, 2), 0.5, 0)
        assert OPERATIONS[operation].minimum_version([x, *options], [out]) == HalVersion.V1_0
        flagged = [x, *options, *scalars(False)]
        assert OPERATIONS[operation].minimum_version(flagged, [out]) == HalVersion.V1_2
        other = Tensor(type=x.type, shape=(0, 2, 2, 2), scale=0.4, exact=True)
        with pytest.raises(ModelError, match="output 0: has scale 0.4"):
            OPERATIONS[operation].prepare([x, *options], [other])
