"""Real values of quantized operands and back."""

from __future__ import annotations

import numpy as np
import pytest

from nnasync.hal import OperandType
from nnasync.kernels import Tensor
from nnasync.kernels.detection.reals import from_real, to_real

T = OperandType
TYPES = [
    (T.TENSOR_QUANT8_ASYMM, 100),
    (T.TENSOR_QUANT8_ASYMM_SIGNED, -28),
    (T.TENSOR_QUANT16_ASYMM, 0),
    (T.TENSOR_QUANT16_SYMM, 0),
]


@pytest.mark.parametrize(("type", "zero_point"), TYPES)
def test_every_step_comes_back(type: OperandType, zero_point: int) -> None:
    tensor = Tensor(type, (1,), 0.1, zero_point)
    limits = np.iinfo(tensor.dtype)
    steps = np.arange(limits.min, limits.max + 1).astype(tensor.dtype)
    real = to_real(steps, tensor)
    assert real.dtype == np.float32
    np.testing.assert_allclose(real, (steps.astype(int) - zero_point) * 0.1, rtol=1e-6)
    np.testing.assert_array_equal(from_real(real, tensor), steps)


@pytest.mark.parametrize(("type", "zero_point"), TYPES)
def test_what_is_out_of_range_is_the_last_step(type: OperandType, zero_point: int) -> None:
    tensor = Tensor(type, (1,), 0.1, zero_point)
    limits = np.iinfo(tensor.dtype)
    extremes = from_real(np.array([-1e9, 1e9, -np.inf, np.inf, np.nan], np.float32), tensor)
    assert extremes.tolist() == [limits.min, limits.max] * 2 + [limits.min]


def test_halves_go_the_same_way_for_signed_and_unsigned() -> None:
    values = np.arange(-20, 20, dtype=np.float32) / 4
    unsigned = from_real(values, Tensor(T.TENSOR_QUANT8_ASYMM, (1,), 0.5, 3))
    signed = from_real(values, Tensor(T.TENSOR_QUANT8_ASYMM_SIGNED, (1,), 0.5, -125))
    np.testing.assert_array_equal(unsigned, signed.astype(int) + 128)


def test_floats_stay() -> None:
    values = np.array([1.5, -2], np.float32)
    tensor = Tensor(T.TENSOR_FLOAT32, (2,))
    assert to_real(values, tensor) is values
    assert from_real(values, tensor) is values
    half = to_real(values.astype(np.float16), Tensor(T.TENSOR_FLOAT16, (2,)))
    assert half.dtype == np.float32
