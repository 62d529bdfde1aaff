"""Random values for operands, and the properties that some operations ask of them.

All randomness is in whole numbers and exactly rounded arithmetic, so that a seed gives the same
values on any machine.
"""

from __future__ import annotations

import enum

import numpy as np

from nnasync import hal
from nnasync.hal import Array, OperandType, Shape

FLOATS = (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16)
QUANTIZED = (
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_QUANT8_SYMM,
    OperandType.TENSOR_QUANT16_ASYMM,
    OperandType.TENSOR_QUANT16_SYMM,
)
"""Types with one scale and a zero point, which is 0 for the symmetric ones."""
PLAIN_TYPES = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_BOOL8,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
)
"""The types that most operations take."""

LARGEST_SCALE = 64.0
"""Results are not quantized more coarsely, so that scales do not grow without end in a graph."""

_LARGEST_FLOAT = 2.0
_SMALLEST_FLOAT = 0.125
"""Random floats that must not be 0 are at least that large."""
_LARGEST_INTEGER = 255


class Property(enum.Flag):
    """What an operation asks of the values of an operand, or guarantees for its results."""

    NONE = 0
    NON_ZERO = enum.auto()
    NON_NEGATIVE = enum.auto()


def random_values(
    source: np.random.Generator,
    type: int,
    shape: Shape,
    *,
    zero_point: int = 0,
    needs: Property = Property.NONE,
) -> Array:
    """Values over the range that is usual for a type: floats up to 2, bytes over all they can be.

    Integers are up to 255, every other array of them of both signs.
    """
    dtype = hal.dtype_of(type)
    if type in FLOATS:
        return _floats(source, shape, needs).astype(dtype)
    if type == OperandType.TENSOR_BOOL8:
        return np.asarray(source.integers(0, 2, shape) == 1, dtype)
    if type == OperandType.TENSOR_INT32:
        positive = Property.NON_NEGATIVE in needs or source.integers(0, 2) == 0
        lowest = 0 if positive else -_LARGEST_INTEGER
        return _integers(source, shape, (lowest, _LARGEST_INTEGER), 0, needs).astype(dtype)
    limits = np.iinfo(dtype)
    lowest, highest = int(limits.min), int(limits.max)
    if type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        lowest += 1
    if Property.NON_NEGATIVE in needs:
        lowest = zero_point
    return _integers(source, shape, (lowest, highest), zero_point, needs).astype(dtype)


def _floats(source: np.random.Generator, shape: Shape, needs: Property) -> Array:
    sizes = source.random(shape)
    if Property.NON_ZERO in needs:
        sizes = _SMALLEST_FLOAT + sizes * (_LARGEST_FLOAT - _SMALLEST_FLOAT)
    else:
        sizes = sizes * _LARGEST_FLOAT
    if Property.NON_NEGATIVE not in needs:
        sizes = sizes * (2 * source.integers(0, 2, shape) - 1)
    return sizes


def _integers(
    source: np.random.Generator, shape: Shape, limits: tuple[int, int], zero: int, needs: Property
) -> Array:
    """Integers within the limits; where they must not be `zero`, one that is becomes a limit."""
    lowest, highest = limits
    values = source.integers(lowest, highest + 1, shape)
    if Property.NON_ZERO in needs:
        values = np.where(values == zero, highest if zero != highest else lowest, values)
    return values
