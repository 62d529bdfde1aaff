"""ABS, EXP, FLOOR, LOG, NEG, RSQRT, SIN and SQRT against the functions of the standard library."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS
from tests.kernels.running import run, tensor

Op = OperationType

REAL: dict[OperationType, Callable[[float], float]] = {
    Op.ABS: abs,
    Op.EXP: math.exp,
    Op.FLOOR: math.floor,
    Op.LOG: math.log,
    Op.NEG: lambda x: -x,
    Op.RSQRT: lambda x: 1 / math.sqrt(x),
    Op.SIN: math.sin,
    Op.SQRT: math.sqrt,
}
POSITIVE = (Op.LOG, Op.RSQRT, Op.SQRT)


@pytest.mark.parametrize("operation", REAL, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(7,), (2, 3, 4, 5)])
def test_float(operation: OperationType, dtype: type, shape: tuple[int, ...]) -> None:
    low = 0.01 if operation in POSITIVE else -5
    x: Array = np.random.default_rng(1).uniform(low, 5, shape).astype(dtype)
    (got,) = run(operation, tensor(x))
    expected = np.reshape([REAL[operation](value) for value in x.ravel().tolist()], shape)
    tolerance = 2e-3 if dtype is np.float16 else 2e-6
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("operation", [Op.ABS, Op.NEG], ids=lambda op: op.name)
def test_integers_wrap(operation: OperationType) -> None:
    x = np.asarray([[-3, 0, 7, -(2**31), 2**31 - 1]], np.int32)
    with np.errstate(all="ignore"):
        (got,) = run(operation, tensor(x))
    expected = {Op.ABS: [3, 0, 7, -(2**31), 2**31 - 1], Op.NEG: [3, 0, -7, -(2**31), 1 - 2**31]}
    assert got.tolist() == [expected[operation]]


def test_poles_and_undefined_values() -> None:
    x = np.asarray([0, -1], np.float32)
    with np.errstate(all="ignore"):
        results = [run(operation, tensor(x))[0] for operation in POSITIVE]
    expected = [[-np.inf, np.nan], [np.inf, np.nan], [0, np.nan]]
    np.testing.assert_array_equal(results, np.asarray(expected, np.float32))


@pytest.mark.parametrize("operation", REAL, ids=lambda op: op.name)
def test_no_elements_are_refused(operation: OperationType) -> None:
    with pytest.raises(ModelError, match=r"input 0 \(input\): has shape \(0,\)"):
        run(operation, tensor(np.zeros(0, np.float32)))


def test_ranks() -> None:
    x = tensor(np.full((1, 2, 1, 2, 1), 2.5, np.float32))
    assert run(Op.EXP, x)[0].shape == (1, 2, 1, 2, 1)
    with pytest.raises(ModelError, match=r"FLOOR: input 0 \(input\): .* expected rank 1 or 2"):
        run(Op.FLOOR, x)


def test_types_by_version() -> None:
    integers, floats = OperandType.TENSOR_INT32, OperandType.TENSOR_FLOAT32
    assert OPERATIONS[Op.FLOOR].signature([floats]).since == HalVersion.V1_0
    assert OPERATIONS[Op.NEG].signature([integers]).since == HalVersion.V1_2
    assert OPERATIONS[Op.ABS].signature([integers]).since == HalVersion.V1_3
    with pytest.raises(ModelError, match="SQRT"):
        OPERATIONS[Op.SQRT].signature([integers])
