"""GATHER, EMBEDDING_LOOKUP and HASHTABLE_LOOKUP against numpy and a dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.running import integers, run, scalar, tensor, without_value

Op = OperationType
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)
INDICES = hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)
DTYPES = st.sampled_from([np.float32, np.float16, np.int32, np.uint8, np.int8])
RUNTIME = st.sampled_from([(0,), (0, 1), (0, 2), (0, 1, 2)])


def data_tensor(shape: tuple[int, ...], dtype: Any) -> tuple[Array, Tensor]:
    x = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    scale = 0.5 if x.itemsize == 1 else 0.0
    return x, tensor(x, scale=scale, zero_point=3 if scale else 0)


@given(SHAPES, INDICES, DTYPES, RUNTIME, st.data())
def test_gather(
    shape: tuple[int, ...],
    indices: tuple[int, ...],
    dtype: Any,
    runtime: tuple[int, ...],
    data: st.DataObject,
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    numbers = data.draw(hnp.arrays(np.int32, indices, elements=st.integers(0, shape[axis] - 1)))
    x, source = data_tensor(shape, dtype)
    (got,) = run(Op.GATHER, source, scalar(axis), tensor(numbers), runtime=runtime)
    np.testing.assert_array_equal(got, np.take(x, numbers, axis % len(shape)))


@given(SHAPES.filter(lambda shape: len(shape) > 1), DTYPES, st.booleans(), st.data())
def test_embedding_lookup(
    shape: tuple[int, ...], dtype: Any, late: bool, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=6))
    x, source = data_tensor(shape, dtype)
    runtime = (0, 1) if late else (1,)
    (got,) = run(Op.EMBEDDING_LOOKUP, integers(*rows), source, runtime=runtime)
    np.testing.assert_array_equal(got, x[rows])


@pytest.mark.parametrize("index", [-1, 3, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("runtime", [(), (0, 1, 2)])
def test_an_index_outside_is_refused_whenever_it_comes(
    index: int, runtime: tuple[int, ...]
) -> None:
    x = tensor(np.zeros((3, 2), np.float32))
    with pytest.raises(ModelError, match=rf"GATHER: input 2 \(indices\): has {index}, expected"):
        run(Op.GATHER, x, scalar(0), integers(1, index), runtime=runtime)
    with pytest.raises(ModelError, match=rf"LOOKUP: input 0 \(lookups\): has {index}, expected"):
        run(Op.EMBEDDING_LOOKUP, integers(1, index), x, runtime=runtime)


def test_a_kernel_that_refused_computes_again() -> None:
    gather, x = OPERATIONS[Op.GATHER], tensor(np.asarray([5, 6, 7], np.float32))
    numbers = integers(3)
    inputs = [without_value(x), scalar(0), without_value(numbers)]
    outputs = gather.infer(inputs)
    kernel = gather.prepare(inputs, outputs)
    source, target = np.asarray([3], np.int32), np.zeros(1, np.float32)
    scratch = [np.zeros(spec.shape, spec.dtype) for spec in kernel.scratch]
    step = kernel.bind([x.value, np.int32(0), source], [target], scratch)
    with pytest.raises(ModelError, match="has 3"):
        step()
    source[0] = 2
    step()
    assert target == [7]


def test_refuses() -> None:
    x, one = tensor(np.zeros((3, 2), np.float32)), integers(1)
    with pytest.raises(ModelError, match=r"GATHER: input 1 \(axis\): is axis 2"):
        run(Op.GATHER, x, scalar(2), one)
    with pytest.raises(ModelError, match=r"LOOKUP: input 1 \(values\): has shape \(3,\)"):
        run(Op.EMBEDDING_LOOKUP, one, tensor(np.zeros(3, np.float32)))
    with pytest.raises(
        ModelError, match=r"HASHTABLE_LOOKUP: input 2 \(values\): has shape \(3, 2\)"
    ):
        run(Op.HASHTABLE_LOOKUP, one, integers(1, 2), x)
    with pytest.raises(ModelError, match=r"LOOKUP: input 0 \(lookups\): has shape \(1, 1\)"):
        run(Op.HASHTABLE_LOOKUP, tensor(np.zeros((1, 1), np.int32)), one, x)


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=8),
    st.sets(st.integers(-5, 5), min_size=1, max_size=8),
    st.sampled_from([np.float32, np.int32, np.uint8]),
    st.lists(st.integers(1, 3), max_size=2),
    st.booleans(),
)
def test_hashtable_lookup(
    lookups: list[int], keys: set[int], dtype: Any, row: list[int], late: bool
) -> None:
    x, source = data_tensor((len(keys), *row), dtype)
    x += 1
    runtime = (0, 1, 2) if late else (0,)
    found, hits = run(
        Op.HASHTABLE_LOOKUP, integers(*lookups), integers(*sorted(keys)), source, runtime=runtime
    )
    rows = dict(zip(sorted(keys), x, strict=True))
    assert hits.dtype == np.uint8
    assert hits.tolist() == [int(key in keys) for key in lookups]
    for got, key in zip(found, lookups, strict=True):
        np.testing.assert_array_equal(got, rows.get(key, np.zeros(row, dtype)))


def test_hits_are_plain_counts() -> None:
    x = tensor(np.zeros((2, 2), np.uint8), scale=0.25, zero_point=7)
    found, hits = OPERATIONS[Op.HASHTABLE_LOOKUP].infer([integers(1), integers(1, 2), x])
    assert (found.scale, found.zero_point) == (0.25, 7)
    assert (hits.type, hits.scale, hits.zero_point) == (OperandType.TENSOR_QUANT8_ASYMM, 1.0, 0)
