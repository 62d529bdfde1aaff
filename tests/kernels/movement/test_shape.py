"""RESHAPE, SQUEEZE, EXPAND_DIMS, RANK and FILL against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType, dtype_of
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.running import integers, run, scalar, tensor

Op, T = OperationType, OperandType
DTYPES = st.sampled_from([np.float32, np.uint8, np.int8, np.float16])
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)
RANKED = [type for type in T if type.name.startswith("TENSOR_") and type != T.TENSOR_OEM_BYTE]


def values(shape: tuple[int, ...], dtype: Any) -> Array:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


@given(SHAPES, DTYPES, st.data())
def test_reshape(shape: tuple[int, ...], dtype: Any, data: st.DataObject) -> None:
    x = values(shape, dtype)
    target = data.draw(st.permutations(shape))
    wanted = list(target)
    if data.draw(st.booleans()):
        wanted[data.draw(st.integers(0, len(wanted) - 1))] = -1
    (got,) = run(Op.RESHAPE, tensor(x, scale=0.5, zero_point=3), integers(*wanted))
    np.testing.assert_array_equal(got, x.reshape(target))


@pytest.mark.parametrize("wanted", [(-1, -1), (4,), (-2, 3), (-1, 4), (0,), (0, -1)])
def test_reshape_refuses(wanted: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"RESHAPE: input 1 \(shape\): is "):
        run(Op.RESHAPE, tensor(np.zeros((2, 3), np.float32)), integers(*wanted))


def test_reshape_takes_four_dimensions_and_gives_any_number() -> None:
    x = np.zeros((1, 2, 3, 1), np.float32)
    assert run(Op.RESHAPE, tensor(x), integers(1, 1, 2, 1, 3))[0].shape == (1, 1, 2, 1, 3)
    with pytest.raises(ModelError, match=r"input 0 \(input\): has shape .* rank 1 or 2 or 3 or 4"):
        run(Op.RESHAPE, tensor(x[None]), integers(6))
    with pytest.raises(ModelError, match=r"input 1 \(shape\): has shape \(1, 1\)"):
        run(Op.RESHAPE, tensor(x), tensor(np.asarray([[6]], np.int32)))


def test_reshape_refuses_more_dimensions_than_arrays_have() -> None:
    with pytest.raises(ModelError, match="RESHAPE: output 0 .* too large"):
        run(Op.RESHAPE, tensor(np.zeros(1, np.float32)), integers(*[1] * 65))


def test_reshape_to_a_shape_that_comes_too_late_is_checked_when_it_comes() -> None:
    x, wanted = tensor(np.zeros((2, 3), np.float32)), integers(6)
    unknown = Tensor(type=wanted.type, shape=(1,))
    output = Tensor(type=x.type, shape=(3, 2))
    kernel = OPERATIONS[Op.RESHAPE].prepare([x, unknown], [output])
    step = kernel.bind([x.value, wanted.value], [np.zeros((3, 2), np.float32)], [])
    with pytest.raises(ModelError, match=r"output 0: has shape \(3, 2\), expected \(6,\)"):
        step()


@pytest.mark.parametrize(
    ("type", "option"),
    [(Op.RESHAPE, integers(6)), (Op.SQUEEZE, integers(0)), (Op.EXPAND_DIMS, scalar(-1))],
)
def test_the_output_may_share_the_inputs_memory(type: OperationType, option: Tensor) -> None:
    inputs = [tensor(np.zeros((1, 6), np.float32)), option]
    outputs = OPERATIONS[type].infer(inputs)
    assert OPERATIONS[type].prepare(inputs, outputs).view_of == 0


@given(SHAPES, DTYPES, st.data())
def test_squeeze(shape: tuple[int, ...], dtype: Any, data: st.DataObject) -> None:
    ones = data.draw(st.lists(st.sampled_from(range(len(shape))), min_size=1, max_size=3))
    shape = tuple(1 if axis in ones else size for axis, size in enumerate(shape))
    x = values(shape, dtype)
    source = tensor(x, scale=0.5, zero_point=3)
    signed = [axis - data.draw(st.sampled_from([0, len(shape)])) for axis in ones]
    (got,) = run(Op.SQUEEZE, source, integers(*signed))
    left = [size for axis, size in enumerate(shape) if axis not in ones]
    np.testing.assert_array_equal(got, x.reshape(left or [1]))
    (got,) = run(Op.SQUEEZE, source, None)
    np.testing.assert_array_equal(got, x.reshape([size for size in shape if size != 1] or [1]))


@pytest.mark.parametrize("axes", [(1,), (0, 1), (-2,), (3,), (-4,)])
def test_squeeze_refuses(axes: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"SQUEEZE: input 1 \(dims\): is "):
        run(Op.SQUEEZE, tensor(np.zeros((1, 3, 1), np.float32)), integers(*axes))


@given(SHAPES, st.sampled_from([np.float32, np.uint8, np.int32]), st.data())
def test_expand_dims(shape: tuple[int, ...], dtype: Any, data: st.DataObject) -> None:
    x = values(shape, dtype)
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    scale = 0.5 if dtype is np.uint8 else 0.0
    (got,) = run(Op.EXPAND_DIMS, tensor(x, scale=scale), scalar(axis))
    np.testing.assert_array_equal(got, np.expand_dims(x, axis))


@pytest.mark.parametrize("axis", [-4, 3])
def test_expand_dims_refuses(axis: int) -> None:
    with pytest.raises(ModelError, match=r"EXPAND_DIMS: input 1 \(axis\): is axis"):
        run(Op.EXPAND_DIMS, tensor(np.zeros((2, 3), np.float32)), scalar(axis))


@pytest.mark.parametrize("type", RANKED)
@pytest.mark.parametrize("shape", [(2,), (1, 3), (1, 2, 1, 2, 1)])
def test_rank(type: OperandType, shape: tuple[int, ...]) -> None:
    x = np.ones(shape, dtype_of(type))
    (got,) = run(Op.RANK, Tensor(type=type, shape=shape, value=x))
    assert got.shape == ()
    assert got.dtype == np.int32
    assert got == len(shape)


@given(hnp.array_shapes(min_dims=1, max_dims=5, max_side=4), st.sampled_from("fhi"))
def test_fill(shape: tuple[int, ...], kind: str) -> None:
    type = {"f": T.FLOAT32, "h": T.FLOAT16, "i": T.INT32}[kind]
    value = scalar(-7 if kind == "i" else 2.5, type)
    for runtime in ((), (0,), (0, 1)):
        (got,) = run(Op.FILL, integers(*shape), value, runtime=runtime)
        np.testing.assert_array_equal(got, np.full(shape, value.value))
        assert got.dtype == dtype_of(type)


def test_fill_refuses() -> None:
    with pytest.raises(ModelError, match=r"FILL: input 0 \(dims\): is \[2, -1\]"):
        run(Op.FILL, integers(2, -1), scalar(1.0))
    with pytest.raises(ModelError, match="FILL: output 0 would have shape .* too large"):
        run(Op.FILL, integers(2**30, 2), scalar(1.0))
    assert run(Op.FILL, integers(2, 0), scalar(1.0))[0].shape == (2, 0)
