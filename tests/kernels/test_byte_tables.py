"""Tables of all pairs of 8-bit values, looked up for broadcast operands of all layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnasync.kernels import Tensor
from nnasync.kernels.broadcast import BroadcastLayout
from nnasync.kernels.byte_tables import lookup_kernel, pair_kernel
from tests.kernels.running import TENSOR_TYPES

SHAPES: list[tuple[Any, Any]] = [
    ((3, 5), (3, 5)),
    ((1, 1), (1, 1)),
    ((2, 3, 4, 5), (4, 1)),
    ((5, 1), (1, 7)),
    ((3,), (2, 1, 3)),
    ((2, 1, 3, 1), (1, 4, 1, 5)),
    ((300, 1, 70), (10, 1)),
    ((400, 700), (400, 700)),
    ((400, 700), (400, 1)),
    ((1, 700), (400, 1)),
    ((2, 262, 513), (262, 1)),
]


def values(dtype: str, shape: tuple[int, ...]) -> Any:
    limits = np.iinfo(dtype)
    return np.random.default_rng(1).integers(limits.min, limits.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("pair", SHAPES)
def test_pairs(dtype: str, pair: tuple[Any, Any]) -> None:
    a, b = values(dtype, pair[0]), values(dtype, pair[1])
    table = values("uint8", (256, 256))
    shape = np.broadcast_shapes(*pair)
    tensors = [Tensor(type=TENSOR_TYPES[dtype], shape=array.shape) for array in (a, b)]
    low = int(np.iinfo(dtype).min)
    expected = table[a.astype(int) - low, b.astype(int) - low]
    kernel = pair_kernel(tensors[0], tensors[1], shape, table)
    target = np.zeros(shape, np.uint8)
    scratch = [np.full(spec.shape, -1, spec.dtype) for spec in kernel.scratch]
    kernel.bind([a, b], [target], scratch)()
    np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("shape", [(1,), (3, 4), (130, 400)])
def test_single_values(dtype: str, shape: tuple[int, ...]) -> None:
    x, table = values(dtype, shape), values(dtype, (256,))
    kernel = lookup_kernel(Tensor(type=TENSOR_TYPES[dtype], shape=shape), table)
    target = np.zeros(shape, dtype)
    kernel.bind([x], [target], [])()
    np.testing.assert_array_equal(target, table[x.astype(int) - int(np.iinfo(dtype).min)])


@pytest.mark.parametrize("pair", SHAPES)
def test_layouts_keep_order_and_cover_all_rows(pair: tuple[Any, Any]) -> None:
    shape = np.broadcast_shapes(*pair)
    layout = BroadcastLayout(*pair, shape, 1000)
    a, b = (np.arange(np.prod(part)).reshape(part) for part in pair)
    joined = a.reshape(layout.a) * 7 + b.reshape(layout.b)
    assert joined.shape == layout.output
    np.testing.assert_array_equal(joined.reshape(shape), a * 7 + b)
    rows = [row for part in layout.parts for row in range(part.start, part.stop)]
    assert rows == list(range(layout.output[0]))
    assert layout.parts[0].stop == max(part.stop - part.start for part in layout.parts)
