"""From exact integer sums in floating point to quantised outputs, rounded as the fixed-point rule does.

The rule rounds twice: to a multiple of 2**-shift steps of the output, then, halves away from zero, to
steps. The first rounding makes a half of about one value in 2**shift, so it is done here as well, in
floating point: multiply, round, multiply, round. Where the clamp removes everything below the zero
point, halves are always positive, and the second rounding is the cut of the conversion to integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnasync.hal import Array
from nnasync.kernels.operation import Tensor, quantized_range
from nnasync.kernels.steps import Call, add_rows, clip, copy, quantized_bounds

__all__ = ["Rescale", "store_quantized"]

_MAXIMUM_SHIFT = 14
_SIGN = np.array(128, np.uint8)


class Rescale:
    """Calls that turn sums into the quantised values of an output.

    `multiplier` is the scale of the sums in steps of the output, one per channel or a single one;
    `bias` is added to the sums beforehand.
    """

    __slots__ = ("_bias", "_bounds", "_cuts", "_first", "_second", "_zero")

    def __init__(
        self, multiplier: Array, bias: Array, output: Tensor, fused: int, dtype: np.dtype[Any], twice=False
    ) -> None:
        fraction, exponent = np.frexp(multiplier.astype(np.float64))
        import os
        shift = np.clip(-exponent, 0, 14)
        mantissa = np.floor(fraction * 2**31 + 0.5) / 2**31
        first = np.ldexp(mantissa, exponent + shift)
        second = np.ldexp(1.0, -shift)
        lower, upper = quantized_bounds(fused, output)
        self._cuts = lower >= output.zero_point and bool((shift > 0).all()) or (not twice and bool((shift > 0).all()) and 'MS' in os.environ)
        if self._cuts:
            offset = -quantized_range(output.type)[0]
            bias = bias + (output.zero_point + offset + 0.5) / second / first
            limits = lower + offset, upper + offset + 0.5
            zero = 0
        else:
            second *= 1 + np.ldexp(1.0, -shift - 9)
            limits, zero = (lower, upper), output.zero_point
        self._bias = bias.astype(dtype)
        self._first = first.astype(dtype)
        self._second = second.astype(dtype)
        self._zero = np.asarray(zero, dtype)
        self._bounds = np.asarray(limits[0], dtype), np.asarray(limits[1], dtype)

    def calls(self, sums: Array, output: Array) -> list[Call]:
        """Calls from sums [..., channels], which are overwritten, to the output."""
        calls = []
        if self._bias.any():
            calls.append(add_rows(np.add, sums, self._bias))
        calls.append(add_rows(np.multiply, sums, self._first))
        if not self._cuts or (self._second != 1).any():
            calls.append((np.rint, (sums, sums)))
        if (self._second != 1).any():
            calls.append(add_rows(np.multiply, sums, self._second))
        if self._cuts:
            return [*calls, (clip, (sums, *self._bounds, sums)), *store_quantized(sums, output)]
        calls.append((np.rint, (sums, sums)))
        if self._zero:
            calls.append((np.add, (sums, self._zero, sums)))
        return [*calls, (clip, (sums, *self._bounds, sums)), copy(output, sums)]


def store_quantized(values: Array, output: Array) -> list[Call]:
    """Calls that convert clamped floats to uint8, or to int8 from values that are 128 too large."""
    if output.dtype == np.uint8:
        return [copy(output, values)]
    raw = output.view(np.uint8)
    return [copy(raw, values), (np.bitwise_xor, (raw, _SIGN, raw))]
