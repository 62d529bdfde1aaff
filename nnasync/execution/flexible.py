"""Calls of networks whose shapes are not all known before the run.

Inputs bring their shapes along. Outputs get as much memory as they took before, and more when the
device says that this is too little: it then names the shapes that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.clock import Deadline
from nnasync.device import PreparedModel
from nnasync.errors import (
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    OutputInsufficientSize,
)
from nnasync.execution.ports import Port, Ports, as_array, check_out
from nnasync.hal import (
    Array,
    DataLocation,
    ExecutionResult,
    Model,
    OutputShape,
    Request,
    RequestArgument,
    Timing,
)
from nnasync.memory import Pool, layout

__all__ = ["FlexibleCalls"]

_FIRST_GUESS_BYTES = 1 << 12
_ATTEMPTS = 8


class FlexibleCalls:
    """Executes one network, and remembers how much memory its outputs took."""

    def __init__(self, model: Model, ports: Ports, prepared: PreparedModel) -> None:
        self._model = model
        self._ports = ports
        self._prepared = prepared
        self._sizes = [_known_bytes(port) or _FIRST_GUESS_BYTES for port in ports.outputs]

    async def call(
        self, values: Sequence[Any], deadline: Deadline | None, out: Any, *, measure: bool
    ) -> tuple[Any, Timing]:
        """Run once: the result as of a network's call, and the timing.

        Raises InvalidArgument for inputs that do not fit, and whatever the device raises.
        """
        arrays = [
            None if value is None else _fitting(value, port)
            for value, port in zip(values, self._ports.inputs, strict=True)
        ]
        for attempt in range(_ATTEMPTS):
            request = self._request(arrays)
            try:
                result = await self._prepared.execute_synchronously(
                    request, measure=measure, deadline=deadline
                )
            except OutputInsufficientSize as error:
                if not self._grow(error.output_shapes):
                    raise
            except MissedDeadlinePersistent as error:
                if attempt == 0:
                    raise
                raise MissedDeadlineTransient(f"with enough memory at last, {error}") from error
            else:
                return self._read(request, result, out), result.timing
        raise GeneralFailure(f"the outputs did not fit in {_ATTEMPTS} times, each time larger")

    def _request(self, arrays: Sequence[Array | None]) -> Request:
        """A request over fresh memory with the inputs in it."""
        if self._ports.state_inputs:
            raise InvalidArgument("a network with states needs known shapes; fix them in the model")
        sizes = [0 if array is None else array.nbytes for array in arrays]
        offsets, total = layout([*sizes, *self._sizes])
        pool = Pool.allocate(max(total, 1))
        inputs = []
        for array, offset in zip(arrays, offsets, strict=False):
            if array is None:
                inputs.append(RequestArgument(has_no_value=True))
                continue
            np.copyto(pool.array(array.dtype, array.shape, offset), array)
            location = DataLocation(0, offset, array.nbytes)
            inputs.append(RequestArgument(location=location, dimensions=array.shape))
        outputs = [
            RequestArgument(location=DataLocation(0, offset, size))
            for offset, size in zip(offsets[len(arrays) :], self._sizes, strict=True)
        ]
        return Request(tuple(inputs), tuple(outputs), (pool,))

    def _grow(self, shapes: Sequence[OutputShape]) -> bool:
        """Note how much the outputs need; whether that is more than they had."""
        grown = False
        for index, (shape, port) in enumerate(zip(shapes, self._ports.outputs, strict=False)):
            nbytes = math.prod(shape.dimensions) * port.dtype.itemsize
            if nbytes > self._sizes[index]:
                self._sizes[index] = nbytes
                grown = True
        return grown

    def _read(self, request: Request, result: ExecutionResult, out: Any) -> Any:
        pool = request.pools[0]
        if not isinstance(pool, Pool):
            raise GeneralFailure("the request has lost its memory")
        arrays = [
            pool.array(port.dtype, shape.dimensions, argument.location.offset)
            for port, shape, argument in zip(
                self._ports.outputs, result.output_shapes, request.outputs, strict=True
            )
        ]
        if out is not None:
            ports = [
                Port(port.name, array.shape, port.dtype, port.scale, port.zero_point, port.position)
                for port, array in zip(self._ports.outputs, arrays, strict=True)
            ]
            targets = check_out(ports, out) or ()
            for target, array in zip(targets, arrays, strict=True):
                target[...] = array
            return targets[0] if len(targets) == 1 else tuple(targets)
        copies = tuple(array.copy() for array in arrays)
        return copies[0] if len(copies) == 1 else copies


def _known_bytes(port: Port) -> int:
    return math.prod(port.shape) * port.dtype.itemsize if port.is_settled else 0


def _fitting(value: Any, port: Port) -> Array:
    array = as_array(value, port)
    fits = port.shape == array.shape
    if not port.is_settled:
        fits = not port.shape or (
            len(port.shape) == array.ndim
            and all(a in (0, b) for a, b in zip(port.shape, array.shape, strict=True))
        )
    if not fits:
        raise InvalidArgument(
            f"input {port.name!r} has shape {list(array.shape)}, should be {list(port.shape)}"
            f"{'' if port.is_settled else ' (0: any size)'}"
        )
    return np.ascontiguousarray(array).reshape(array.shape)
