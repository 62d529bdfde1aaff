"""RANDOM_MULTINOMIAL: frequencies, seeds, and logits that are not finite."""

from __future__ import annotations

import numpy as np
import pytest

from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.running import integers, run, scalar, tensor, without_value

Op = OperationType
SAMPLES = 40_000


def draw(logits: Array, samples: int, *seeds: int) -> Array:
    (got,) = run(Op.RANDOM_MULTINOMIAL, tensor(logits), scalar(samples), integers(*seeds))
    assert got.shape == (len(logits), samples)
    return got


def two_draws(runtime: bool) -> list[Array]:
    """What two runs of one step draw with the seeds (0, 0)."""
    logits, seeds = tensor(np.zeros((2, 1000), np.float32)), integers(0, 0)
    operation = OPERATIONS[Op.RANDOM_MULTINOMIAL]
    given = without_value(seeds) if runtime else seeds
    inputs = [logits, scalar(50), given]
    kernel = operation.prepare(inputs, operation.infer([logits, scalar(50), seeds]))
    target = np.empty((2, 50), np.int32)
    scratch = [np.empty(spec.shape, spec.dtype) for spec in kernel.scratch]
    step = kernel.bind([logits.value, np.int32(50), seeds.value], [target], scratch)
    results = []
    for _ in range(2):
        step()
        results.append(target.copy())
    return results


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_frequencies_are_those_of_softmax(dtype: type[np.floating]) -> None:
    logits = np.random.default_rng(8).normal(size=(3, 7)).astype(dtype) * 2
    got = draw(logits, SAMPLES, 37, 42)
    chances = np.exp(logits.astype(np.float64))
    chances /= chances.sum(1, keepdims=True)
    for row, expected in zip(got, chances, strict=True):
        found = np.bincount(row, minlength=7) / SAMPLES
        limit = 6 * np.sqrt(expected * (1 - expected) / SAMPLES)
        assert (np.abs(found - expected) <= limit).all()


def test_rows_and_samples_are_independent() -> None:
    got = draw(np.zeros((2, 4), np.float32), SAMPLES, 1, 2)
    for a, b in ((got[0], got[1]), (got[0, 1:], got[0, :-1])):
        pairs = np.bincount(4 * a + b, minlength=16) / a.size
        np.testing.assert_allclose(pairs, 1 / 16, atol=6 * np.sqrt(1 / 16 / a.size))


def test_a_pair_of_seeds_draws_the_same_again_and_another_pair_does_not() -> None:
    logits = np.zeros((2, 1000), np.float32)
    draws = [draw(logits, 50, *seeds) for seeds in ((1, 2), (1, 2), (2, 1), (-1, 2), (0, 2))]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert len({each.tobytes() for each in draws}) == 4


@pytest.mark.parametrize("runtime", [False, True])
def test_the_pair_of_zeros_draws_something_else_each_time(runtime: bool) -> None:
    first, second = two_draws(runtime)
    assert (first != second).any()
    assert ((first >= 0) & (first < 1000)).all()


def test_large_logits_and_logits_that_are_not_finite() -> None:
    ways = [[np.nan, 1e38, -np.inf, 1e38, np.inf, -1e38], [-np.inf] * 6, [5, *[np.nan] * 5]]
    got = draw(np.asarray(ways, np.float32), 400, 3, 4)
    assert set(got[0].tolist()) == {1, 3}
    assert set(got[1].tolist()) == {6}
    assert set(got[2].tolist()) == {0}


def test_a_count_that_comes_with_the_run_leaves_the_shape_open() -> None:
    logits = Tensor(type=OperandType.TENSOR_FLOAT32, shape=(2, 5))
    count = Tensor(type=OperandType.INT32)
    (result,) = OPERATIONS[Op.RANDOM_MULTINOMIAL].infer([logits, count, integers(1, 2)])
    assert result.shape == ()


def test_refusals() -> None:
    logits = np.zeros((2, 5), np.float32)
    with pytest.raises(ModelError, match=r"input 1 \(sample_count\): is -1, expected at least 0"):
        draw(logits, -1, 1, 2)
    with pytest.raises(ModelError, match=r"input 2 \(seeds\): has 3 elements, expected 2"):
        draw(logits, 4, 1, 2, 3)
    with pytest.raises(ModelError, match=r"input 0 \(logits\): has shape \(2, 5, 1\), .* rank 2"):
        draw(logits[..., None], 4, 1, 2)
