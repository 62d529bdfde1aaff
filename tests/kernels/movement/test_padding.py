"""PAD and PAD_V2 against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import ModelError
from nnasync.hal import HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.running import run, scalar, tensor

Op = OperationType
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)
KINDS = st.sampled_from([np.float32, np.float16, np.uint8, np.int8])


def some_pads(shape: tuple[int, ...], data: st.DataObject) -> tuple[Any, Tensor]:
    pads = [(data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in shape]
    return pads, tensor(np.asarray(pads, np.int32))


def some_values(shape: tuple[int, ...], dtype: Any) -> Any:
    return (np.arange(int(np.prod(shape))) % 100).reshape(shape).astype(dtype)


@given(SHAPES, KINDS, st.data())
def test_pad(shape: tuple[int, ...], dtype: Any, data: st.DataObject) -> None:
    pads, paddings = some_pads(shape, data)
    x = some_values(shape, dtype)
    quantized = np.issubdtype(dtype, np.integer)
    source = tensor(x, scale=0.5, zero_point=9) if quantized else tensor(x)
    runtime = data.draw(st.sampled_from([(), (0,), (0, 1)]))
    (got,) = run(Op.PAD, source, paddings, runtime=runtime)
    np.testing.assert_array_equal(got, np.pad(x, pads, constant_values=9 if quantized else 0))


@given(SHAPES, KINDS, st.integers(-(2**31), 2**31 - 1), st.data())
def test_pad_v2(shape: tuple[int, ...], dtype: Any, number: int, data: st.DataObject) -> None:
    pads, paddings = some_pads(shape, data)
    x = some_values(shape, dtype)
    if np.issubdtype(dtype, np.integer):
        source, value = tensor(x, scale=0.5, zero_point=9), scalar(number)
        border = np.asarray(number & 255, np.uint8).view(dtype)
    else:
        border = np.asarray(number % 1000 / 8, dtype)
        scalar_type = {4: OperandType.FLOAT32, 2: OperandType.FLOAT16}[border.itemsize]
        source, value = tensor(x), scalar(float(border), scalar_type)
    runtime = data.draw(st.sampled_from([(), (0,), (0, 2), (0, 1, 2)]))
    (got,) = run(Op.PAD_V2, source, paddings, value, runtime=runtime)
    np.testing.assert_array_equal(got, np.pad(x, pads, constant_values=border))


@pytest.mark.parametrize("type", [Op.PAD, Op.PAD_V2])
@pytest.mark.parametrize(
    "pads", [[[0, 1]], [[0, 1], [0, -1]], [[0, 1, 2], [0, 1, 2]], [0, 1, 0, 1]]
)
def test_refuses(type: OperationType, pads: Any) -> None:
    value = [scalar(1.0)] if type == Op.PAD_V2 else []
    x, paddings = tensor(np.zeros((2, 3), np.float32)), tensor(np.asarray(pads, np.int32))
    with pytest.raises(ModelError, match=rf"{type.name}: input 1 \(paddings\): "):
        run(type, x, paddings, *value)


def test_refuses_what_no_memory_holds() -> None:
    x = tensor(np.zeros((1, 1), np.float32))
    pads = tensor(np.full((2, 2), 2**31 - 1, np.int32))
    with pytest.raises(ModelError, match="PAD: output 0 would have shape .* too large"):
        run(Op.PAD, x, pads)


def test_the_value_has_the_type_of_the_data() -> None:
    x, pads = tensor(np.zeros(1, np.uint8), scale=1.0), tensor(np.zeros((1, 2), np.int32))
    with pytest.raises(ModelError, match=r"input 2 \(value\) is FLOAT32"):
        run(Op.PAD_V2, x, pads, scalar(1.0))


@pytest.mark.parametrize("type", [Op.PAD, Op.SPACE_TO_BATCH_ND])
def test_a_zero_point_needs_a_later_version(type: OperationType) -> None:
    pads = Tensor(type=OperandType.TENSOR_INT32)
    options = [pads] if type == Op.PAD else [pads, pads]
    for zero_point, version in ((0, HalVersion.V1_1), (3, HalVersion.V1_2)):
        x = Tensor(OperandType.TENSOR_QUANT8_ASYMM, (1, 2, 2, 1), 0.5, zero_point)
        assert OPERATIONS[type].minimum_version([x, *options], [x]) == version
