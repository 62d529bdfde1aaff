"""What is known of an operand before running, and the arrays that kernels ask for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nnasync import hal
from nnasync.hal import Array, OperandType, Shape, Struct

_RANGES: dict[int, tuple[int, int]] = {
    OperandType.TENSOR_QUANT8_ASYMM: (0, 255),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: (-128, 127),
}


class Tensor(Struct, frozen=True, eq=False):
    """What is known of one operand before running; scalars and unknown ranks have shape ().

    In a model a dimension of 0 is unknown; with `exact` the shape is that of a run and 0 means
    empty. `value` is set for constants and scalars: an array of the operand's dtype and shape. A
    `widened` one stands for a float16 operand that is computed in float32.
    """

    type: int
    shape: Shape = ()
    scale: float = 0.0
    zero_point: int = 0
    channel_quant: hal.ChannelQuant | None = None
    value: Array | None = None
    exact: bool = False
    widened: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """Numpy type of one element."""
        return hal.dtype_of(self.type)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_known(self) -> bool:
        """Returns whether rank and all dimensions are known."""
        known = self.exact or self.value is not None
        return known or hal.is_fully_specified(self.type, self.shape)


class ArraySpec(Struct, frozen=True):
    """Shape and dtype of an array that somebody else allocates."""

    shape: Shape
    dtype: Any = np.float32

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * int(np.dtype(self.dtype).itemsize)


def quantized_range(type: int) -> tuple[int, int]:
    """Smallest and largest quantized value of an asymmetric 8-bit type."""
    return _RANGES[type]
