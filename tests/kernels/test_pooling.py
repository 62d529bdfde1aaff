"""AVERAGE_POOL_2D and MAX_POOL_2D against the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, OperationType
from nnasync.kernels import Tensor
from nnasync.kernels.steps import float_bounds, quantized_bounds
from tests.kernels.running import run, scalar, tensor

AVERAGE, MAXIMUM = OperationType.AVERAGE_POOL_2D, OperationType.MAX_POOL_2D


def rounded_average(values: Array, signed: bool) -> int:
    total, count = int(values.sum()), values.size
    if signed and total <= 0:
        return -((-total + count // 2) // count)
    return (total + count // 2) // count


@settings(max_examples=150)
@given(
    st.sampled_from([AVERAGE, MAXIMUM]),
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
    rng = np.random.default_rng(seed)
    size = filter[0] + extra[0], filter[1] + extra[1]
    x = rng.normal(size=(2, *size, 3)) * 90
    x = (x if dtype == "float32" else x.clip(0, 255) - 128 * (dtype == "int8")).astype(dtype)
    pads = []
    for n, f, s in zip(size, filter, stride, strict=True):
        total = max((-(-n // s) - 1) * s + f - n, 0)
        same = (total // 2, total - total // 2)
        pads.append({"same": same, "valid": (0, 0), "explicit": (f - 1, f // 2)}[padding])
    if padding == "explicit":
        scalars = [*pads[1], *pads[0]]
    else:
        scalars = [1 if padding == "same" else 2]
    scalars += [stride[1], stride[0], filter[1], filter[0], fused]
    source = tensor(x.transpose(0, 3, 1, 2) if nchw else x, scale=0.05, zero_point=7)
    layout = [scalar(True)] if nchw else []
    (got,) = run(operation, source, *(scalar(value) for value in scalars), *layout)
    got = got.transpose(0, 2, 3, 1) if nchw else got
    output = Tensor(type=source.type, scale=0.05, zero_point=7)
    bounds = float_bounds(fused) if dtype == "float32" else quantized_bounds(fused, output)
    for n, i, j, c in np.ndindex(*got.shape):
        top, left = i * stride[0] - pads[0][0], j * stride[1] - pads[1][0]
        rows = slice(max(top, 0), top + filter[0])
        columns = slice(max(left, 0), left + filter[1])
        window = x[n, rows, columns, c].astype(np.float64 if dtype == "float32" else np.int64)
        if operation is MAXIMUM:
            expected = window.max()
        elif dtype == "float32":
            expected = window.mean()
        else:
            expected = rounded_average(window, dtype == "int8")
        np.testing.assert_allclose(got[n, i, j, c], np.clip(expected, *bounds), rtol=1e-5)


def test_global_average_of_many_pixels() -> None:
    x = np.random.default_rng(3).integers(0, 256, (1, 80, 70, 5)).astype(np.uint8)
    scalars = [scalar(value) for value in (2, 1, 1, 70, 80, 0)]
    (got,) = run(AVERAGE, tensor(x, scale=0.1), *scalars)
    expected = [rounded_average(x[0, :, :, c].astype(np.int64), signed=False) for c in range(5)]
    assert got.reshape(-1).tolist() == expected


def test_moving_windows_have_a_largest_size() -> None:
    x = tensor(np.zeros((1, 8, 8, 1), np.float32))
    scalars = [scalar(value) for value in (1, 1, 1, 1000, 1000, 0)]
    with pytest.raises(ModelError, match="the window has 1000000 cells, expected at most 65536"):
        run(MAXIMUM, x, *scalars)
