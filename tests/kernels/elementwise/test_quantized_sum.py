"""Weights of quantized sums in float32: they are found, and give what the table of pairs gives."""

from __future__ import annotations

import numpy as np
import pytest

from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.running import run, scalar, tensor

ADD, SUB = OperationType.ADD, OperationType.SUB
Q8 = OperandType.TENSOR_QUANT8_ASYMM
FEW = 1024
"""So many elements are looked up in the table, which other tests compare with the rule."""
SCALES_AND_ZEROS = [
    ((0.0213, 0.0317, 0.0455), (3, 130, 100)),
    ((0.11, 0.0071, 0.093), (255, 0, 17)),
    ((0.5, 0.25, 0.3), (128, 128, 128)),
    ((0.1, 0.25, 0.2), (10, 0, 0)),
    ((1.0, 1.0, 1.0), (0, 0, 0)),
    ((3e-5, 7.0, 0.02), (9, 8, 7)),
    ((0.9, 0.7, 4e-6), (9, 8, 7)),
]


def pairs(dtype: type[np.uint8 | np.int8]) -> tuple[Array, Array]:
    """All pairs of 8-bit values."""
    limits = np.iinfo(dtype)
    values = np.arange(limits.min, limits.max + 1).astype(dtype)
    return np.repeat(values, 256), np.tile(values, 256)


@pytest.mark.parametrize("operation", [ADD, SUB])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(("scales", "zeros"), SCALES_AND_ZEROS)
def test_many_pairs_give_what_few_give(
    operation: OperationType,
    dtype: type[np.uint8 | np.int8],
    scales: tuple[float, ...],
    zeros: tuple[int, ...],
) -> None:
    shift = 128 if dtype is np.int8 else 0

    def results(*operands: Array) -> Array:
        inputs = [
            tensor(array, scale=scale, zero_point=zero - shift)
            for array, scale, zero in zip(operands, scales, zeros, strict=False)
        ]
        (got,) = run(
            operation,
            *inputs,
            scalar(1),
            runtime=(0, 1),
            scale=scales[2],
            zero_point=zeros[2] - shift,
        )
        return got

    x, y = pairs(dtype)
    rng = np.random.default_rng(0)
    many = results(x, y)
    for some in np.split(rng.permutation(x.size)[: 16 * FEW], 16):
        np.testing.assert_array_equal(many[some], results(x[some], y[some]))


def test_weights_are_found_for_scales_of_networks() -> None:
    """Their kernel has scratch for two terms and the sum, that of the table for indexes."""
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(20):
        a, b, out = (
            Tensor(type=Q8, shape=(1, 40, 40, 8), scale=float(scale), zero_point=int(zero))
            for scale, zero in zip(rng.uniform(0.01, 0.1, 3), rng.integers(0, 256, 3), strict=True)
        )
        kernel = OPERATIONS[ADD].prepare([a, b, scalar(0)], [out])
        found += all(spec.dtype == np.float32 for spec in kernel.scratch)
    assert found >= 15
