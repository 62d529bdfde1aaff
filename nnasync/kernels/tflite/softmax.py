"""SOFTMAX with 16-bit results in TFLite's arithmetic, over the last dimension.

Results of 8-bit inputs are made as those of 8 bits are, in 32-bit fixed point, and then keep more
bits. 16-bit inputs take exponential and reciprocal from tables of 512 straight pieces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from nnasync.hal import Array
from nnasync.kernels.fixed_functions import exp_on_negative, reciprocal
from nnasync.kernels.fixed_point import quantize_multiplier, rounding_divide_by_pot
from nnasync.kernels.recurrent.integer_steps import multiplied

_INTEGER_BITS, _SUM_BITS = 5, 12
_PIECES = 512
_RANGE = 10.0
"""Differences beyond this count as nothing in 16 bits."""
_LARGEST = 2**15 - 1


def softmax_of_bytes(beta_scale: float) -> Callable[[Array], Array]:
    """Returns a softmax of int64 rows of 8-bit values in steps of 2**-16, for this scale."""
    real = min(beta_scale * 2 ** (31 - _INTEGER_BITS), 2**31 - 1.0)
    q, shift = quantize_multiplier(real)
    radius = int((2**_INTEGER_BITS - 1) * 2.0 ** (31 - _INTEGER_BITS - shift))

    def softmax(rows: Array) -> Array:
        below = rows - rows.max(axis=-1, keepdims=True)
        near = below >= -radius
        exponent = multiplied(np.where(near, below, 0), q, shift)
        powers = np.where(near, exp_on_negative(exponent, _INTEGER_BITS), 0)
        total = rounding_divide_by_pot(powers, _SUM_BITS).sum(axis=-1, keepdims=True)
        inverse, bits = reciprocal(total, _SUM_BITS)
        share = (powers * inverse + 2**30) >> 31
        drop = bits + 15
        rounded: Array = (share + (1 << (drop - 1))) >> drop
        return np.minimum(rounded, 2**16 - 1)

    return softmax


def softmax_of_words(beta_scale: float) -> Callable[[Array], Array]:
    """Returns a softmax of int64 rows of 16-bit values in steps of 2**-15, for this scale."""
    q, shift = quantize_multiplier(beta_scale / (_RANGE / (2**16 - 1)))

    def softmax(rows: Array) -> Array:
        below = multiplied(rows - rows.max(axis=-1, keepdims=True), q, shift)
        powers = _looked_up(_exponentials(), np.maximum(below + _LARGEST, -_LARGEST - 1))
        total = powers.sum(axis=-1, keepdims=True)
        headroom = 32 - np.frexp(total.astype(np.float64))[1].astype(np.int64)
        rest = ((total << (headroom - 1)) + (1 << 13)) >> 14
        inverse = _looked_up(_inverses(), np.clip(rest - 3 * 2**15, -_LARGEST - 1, _LARGEST))
        drop = 31 - headroom
        rounded: Array = (powers * inverse + (1 << (drop - 1))) >> drop
        return np.clip(rounded, 0, _LARGEST)

    return softmax


@functools.cache
def _exponentials() -> Array:
    """exp(x) over [-10, 0], by 16-bit words."""
    return _table(np.exp, -_RANGE, 0.0)


@functools.cache
def _inverses() -> Array:
    """1 / (1 + x) over [0, 1], by 16-bit words."""
    return _table(lambda x: 1 / (1 + x), 0.0, 1.0)


def _table(function: Callable[[Array], Array], lowest: float, highest: float) -> Array:
    """A function in steps of 2**-15 at the ends of pieces, lowered by half the middle's error."""
    ends = lowest + np.arange(_PIECES + 1) * ((highest - lowest) / _PIECES)
    exact = function(ends) * 2.0**15
    at_ends = _rounded(exact)
    middles = _rounded(function(ends[:-1] + (highest - lowest) / (2 * _PIECES)) * 2.0**15)
    error = _rounded((exact[1:] + at_ends[:-1]) / 2) - middles
    at_ends[:-1] -= _rounded(error / 2)
    return np.clip(at_ends, -_LARGEST - 1, _LARGEST).astype(np.int64)


def _rounded(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _looked_up(table: Array, words: Array) -> Array:
    """The function at signed 16-bit words, straight between the ends of a piece."""
    piece, offset = (words >> 7) + _PIECES // 2, words & 127
    start = table[piece]
    return np.asarray(start + (((table[piece + 1] - start) * offset + 64) >> 7))
