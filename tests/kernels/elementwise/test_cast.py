"""CAST between all its types against Python's own conversions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS
from tests.kernels.running import run, tensor

T = OperandType

NUMBERS = {
    T.TENSOR_FLOAT32: np.float32,
    T.TENSOR_FLOAT16: np.float16,
    T.TENSOR_INT32: np.int32,
    T.TENSOR_QUANT8_ASYMM: np.uint8,
}
KEPT = {
    T.TENSOR_BOOL8: np.bool_,
    T.TENSOR_QUANT16_ASYMM: np.uint16,
    T.TENSOR_QUANT16_SYMM: np.int16,
    T.TENSOR_QUANT8_ASYMM_SIGNED: np.int8,
    T.TENSOR_QUANT8_SYMM: np.int8,
}
VALUES = [
    0,
    1,
    2.75,
    -2.75,
    -0.5,
    254.9,
    255,
    256,
    1000,
    -1000,
    70000,
    -70000,
    2**24 + 1,
    3e9,
    -3e9,
]


def converted(value: Any, target: OperandType) -> Any:
    if target == T.TENSOR_INT32:
        return max(-(2**31), min(2**31 - 1, math.trunc(value)))
    if target == T.TENSOR_QUANT8_ASYMM:
        return max(0, min(255, math.trunc(value)))
    return np.asarray(value, np.float32).astype(NUMBERS[target])


@pytest.mark.parametrize("source", NUMBERS, ids=lambda type: type.name)
@pytest.mark.parametrize("target", NUMBERS, ids=lambda type: type.name)
def test_numbers(source: OperandType, target: OperandType) -> None:
    limits = {T.TENSOR_INT32: 2**31 - 1, T.TENSOR_QUANT8_ASYMM: 255, T.TENSOR_FLOAT16: 65504}
    largest = limits.get(source, math.inf)
    lowest = 0 if source == T.TENSOR_QUANT8_ASYMM else -largest
    chosen = [value for value in VALUES if lowest <= value <= largest]
    x = np.asarray(chosen).astype(NUMBERS[source]).reshape(1, -1)
    scale = 0.3 if source == T.TENSOR_QUANT8_ASYMM else 0.0
    with np.errstate(all="ignore"):
        (got,) = run(
            OperationType.CAST,
            tensor(x, source, scale=scale, zero_point=7 if scale else 0),
            output_types=[target],
            scale=0.7,
            zero_point=9,
        )
        expected = [converted(value, target) for value in x.ravel().tolist()]
    assert got.dtype == NUMBERS[target]
    assert got.ravel().tolist() == np.asarray(expected, NUMBERS[target]).tolist()


@pytest.mark.parametrize(
    ("target", "expected"), [(T.TENSOR_INT32, -(2**31)), (T.TENSOR_QUANT8_ASYMM, 0)]
)
def test_what_no_integer_can_hold(target: OperandType, expected: int) -> None:
    highest = {T.TENSOR_INT32: 2**31 - 1, T.TENSOR_QUANT8_ASYMM: 255}[target]
    x = np.asarray([np.nan, np.inf, -np.inf], np.float32)
    (got,) = run(OperationType.CAST, tensor(x), output_types=[target], scale=1.0)
    assert got.tolist() == [expected, highest, expected]


@pytest.mark.parametrize("type", KEPT, ids=lambda type: type.name)
def test_other_types_keep_their_bytes(type: OperandType) -> None:
    raw = np.random.default_rng(2).integers(0, 256, 48).astype(np.uint8)
    x: Array = raw.view(KEPT[type]).reshape(2, 1, -1)
    (got,) = run(OperationType.CAST, tensor(x, type, scale=0.5), output_types=[type], scale=0.25)
    assert got.shape == x.shape
    assert got.tobytes() == raw.tobytes()


def test_large_tensors_are_cast_in_blocks() -> None:
    x = np.arange(700_000, dtype=np.float32) / 2000 - 10
    (got,) = run(OperationType.CAST, tensor(x), output_types=[T.TENSOR_QUANT8_ASYMM], scale=1.0)
    np.testing.assert_array_equal(got, np.trunc(x.clip(0, 255)))


def test_types_by_version() -> None:
    cast = OPERATIONS[OperationType.CAST]
    for source in NUMBERS:
        for target in NUMBERS:
            assert cast.signature([source], [target]).since == HalVersion.V1_2
        for kept in KEPT:
            assert not any(s.accepts([source], [kept]) for s in cast.signatures)
            assert not any(s.accepts([kept], [source]) for s in cast.signatures)
    for kept in KEPT:
        assert cast.signature([kept], [kept]).since == HalVersion.V1_3


def test_no_elements_are_refused() -> None:
    with pytest.raises(ModelError, match=r"CAST: input 0 \(input\): has shape \(2, 0\)"):
        run(OperationType.CAST, tensor(np.zeros((2, 0), np.int32)), output_types=[T.TENSOR_INT32])
