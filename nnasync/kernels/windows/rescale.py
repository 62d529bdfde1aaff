"""From exact integer sums in floating point to quantized outputs, rounded as fixed point does.

The rule multiplies by a 31-bit fraction, rounds, divides by 2**shift, and rounds again. Two
roundings with halves up are one floor of sum * multiplier + 1/2 + 2**-(shift + 1), so that one
multiplication and one addition give the rule's result to the bit, provided that they are precise
enough near each of the (at most 255) sums where the output changes. float32 often is: that is
proven when the kernel is prepared, by evaluating both sides of every change, which suffices because
all calls are monotone. Otherwise it is float64.

NNAPI's rule takes halves of the second rounding away from zero, the matrix products of today's
engines take them up, and outputs of real networks that serve as reference show both. The two differ
only below zero, by one step: `Halves` says which.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, Shape
from nnasync.kernels.fixed_point import quantize_multiplier
from nnasync.kernels.operation import ArraySpec, Tensor, quantized_range
from nnasync.kernels.steps import Call, add_rows, clip, copy, quantized_bounds

_SIGN = np.array(128, np.uint8)
_SMALLEST_FLOAT32 = 0.0005
"""Below this multiplier the changes lie too densely for float32; trying would be a waste."""
_HOPELESS = 0.5
"""Share of channels without a factor after the first tries that ends the search."""
_ONE, _LARGE = np.asarray(1.0), np.asarray(2.0**40)
"""A value times the second is beyond the first, unless it is 0."""
_EXACT = 2**24


class Halves(enum.Enum):
    """Where the second rounding takes halves."""

    UP = enum.auto()
    AWAY = enum.auto()


class Rescale:
    """Calls that turn sums into the quantized values of an output.

    `multiplier` is the scale of the sums in steps of the output, one per channel or a single one;
    `bias` holds integers that belong to the sums; `dtype` is that of the sums.
    """

    __slots__ = ("_add", "_away", "_bias", "_bounds", "_dtype", "_half", "_multiply", "_zero")

    def __init__(
        self,
        multiplier: Array,
        bias: Array,
        output: Tensor,
        fused: int,
        dtype: np.dtype[Any],
        *,
        halves: Halves,
    ) -> None:
        pairs = [quantize_multiplier(float(value)) for value in multiplier]
        mantissa, exponent = np.asarray(pairs, np.int64).T
        real = np.ldexp(mantissa.astype(np.float64), exponent - 31)
        half = 0.5 + np.where(exponent < 0, np.ldexp(0.5, exponent), 0.0)
        lower, upper = quantized_bounds(fused, output)
        self._away = halves is Halves.AWAY and lower < output.zero_point
        offset = 0 if self._away else -quantized_range(output.type)[0]
        limits = (lower + offset, upper + offset)
        shift = _nudges(mantissa, exponent) if self._away else half + output.zero_point + offset
        precise = None
        if dtype == np.float32 and not self._away and np.abs(bias).max(initial=0) < _EXACT:
            precise = _float32_factors(mantissa, exponent, shift, limits)
        self._dtype = np.dtype(np.float64 if precise is None else np.float32)
        self._bias = None if precise is None else bias.astype(np.float32)
        self._multiply: Array
        self._add: Array
        self._multiply, self._add = precise or (real, bias * real + shift)
        self._half = half
        self._zero = np.asarray(output.zero_point, np.float64)
        slack = 0.0 if self._away else 0.5
        self._bounds = (
            np.asarray(limits[0], self._dtype),
            np.asarray(limits[1] + slack, self._dtype),
        )

    def scratch(self, shape: Shape, dtype: np.dtype[Any]) -> list[ArraySpec]:
        """Scratch for sums of a shape: a wider copy where one is needed."""
        count = int(self._dtype != dtype) + int(self._away)
        return [ArraySpec(shape, self._dtype)] * count

    def calls(self, sums: Array, output: Array, scratch: Sequence[Array]) -> list[Call]:
        """Calls from sums [..., channels], which are overwritten, to the output."""
        calls = []
        if self._bias is not None and self._bias.any():
            calls.append(add_rows(np.add, sums, self._bias))
        wide = sums
        if self._dtype != sums.dtype:
            wide = scratch[0]
            calls.append(copy(wide, sums))
        calls.append(add_rows(np.multiply, wide, self._multiply))
        if self._add.any():
            calls.append(add_rows(np.add, wide, _uniform(self._add)))
        if self._away:
            work = scratch[int(wide is not sums)]
            return calls + self._round_away(wide, output, work)
        calls.append((clip, (wide, *self._bounds, wide)))
        return calls + store_quantized(wide, output)

    def _round_away(self, wide: Array, output: Array, work: Array) -> list[Call]:
        """Half a step is added with the sign of the value, and the rest is cut off."""
        return [
            (np.multiply, (wide, _LARGE, work)),
            (clip, (work, -_ONE, _ONE, work)),
            add_rows(np.multiply, work, _uniform(self._half)),
            (np.add, (wide, work, wide)),
            (np.trunc, (wide, wide)),
            (np.add, (wide, self._zero, wide)),
            (clip, (wide, *self._bounds, wide)),
            copy(output, wide),
        ]


def _uniform(row: Array) -> Array:
    """A single element where all are the same, which numpy adds faster."""
    return row[:1] if (row == row[0]).all() else row


def _nudges(mantissa: Array, exponent: Array) -> Array:
    """Returns summands that round halves of the first rounding up, for sums below 2**24."""
    possible = mantissa % 2**6 == 0
    return np.where(possible, np.ldexp(1.0, np.minimum(exponent, 0) - 27), 0.0)


def _float32_factors(
    mantissa: Array, exponent: Array, shift: Array, limits: tuple[int, int]
) -> tuple[Array, Array] | None:
    """Multipliers and shifts in float32 that are exact for every sum, if they are found.

    Those near the exact ones are tried at both sides of every change of the result.
    """
    results = np.arange(limits[0] + 1, limits[1] + 1, dtype=np.int64)
    exact = np.ldexp(mantissa.astype(np.float64), exponent - 31).astype(np.float32)
    if not results.size or exact.min() < _SMALLEST_FLOAT32:
        return None
    scaled = np.ldexp(results - shift[:, None], 31 - exponent[:, None]).astype(np.int64)
    first = -(-scaled // mantissa[:, None])
    if np.abs(first).max() >= _EXACT:
        return None
    here, before = first.astype(np.float32), (first - 1).astype(np.float32)
    factors, shifts = exact.copy(), shift.astype(np.float32)
    left = np.arange(len(exact))
    for neighbor in (0, -1, 1):
        factor = exact + neighbor * np.spacing(exact)
        for ulps in (0, 1, -1, 2, -2, 3, -3):
            added = shift.astype(np.float32)
            added += np.float32(ulps) * np.spacing(added)
            passes = (here * factor[left, None] + added[left, None] >= results) & (
                before * factor[left, None] + added[left, None] < results
            )
            good = passes.all(axis=1)
            factors[left[good]], shifts[left[good]] = factor[left[good]], added[left[good]]
            left, here, before = left[~good], here[~good], before[~good]
            if not left.size:
                return factors, shifts
        if left.size > _HOPELESS * len(exact):
            return None
    return None


def store_quantized(values: Array, output: Array) -> list[Call]:
    """Calls that convert clamped floats to uint8, or to int8 from values that are 128 too large."""
    if output.dtype == np.uint8:
        return [copy(output, values)]
    raw = output.view(np.uint8)
    return [copy(raw, values), (np.bitwise_xor, (raw, _SIGN, raw))]
