"""Weights of quantised sums in float32: those that are found give the rule's results."""

from __future__ import annotations

import numpy as np
import pytest

from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.integer_rule import on_pairs, scaled
from tests.kernels.running import run, scalar, tensor

Q8, Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED


def expected_sum(scales: tuple[float, float, float], zeros: tuple[int, int, int]) -> Array:
    """ADD of all pairs of unsigned values, by the rule in Python's integers."""
    a, b, out = (float(np.float32(scale)) for scale in scales)
    twice = 2 * max(a, b)

    def add(x: int, y: int) -> int:
        terms = [
            scaled((value - zero) << 20, scale / twice)
            for value, zero, scale in ((x, zeros[0], a), (y, zeros[1], b))
        ]
        return min(max(scaled(sum(terms), twice / (2**20 * out)) + zeros[2], 0), 255)

    values = np.arange(256)
    return on_pairs(add, values[:, None], values[None])


@pytest.mark.parametrize(
    ("scales", "zeros"),
    [
        ((0.0213, 0.0317, 0.0455), (3, 130, 100)),
        ((0.11, 0.0071, 0.093), (255, 0, 17)),
        ((0.5, 0.25, 0.3), (128, 128, 128)),
        ((0.1, 0.25, 0.2), (10, 0, 0)),
        ((1.0, 1.0, 1.0), (0, 0, 0)),
        ((3e-5, 7.0, 0.02), (9, 8, 7)),
    ],
)
def test_all_pairs(
    scales: tuple[float, float, float], zeros: tuple[int, int, int]
) -> None:
    values = np.arange(256, dtype=np.uint8)
    x, y = (np.ascontiguousarray(each) for each in np.meshgrid(values, values, indexing="ij"))
    (got,) = run(
        OperationType.ADD,
        tensor(x, Q8, scale=scales[0], zero_point=zeros[0]),
        tensor(y, Q8, scale=scales[1], zero_point=zeros[1]),
        scalar(0),
        runtime=(0, 1),
        scale=scales[2],
        zero_point=zeros[2],
    )
    np.testing.assert_array_equal(got, expected_sum(scales, zeros))


@pytest.mark.parametrize("type", [Q8, Q8S])
@pytest.mark.parametrize("operation", [OperationType.ADD, OperationType.SUB])
def test_few_elements_and_many_agree(type: OperandType, operation: OperationType) -> None:
    """Few come from a table of all pairs, many from weights that were found where there are any."""
    rng = np.random.default_rng(0)
    low = 0 if type == Q8 else -128
    for _ in range(12):
        scales, zeros = rng.uniform(0.005, 0.2, 3), rng.integers(low, low + 256, 3)
        x, y = (rng.integers(low, low + 256, 4096) for _ in range(2))
        many, few = (
            run(
                operation,
                *(
                    tensor(
                        array[:count].astype(np.uint8 if type == Q8 else np.int8),
                        scale=float(scale),
                        zero_point=int(zero),
                    )
                    for array, scale, zero in zip((x, y), scales, zeros, strict=False)
                ),
                scalar(0),
                runtime=(0, 1),
                scale=float(scales[2]),
                zero_point=int(zeros[2]),
            )[0]
            for count in (4096, 1024)
        )
        np.testing.assert_array_equal(many[:1024], few)


def test_weights_are_found_for_scales_of_networks() -> None:
    """The kernel of weights has scratch for two terms and a sum, that of the table for indexes."""
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(20):
        a, b, out = (
            Tensor(type=Q8, shape=(1, 40, 40, 8), scale=float(scale), zero_point=int(zero))
            for scale, zero in zip(rng.uniform(0.01, 0.1, 3), rng.integers(0, 256, 3), strict=True)
        )
        kernel = OPERATIONS[OperationType.ADD].prepare([a, b, scalar(0)], [out])
        found += [np.dtype(spec.dtype) for spec in kernel.scratch] == [np.dtype(np.float32)] * 3
    assert found >= 15
