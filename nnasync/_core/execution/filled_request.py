"""A request of a call with open shapes, which later calls with the same shapes use again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nnasync.device import InlineRun
from nnasync.errors import GeneralFailure
from nnasync.hal import Array, Request, Shape
from nnasync.memory import Pool

if TYPE_CHECKING:
    from nnasync._core.execution import buffer


class FilledRequest:
    """Writes inputs to a request's memory, of which it keeps arrays once it is used again."""

    __slots__ = ("_inputs", "_outputs", "request", "run")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.run: InlineRun | None = None
        """What runs the request on the thread of its loop, once that was asked for."""
        self._inputs: list[Array | None] = [None] * len(request.inputs)
        self._outputs: list[Array | None] = [None] * len(request.outputs)

    def fits(self, arrays: Sequence[Any]) -> bool:
        """Returns whether these are plain arrays of the types and shapes of all its inputs."""
        places = self._inputs
        if len(arrays) != len(places):
            return False
        for array, place in zip(arrays, places, strict=True):
            if (
                array.__class__ is not np.ndarray
                or place is None
                or array.dtype is not place.dtype
                or array.shape != place.shape
            ):
                return False
        return True

    def fill(self, arrays: Sequence[Array | buffer.Buffer | None]) -> None:
        """Copies other inputs of the same shapes to their places."""
        for number, array in enumerate(arrays):
            if isinstance(array, np.ndarray):
                place = self._inputs[number]
                if place is None:
                    offset = self.request.inputs[number].location.offset
                    place = self._memory().array(array.dtype, array.shape, offset)
                    self._inputs[number] = place
                place[...] = array

    def output(self, number: int, dtype: np.dtype[Any], shape: Shape) -> Array:
        """Returns an output in place.

        Raises GeneralFailure where the device has taken the memory.
        """
        place = self._outputs[number]
        if place is None or place.shape != shape:
            offset = self.request.outputs[number].location.offset
            place = self._memory().array(dtype, shape, offset)
            self._outputs[number] = place
        return place

    def _memory(self) -> Pool:
        pool = self.request.pools[0]
        if not isinstance(pool, Pool):
            raise GeneralFailure("the request has lost its memory")
        return pool
