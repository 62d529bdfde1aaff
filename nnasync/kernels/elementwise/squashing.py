"""LOGISTIC and TANH of all 8-bit values in 32-bit fixed point, exact to the bit.

The rule turns a value into a number with 4 integer bits, computes without integer bits, and rounds
to 8 bits. It saturates values at a radius that its scale gives; from a scale of 8 on even 0, which
then becomes the lowest result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nnasync.hal import Array
from nnasync.kernels.byte_tables import all_values
from nnasync.kernels.fixed_functions import logistic, tanh
from nnasync.kernels.fixed_point import (
    quantize_multiplier,
    rounding_divide_by_pot,
    saturating_rounding_doubling_high_mul,
    single,
)
from nnasync.kernels.operation import Arguments, Tensor, quantized_range

_INTEGER_BITS = 4
_LARGEST = 15 << 27

Function = Callable[[Array, int, int], Array]
"""From numbers, their integer bits and the bits of a word to results without integer bits."""


def _steps(arguments: Arguments, function: Function, bits: int, zero: int) -> Array:
    """Results as unsigned values: the function in steps of 2**-bits above `zero`."""
    source = arguments.tensor(0)
    multiplier = single(source.scale) * 2**27
    if not multiplier > 1:
        raise arguments.error(0, f"has scale {source.scale}, expected more than 2**-27")
    q, shift = quantize_multiplier(multiplier)
    radius = _LARGEST >> shift
    x = all_values(source)
    inner = np.clip(x, -radius, radius) << (shift if radius else 0)
    fine = function(saturating_rounding_doubling_high_mul(inner, q), _INTEGER_BITS, 32)
    steps = np.minimum(rounding_divide_by_pot(fine, 31 - bits) + zero, 255)
    return np.where(x <= -radius, 0, np.where(x >= radius, 255, steps))


def logistic_table(arguments: Arguments, output: Tensor) -> Array:
    """LOGISTIC of all values in ascending order, in steps of 1/256 above the lowest value."""
    return _steps(arguments, logistic, 8, 0) + quantized_range(output.type)[0]


def tanh_table(arguments: Arguments, output: Tensor) -> Array:
    """TANH of all values in ascending order, in steps of 1/128 above the middle value."""
    return _steps(arguments, tanh, 7, 128) + quantized_range(output.type)[0]
