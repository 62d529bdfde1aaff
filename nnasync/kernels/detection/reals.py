"""Real values of quantized operands and back, for what is computed in float32 whatever the type."""

from __future__ import annotations

import numpy as np

from nnasync.hal import Array
from nnasync.kernels.operation import Tensor


def to_real(array: Array, tensor: Tensor) -> Array:
    """The real values as float32; floats come as they are, so the result is not to be changed."""
    if tensor.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    shifted = array.astype(np.float32) - np.float32(tensor.zero_point)
    real: Array = shifted * np.float32(tensor.scale)
    return real


def from_real(values: Array, output: Tensor) -> Array:
    """The nearest values of an output.

    Steps count from the lowest and their halves go up, so that signed and unsigned types agree; a
    value that is not a number becomes the lowest.
    """
    if output.dtype.kind == "f":
        return values.astype(output.dtype, copy=False)
    limits = np.iinfo(output.dtype)
    steps = values.astype(np.float64) / float(np.float32(output.scale))
    nearest = np.floor(steps + (output.zero_point - limits.min + 0.5))
    bounded = np.fmin(np.fmax(nearest, 0), limits.max - limits.min)
    return (bounded.astype(np.int32) + limits.min).astype(output.dtype)
