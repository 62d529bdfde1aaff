"""Products of matrices in a batch, against plain sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.extensions import COMMON, CommonOperation
from nnasync.hal import OperandType
from nnasync.kernels import EXTENSION_OPERATIONS
from tests.kernels.integer_rule import scaled
from tests.kernels.running import run, scalar, tensor

BATCH_MATMUL = EXTENSION_OPERATIONS[COMMON.name, CommonOperation.BATCH_MATMUL]
SEEDS = st.integers(0, 2**32 - 1)
BATCHES = (((), ()), ((2,), (2,)), ((2, 1), (3,)), ((), (2, 2)), ((4,), ()))
INT8 = OperandType.TENSOR_QUANT8_ASYMM_SIGNED


@given(st.sampled_from(BATCHES), st.booleans(), st.booleans(), SEEDS)
def test_floats(batches: tuple[tuple[int, ...], ...], one: bool, two: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, terms, columns = (int(n) for n in random.integers(1, 6, 3))
    a = random.normal(size=(*batches[0], rows, terms)).astype(np.float32)
    b = random.normal(size=(*batches[1], terms, columns)).astype(np.float32)
    wanted = (a[..., :, :, None] * b[..., None, :, :]).sum(-2)
    given_ = a.swapaxes(-1, -2) if one else a, b.swapaxes(-1, -2) if two else b
    (got,) = run(BATCH_MATMUL, *map(tensor, given_), scalar(one), scalar(two), runtime=(0, 1))
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("terms", [3, 400])
@pytest.mark.parametrize("type", [OperandType.TENSOR_QUANT8_ASYMM, INT8])
def test_bytes_are_summed_exactly(type: OperandType, terms: int) -> None:
    random = np.random.default_rng(terms)
    dtype = np.dtype(np.int8 if type == INT8 else np.uint8)
    limits = np.iinfo(dtype)
    a = random.integers(limits.min, limits.max + 1, (2, 3, terms)).astype(dtype)
    b = random.integers(limits.min, limits.max + 1, (terms, 4)).astype(dtype)
    zeros = (7, -3) if type == INT8 else (135, 125)
    x, y = (
        tensor(array, type, scale=scale, zero_point=zero)
        for array, scale, zero in zip((a, b), (0.05, 0.02), zeros, strict=True)
    )
    scale = 0.11 * terms**0.5
    inputs = (x, y, scalar(False), scalar(False))
    (got,) = run(BATCH_MATMUL, *inputs, scale=scale, zero_point=5, runtime=(0, 1))
    sums = (a.astype(np.int64) - zeros[0]) @ (b.astype(np.int64) - zeros[1])
    factor = float(np.float32(np.float32(0.05) * np.float32(0.02)) / np.float32(scale))
    wanted = [min(max(scaled(int(n), factor) + 5, limits.min), limits.max) for n in sums.flat]
    assert got.dtype == dtype
    assert got.reshape(-1).tolist() == wanted
    assert len(set(wanted)) > 5


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((3,), (3, 2), r"input 0 \(a\): has shape \(3,\), expected rank 2 or more"),
        ((2, 3), (2, 3), r"input 1 \(b\): has shape \(2, 3\), of which 2 terms do not go with 3"),
        ((2, 2, 3), (3, 3, 2), r"input 1 \(b\): has shape \(3, 3, 2\), whose batch does not"),
    ],
)
def test_shapes_that_do_not_go_together(
    a: tuple[int, ...], b: tuple[int, ...], message: str
) -> None:
    x, y = (tensor(np.zeros(shape, np.float32)) for shape in (a, b))
    with pytest.raises(ModelError, match=message):
        run(BATCH_MATMUL, x, y, scalar(False), scalar(False))


def test_it_counts_its_products() -> None:
    count = BATCH_MATMUL.facts.multiply_adds
    assert count is not None
    assert count([(2, 3, 5), (5, 7)], (2, 3, 7)) == 2 * 3 * 5 * 7
    assert count([(2, 5, 3), (5, 7)], (2, 3, 7)) == 2 * 3 * 5 * 7
    assert count([(3, 5), (2, 5, 7)], (2, 3, 7)) == 2 * 3 * 5 * 7
