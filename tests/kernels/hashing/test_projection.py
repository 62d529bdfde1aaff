"""LSH_PROJECTION against one key at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import ModelError
from nnasync.hal import Array, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from nnasync.kernels.hashing import projection
from nnasync.kernels.hashing.farmhash import fingerprint64
from tests.kernels.running import run, scalar, tensor, without_value

Op = OperationType
SPARSE_DEPRECATED, DENSE, SPARSE = 1, 2, 3


def bits_of(seeds: Array, rows: Array, weights: Array | None) -> Array:
    """The bit of each seed: is the weighted sum of its rows' fingerprints positive?"""
    bits = np.zeros(seeds.shape, np.int64)
    for place, seed in np.ndenumerate(seeds):
        total = 0.0
        for index, row in enumerate(rows):
            key = np.float32(seed).tobytes() + row.tobytes()
            signed = int(fingerprint64(np.frombuffer(key, np.uint8)[None])[0])
            signed -= 2**64 if signed >= 2**63 else 0
            total += float(signed) * (1.0 if weights is None else float(weights[index]))
        bits[place] = total > 0
    return bits


def project(seeds: Array, rows: Array, weights: Array | None, form: int) -> Array:
    weight = None if weights is None else tensor(weights)
    source = tensor(rows, scale=0.5 if rows.dtype == np.uint8 else 0.0)
    runtime = (0, 1) if weights is None else (0, 1, 2)
    (got,) = run(Op.LSH_PROJECTION, tensor(seeds), source, weight, scalar(form), runtime=runtime)
    return got


@given(
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=5),
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=5),
    st.sampled_from([np.float32, np.float16]),
    st.sampled_from([np.float32, np.float16, np.int32, np.uint8]),
    st.integers(0, 99),
)
def test_all_forms(
    hash_shape: tuple[int, ...], shape: tuple[int, ...], hash_type: Any, type: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    seeds = rng.normal(size=hash_shape).astype(hash_type)
    rows = rng.integers(0, 200, shape).astype(type)
    weights = rng.normal(size=shape[0]).astype(hash_type)
    dense = bits_of(seeds, rows, weights)
    np.testing.assert_array_equal(project(seeds, rows, weights, DENSE), dense.reshape(-1))
    bits = bits_of(seeds, rows, None)
    numbers = np.asarray([int("".join(map(str, each)), 2) for each in bits])
    np.testing.assert_array_equal(project(seeds, rows, None, SPARSE_DEPRECATED), numbers)
    offsets = np.arange(len(bits)) << hash_shape[1]
    np.testing.assert_array_equal(project(seeds, rows, None, SPARSE), numbers + offsets)


def test_thirty_two_bits_wrap() -> None:
    seeds = np.random.default_rng(5).normal(size=(9, 32)).astype(np.float32)
    rows = np.arange(12, dtype=np.int32).reshape(4, 3)
    numbers = [int("".join(map(str, each)), 2) for each in bits_of(seeds, rows, None)]
    expected = np.asarray(numbers, np.uint32).view(np.int32)
    assert (expected < 0).any()
    for form in (SPARSE, SPARSE_DEPRECATED):
        np.testing.assert_array_equal(project(seeds, rows, None, form), expected)


def test_keys_that_do_not_fit_into_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = np.random.default_rng(6).normal(size=(5, 4)).astype(np.float32)
    rows = np.random.default_rng(7).normal(size=(6, 33)).astype(np.float32)
    expected = bits_of(seeds, rows, np.ones(6, np.float32)).reshape(-1)
    monkeypatch.setattr(projection, "_KEY_BYTES", 3 * 6 * 136)
    np.testing.assert_array_equal(project(seeds, rows, np.ones(6, np.float32), DENSE), expected)


def test_weights_are_for_dense_projections_only() -> None:
    seeds, rows = np.ones((2, 3), np.float32), np.ones((4, 2), np.int32)
    with pytest.raises(ModelError, match=r"input 2 \(weight\): must be given where the type is 2"):
        project(seeds, rows, None, DENSE)
    for form in (SPARSE_DEPRECATED, SPARSE):
        with pytest.raises(ModelError, match=r"input 2 \(weight\): must be omitted where"):
            project(seeds, rows, np.ones(4, np.float32), form)


def test_a_weight_that_may_be_omitted_at_the_run_is_no_fault_before() -> None:
    operation = OPERATIONS[Op.LSH_PROJECTION]
    seeds, rows = tensor(np.ones((2, 3), np.float32)), tensor(np.ones((4, 2), np.int32))
    weight = without_value(tensor(np.ones(4, np.float32)))
    (result,) = operation.infer([seeds, rows, weight, scalar(SPARSE)])
    assert result.shape == (2,)
    operation.prepare([seeds, rows, weight, scalar(SPARSE)], [result])


@pytest.mark.parametrize(
    ("hash", "weight", "form", "message"),
    [
        ((2, 33), (4,), DENSE, r"input 0 \(hash\): has 33 bits a hash, expected at most 32"),
        ((2, 3, 1), (4,), DENSE, r"input 0 \(hash\): has shape \(2, 3, 1\), expected rank 2"),
        ((2, 3), (5,), DENSE, r"input 2 \(weight\): has shape \(5,\), expected \(4,\)"),
        ((2, 3), (4,), 4, r"input 3 \(type\): is 4, expected 1, 2 or 3"),
    ],
)
def test_refusals(hash: tuple[int, ...], weight: tuple[int, ...], form: int, message: str) -> None:
    inputs: list[Tensor] = [
        tensor(np.ones(hash, np.float32)),
        tensor(np.ones((4, 2), np.int32)),
        tensor(np.ones(weight, np.float32)),
        scalar(form),
    ]
    with pytest.raises(ModelError, match=message):
        run(Op.LSH_PROJECTION, *inputs)


def test_a_weight_without_elements_counts_as_omitted() -> None:
    seeds = np.random.default_rng(8).normal(size=(2, 3)).astype(np.float32)
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    expected = project(seeds, rows, None, SPARSE)
    got = project(seeds, rows, np.empty(0, np.float32), SPARSE)
    np.testing.assert_array_equal(got, expected)
