"""Operands of the four kinds of detection networks: floats, halves, 8 bits with 16-bit boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnasync.hal import Array, OperandType
from nnasync.kernels import Tensor
from tests.kernels.running import scalar, tensor

KINDS = ("float32", "float16", "uint8", "int8")
BOX_SCALE = 0.125


def is_float(kind: str) -> bool:
    return kind.startswith("float")


def quantized(values: Any, dtype: Any, scale: float, zero_point: int) -> Array:
    limits = np.iinfo(dtype)
    steps = np.round(np.asarray(values) / scale) + zero_point
    return np.clip(steps, limits.min, limits.max).astype(dtype)


def data(kind: str, values: Any, scale: float = 0.05, zero_point: int = 100) -> Tensor:
    """A tensor of the kind's data type; the zero point is that of the unsigned kind."""
    if is_float(kind):
        return tensor(np.asarray(values, kind))
    zero = zero_point - (128 if kind == "int8" else 0)
    return tensor(quantized(values, kind, scale, zero), scale=scale, zero_point=zero)


def boxes(kind: str, values: Any, type: OperandType = OperandType.TENSOR_QUANT16_ASYMM) -> Tensor:
    """A tensor of the kind's box type."""
    if is_float(kind):
        return tensor(np.asarray(values, kind))
    dtype = np.uint16 if type == OperandType.TENSOR_QUANT16_ASYMM else np.int16
    return tensor(quantized(values, dtype, BOX_SCALE, 0), type, scale=BOX_SCALE)


def number(kind: str, value: float) -> Tensor:
    """A floating point scalar as the kind has them."""
    return scalar(value, OperandType.FLOAT16 if kind == "float16" else OperandType.FLOAT32)


def real(given: Tensor) -> Array:
    """The real values of a tensor or scalar."""
    assert given.value is not None
    return of_steps(given.value, given.scale, given.zero_point)


def of_steps(array: Array, scale: float, zero_point: int) -> Array:
    """Real values in double precision; floats have no scale."""
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    return (array.astype(np.float64) - zero_point) * float(np.float32(scale))


def assert_near(got: Array, expected: Any, scale: float = 0.0, zero_point: int = 0) -> None:
    """Floats are close; quantized values are the nearest, or the last of the range."""
    expected = np.asarray(expected, np.float64).reshape(got.shape)
    if got.dtype.kind == "f":
        tolerance = 2e-3 if got.dtype == np.float16 else 2e-5
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
        return
    limits = np.iinfo(got.dtype)
    steps = np.clip(expected / float(np.float32(scale)) + zero_point, limits.min, limits.max)
    np.testing.assert_allclose(got, steps, rtol=0, atol=0.501)
