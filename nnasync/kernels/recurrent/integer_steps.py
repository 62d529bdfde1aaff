"""Fixed-point arithmetic as bound calls on int64 arrays: exact, in place, without allocation."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, Shape
from nnasync.kernels.fixed_point import quantize_multiplier, single
from nnasync.kernels.operation import Arguments
from nnasync.kernels.steps import Call, clip

INT8 = (np.asarray(-128), np.asarray(127))
INT16 = (np.asarray(-(2**15)), np.asarray(2**15 - 1))
_INT32 = (np.asarray(-(2**31)), np.asarray(2**31 - 1))
_MOST_SHIFT = 31
_FINEST, _COARSEST = -15, -9
_HALF = np.asarray(2**30)
_EXACT = 2**24
_multiply = functools.partial(np.multiply, dtype=np.int64)


def exact_dtype(weights: Array, largest: int) -> np.dtype[Any]:
    """The smaller float type that holds every sum of integer weights [terms, sums] times inputs.

    `largest` is the greatest magnitude of an input.
    """
    total = np.abs(weights.astype(np.float64)).sum(axis=0).max(initial=0)
    return np.dtype(np.float32 if total * largest < _EXACT else np.float64)


def scale_of(arguments: Arguments, index: int) -> float:
    """The scale of a quantized operand, which must be positive, as float32 holds it."""
    scale = arguments.tensor(index).scale
    if not scale > 0:
        raise arguments.error(index, f"has scale {scale}, expected a positive one")
    return single(scale)


def ratio(a: float, b: float, c: float) -> float:
    """a * b / c of scales, in float32."""
    return single(single(a * b) / c)


def state_exponent(arguments: Arguments, index: int) -> int:
    """The binary logarithm of the cell state's scale."""
    scale = scale_of(arguments, index)
    exponent = round(math.log2(scale))
    near = abs(math.log2(scale) - exponent) < 1e-3
    if not near or not _FINEST <= exponent <= _COARSEST:
        raise arguments.error(
            index,
            f"has scale {scale}, expected a power of two from 2**{_FINEST} to 2**{_COARSEST}",
        )
    return exponent


def product(a: Array, b: Array, target: Array) -> Call:
    """The call that multiplies integers of any size into int64."""
    return _multiply, (a, b, target)


def saturate(values: Array, bounds: tuple[Array, Array], target: Array | None = None) -> Call:
    """The call that clips to bounds, in place if there is no target."""
    return clip, (values, *bounds, values if target is None else target)


def lookup(table: Array, words: Array, target: Array) -> Call:
    """The call that looks contiguous 16-bit words up in a table by unsigned word."""
    return table.take, (words.view(np.uint16), None, target, "clip")


def round_shift(values: Array, exponent: Array | int, work: Array) -> list[Call]:
    """Calls of values / 2**exponent in place, rounded to nearest, halves away from zero."""
    right = np.asarray(exponent, np.int64)
    if not right.any():
        return []
    half = np.where(right > 0, 1 << np.maximum(right - 1, 0), 0)
    calls: list[Call] = [(np.right_shift, (values, np.asarray(63), work))]
    if not right.all():
        calls.append((np.bitwise_and, (work, -(right > 0).astype(np.int64), work)))
    return [
        *calls,
        (np.add, (values, work, values)),
        (np.add, (values, half, values)),
        (np.right_shift, (values, right, values)),
    ]


def multiplied(values: Array, q: Array | int, shift: Array | int) -> Array:
    """values * q * 2**(shift - 31) as the fixed-point rule computes it."""
    left, right = np.clip(shift, 0, _MOST_SHIFT), np.maximum(np.negative(shift), 0)
    high = (np.clip(values << left, *_INT32) * q + 2**30) >> 31
    half = np.where(right > 0, 1 << np.maximum(right - 1, 0), 0)
    return np.asarray((high + half - ((high < 0) & (right > 0))) >> right)


class Multiplier:
    """Multiplication of int64 arrays by real factors, one for all or an array that broadcasts."""

    __slots__ = ("_left", "_q", "_right")

    def __init__(self, factors: Sequence[float], shape: Shape = ()) -> None:
        pairs = [quantize_multiplier(float(factor)) for factor in factors]
        q, shift = np.asarray(pairs, np.int64).T.reshape(2, *shape)
        self._q = np.ascontiguousarray(q)
        self._left, self._right = np.clip(shift, 0, _MOST_SHIFT), np.maximum(-shift, 0)

    def calls(self, values: Array, work: Array) -> list[Call]:
        """Calls that multiply in place; `work` is like `values`."""
        calls: list[Call] = []
        if self._left.any():
            calls.append((np.left_shift, (values, self._left, values)))
            calls.append(saturate(values, _INT32))
        return [
            *calls,
            (np.multiply, (values, self._q, values)),
            (np.add, (values, _HALF, values)),
            (np.right_shift, (values, np.asarray(31), values)),
            *round_shift(values, self._right, work),
        ]
