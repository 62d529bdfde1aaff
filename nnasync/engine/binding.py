"""A request bound to arrays: validated once, kept while the request object lives."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np

from nnasync.engine.contract import BoundCall, Plan
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Operand, Request, RequestArgument, byte_size, dtype_of
from nnasync.workers import contained

__all__ = ["Binding", "array_of"]


class Binding:
    """One request with its arrays, and the calls that are bound to them and idle."""

    __slots__ = ("_idle", "_inputs", "_outputs", "_plan", "reference")

    def __init__(
        self, plan: Plan, inputs: Sequence[Array | None], outputs: Sequence[Array]
    ) -> None:
        self._plan = plan
        self._inputs = inputs
        self._outputs = outputs
        self._idle: list[BoundCall] = [self._bound()]
        self.reference: weakref.ref[Request] | None = None

    def take(self) -> BoundCall:
        """A call that nobody uses now."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._bound()

    def give_back(self, call: BoundCall) -> None:
        """Take a call back."""
        self._idle.append(call)

    def _bound(self) -> BoundCall:
        try:
            return self._plan.bind(self._inputs, self._outputs)
        except Exception as error:
            failure = contained(error, "binding a request to its memory")
            raise failure from failure.__cause__


def array_of(request: Request, argument: RequestArgument, operand: Operand) -> Array:
    """The piece of a pool that an argument names, as an array of the operand's type."""
    dimensions = argument.dimensions or operand.dimensions
    pool = request.pools[argument.location.pool_index]
    if isinstance(pool, int):
        raise InvalidArgument("this device allocates no buffers, so it knows no memory tokens")
    dtype = dtype_of(operand.type)
    flat = np.frombuffer(
        pool.view,
        dtype=dtype,
        count=byte_size(operand.type, dimensions) // dtype.itemsize,
        offset=argument.location.offset,
    )
    return flat.reshape(dimensions)
