"""Packed weights kept from one preparation of a model to the next.

What is costly to pack goes through `packed`. Whoever prepares a model sets `PACKING` to a recording
one and finds there, in order, all that was packed; a replaying one gives the same arrays back when
the same model is prepared again, and nothing is computed. Their values are not looked at: a wrong
one makes wrong results, nothing worse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

import numpy as np

from nnasync.errors import ModelError
from nnasync.hal import Array, Shape


class Packing:
    """Records packed arrays, or gives those of `known` back, in the order of packing."""

    __slots__ = ("_next", "_replays", "arrays")

    def __init__(self, known: Sequence[Array] | None = None) -> None:
        self.arrays: list[Array] = list(known or ())
        self._replays = known is not None
        self._next = 0

    @property
    def is_complete(self) -> bool:
        """Returns whether all arrays that were known have been given back."""
        return not self._replays or self._next == len(self.arrays)

    def take(self, make: Callable[[], Array], shape: Shape) -> Array:
        """The next array; raises ModelError where it is none of this shape and of floats."""
        if not self._replays:
            self.arrays.append(make())
            return self.arrays[-1]
        if self._next == len(self.arrays):
            raise ModelError(f"only {self._next} packed arrays were kept")
        array = self.arrays[self._next]
        if array.shape != shape or array.dtype not in (np.float32, np.float64):
            raise ModelError(
                f"packed array {self._next} is {array.dtype}{list(array.shape)}, expected floats "
                f"of shape {list(shape)}"
            )
        self._next += 1
        return array


PACKING: ContextVar[Packing | None] = ContextVar("PACKING", default=None)
"""Where packed arrays come from and go to; None computes them."""


def packed(make: Callable[[], Array], shape: Shape) -> Array:
    """Returns the array that `make` computes, or that it computed for the same model before."""
    packing = PACKING.get()
    return make() if packing is None else packing.take(make, shape)
