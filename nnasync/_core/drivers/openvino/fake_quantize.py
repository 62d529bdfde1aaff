"""The ends of a FakeQuantize of whole sums, such that each sum gets the value that it is to get.

OpenVINO makes a factor and a summand of the ends, in float32, and both are rounded: by more than
the distance, now and then, of a place where the result changes from the next whole number. A few
steps of float32 up or down at either end give other roundings, of which the best is taken.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from nnasync.hal import Array

_Reals = npt.NDArray[np.float64]
_REACH = 3
_NEAREST = 24
"""So many of the places where results change, those nearest to whole numbers, decide."""
_ROUNDINGS = 2.0**-23
_KEPT = 128
"""Answers for so many filters are kept: a network is lowered in several ways, one after another."""


def ends(least: _Reals, most: _Reals, levels: int) -> tuple[Array, Array]:
    """Both ends in float32, near the exact ones, for this number of values.

    `least` and `most` have one shape, and are moved already to where no place where the result
    changes is at a whole number.
    """
    low, high = _found(least.tobytes(), most.tobytes(), levels)
    return low.reshape(least.shape), high.reshape(most.shape)


@functools.lru_cache(_KEPT)
def _found(lowest: bytes, highest: bytes, levels: int) -> tuple[Array, Array]:
    """Both ends for each channel."""
    least, most = np.frombuffer(lowest, np.float64), np.frombuffer(highest, np.float64)
    start, end = least.astype(np.float32), most.astype(np.float32)
    steps: _Reals = np.arange(levels - 1, dtype=np.float64) + 0.5
    size = (most - least).reshape(-1, 1) / (levels - 1)
    places = least.reshape(-1, 1) + steps * size
    cells = np.floor(places)
    places -= cells
    count = min(_NEAREST, len(steps))
    chosen = np.argpartition(np.minimum(places, 1 - places), count - 1, axis=1)[:, :count]
    judge = _Judge(steps[chosen], np.take_along_axis(cells, chosen, 1), levels)
    unsafe = np.flatnonzero(~judge.is_safe(start, end))
    if unsafe.size:
        best = judge.of(unsafe).best(start[unsafe], end[unsafe])
        start[unsafe], end[unsafe] = best
    return start, end


class _Judge:
    """The sums at which results change, in steps, with the whole numbers below, by channel."""

    def __init__(self, steps: _Reals, cells: _Reals, levels: int) -> None:
        self._steps = steps
        self._cells = cells
        self._levels = levels

    def of(self, channels: Array) -> _Judge:
        """Returns the judge of some of the channels."""
        return _Judge(self._steps[channels], self._cells[channels], self._levels)

    def is_safe(self, start: Array, end: Array) -> Array:
        """Returns whether no sum is so near to a change that rounding in the run crosses it."""
        factor, summand = self._engine(start, end)
        moved = (np.abs(summand) + self._levels) * _ROUNDINGS / factor
        safe: Array = self._margin(factor, summand) > moved
        return safe

    def best(self, start: Array, end: Array) -> tuple[Array, Array]:
        """The ends near these that keep sums farthest from where results change."""
        found = start, end
        widest = self._margin(*self._engine(start, end))
        for down in range(-_REACH, _REACH + 1):
            for up in range(-_REACH, _REACH + 1):
                low = (start + down * np.spacing(np.abs(start))).astype(np.float32)
                high = (end + up * np.spacing(np.abs(end))).astype(np.float32)
                margin = self._margin(*self._engine(low, high))
                better = margin > widest
                widest = np.where(better, margin, widest)
                found = np.where(better, low, found[0]), np.where(better, high, found[1])
        return found

    def _engine(self, start: Array, end: Array) -> tuple[_Reals, _Reals]:
        """Factor and summand as OpenVINO makes them of the ends."""
        factor = np.float32(self._levels - 1) / (end - start)
        summand = -start * factor
        return factor.astype(np.float64), summand.astype(np.float64)

    def _margin(self, factor: _Reals, summand: _Reals) -> _Reals:
        """Returns how far the nearest whole number is from a place where results change."""
        places = (self._steps - summand[:, np.newaxis]) / factor[:, np.newaxis]
        nearest: _Reals = np.minimum(places - self._cells, self._cells + 1 - places).min(axis=1)
        return nearest
