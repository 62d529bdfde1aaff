"""Calls of networks whose shapes are not all known before the run.

Inputs bring their shapes along. Outputs get as much memory as they took before, and more when the
device says that this is too little: it then names the shapes that it needs. A request whose
execution has succeeded serves the next call with the same shapes, which the device has bound then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nnasync._core.deferred import deferred
from nnasync._core.execution.ports import Port, Ports, as_array, check_out, out_in_order
from nnasync._core.execution.slots import MemorySource, own_memory
from nnasync.device import PreparedModel
from nnasync.errors import (
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    OutputInsufficientSize,
)
from nnasync.hal import (
    Array,
    DataLocation,
    ExecutionConfig,
    ExecutionResult,
    Memory,
    Model,
    OutputShape,
    Request,
    RequestArgument,
    Timing,
)
from nnasync.memory import Pool, layout

if TYPE_CHECKING:
    from nnasync._core.execution import images
else:
    images = deferred("nnasync._core.execution.images")

if TYPE_CHECKING:
    from nnasync._core.execution import buffer
else:
    buffer = deferred("nnasync._core.execution.buffer")

__all__ = ["FlexibleCalls"]

_FIRST_GUESS_BYTES = 1 << 12
_ATTEMPTS = 8

_KEPT_REQUESTS = 4
"""Requests kept for later calls, each of which has its memory: a call, and a few others at once."""


class FlexibleCalls:
    """Executes one network, and remembers how much memory its outputs took."""

    def __init__(
        self,
        model: Model,
        ports: Ports,
        prepared: PreparedModel,
        memory: MemorySource = own_memory,
    ) -> None:
        self._model = model
        self._ports = ports
        self._prepared = prepared
        self._memory = memory
        self._sizes = [_known_bytes(port) or _FIRST_GUESS_BYTES for port in ports.outputs]
        self._kept: list[tuple[tuple[object, ...], Request]] = []

    async def call(
        self,
        values: Sequence[Any],
        out: Any,
        config: ExecutionConfig,
    ) -> tuple[Any, Timing]:
        """Run once: the result as of a network's call, and the timing.

        Raises InvalidArgument for inputs that do not fit, and the errors of the device.
        """
        outs = None if out is None else out_in_order(self._ports.outputs, out)
        held = [None] * len(self._ports.outputs) if outs is None else self._held(outs)
        arrays = self.given(values)
        for attempt in range(_ATTEMPTS):
            shapes = self._shapes_of(arrays, held)
            request = self._kept_request(shapes, arrays) or self._request(arrays, held)
            try:
                result = await self._prepared.execute_synchronously(request, config)
            except OutputInsufficientSize as error:
                if not self._grow(error.output_shapes):
                    raise
            except MissedDeadlinePersistent as error:
                if attempt == 0:
                    raise
                raise MissedDeadlineTransient(f"with enough memory at last, {error}") from error
            else:
                value = self._read(request, result, outs)
                self._keep(shapes, request)
                return value, result.timing
        raise GeneralFailure(f"the outputs did not fit in {_ATTEMPTS} times, each time larger")

    def close(self) -> None:
        """Drop the requests that are kept."""
        self._kept.clear()

    def given(self, values: Sequence[Any]) -> list[Array | buffer.Buffer | None]:
        """The inputs as arrays that fit, and buffers; raises InvalidArgument."""
        return [
            None if value is None else self._given(value, port)
            for value, port in zip(values, self._ports.inputs, strict=True)
        ]

    def _given(self, value: Any, port: Port) -> Array | buffer.Buffer:
        if value.__class__ is np.ndarray or not isinstance(value, buffer.Buffer):
            return _fitting(value, port)
        value.check(self._prepared, "input", port)
        return value

    def _held(self, outs: Sequence[Any]) -> list[buffer.Buffer | None]:
        """The buffers among outputs, which get a shape from the run."""
        found = [each if buffer.are_among(each) else None for each in outs]
        for each, port in zip(found, self._ports.outputs, strict=True):
            if each is not None:
                each.check(self._prepared, "output", port)
        return found

    def _shapes_of(
        self,
        arrays: Sequence[Array | buffer.Buffer | None],
        held: Sequence[buffer.Buffer | None],
    ) -> tuple[object, ...] | None:
        """What calls must have in common to use one request; None where buffers are in it."""
        if any(each is not None for each in held):
            return None
        shapes: list[object] = [*self._sizes]
        for array in arrays:
            if isinstance(array, np.ndarray):
                shapes.append(array.shape)
            elif array is None:
                shapes.append(None)
            else:
                return None
        return tuple(shapes)

    def _kept_request(
        self,
        shapes: tuple[object, ...] | None,
        arrays: Sequence[Array | buffer.Buffer | None],
    ) -> Request | None:
        """A request that is not in use, filled with the inputs."""
        place = next((n for n, (known, _) in enumerate(self._kept) if known == shapes), None)
        if place is None:
            return None
        _, request = self._kept.pop(place)
        pool = request.pools[0]
        for array, argument in zip(arrays, request.inputs, strict=True):
            if isinstance(array, np.ndarray) and isinstance(pool, Pool):
                offset = argument.location.offset
                np.copyto(pool.array(array.dtype, array.shape, offset), array)
        return request

    def _keep(self, shapes: tuple[object, ...] | None, request: Request) -> None:
        """Keep a finished request for reuse, most recently used first."""
        if shapes is not None:
            self._kept.insert(0, (shapes, request))
            del self._kept[_KEPT_REQUESTS:]

    def _request(
        self,
        arrays: Sequence[Array | buffer.Buffer | None],
        held: Sequence[buffer.Buffer | None],
    ) -> Request:
        """A request over fresh memory with the inputs in it, and over buffers."""
        if self._ports.state_inputs:
            raise InvalidArgument("a network with states needs known shapes; fix them in the model")
        sizes = [array.nbytes if isinstance(array, np.ndarray) else 0 for array in arrays]
        sizes += [size if each is None else 0 for size, each in zip(self._sizes, held, strict=True)]
        offsets, total = layout(sizes)
        pool, begin = self._memory(max(total, 1))
        offsets = [begin + offset for offset in offsets]
        pools: list[Memory | int] = [pool]
        inputs = [
            _input(array, offset, pools) for array, offset in zip(arrays, offsets, strict=False)
        ]
        outputs = []
        for each, offset, size in zip(
            held, offsets[len(arrays) :], sizes[len(arrays) :], strict=True
        ):
            if each is None:
                outputs.append(RequestArgument(location=DataLocation(0, offset, size)))
            else:
                outputs.append(RequestArgument(location=_all_of(each, pools)))
        return Request(tuple(inputs), tuple(outputs), tuple(pools))

    def _grow(self, shapes: Sequence[OutputShape]) -> bool:
        """Note how much the outputs need; whether that is more than they had."""
        grown = False
        for index, (shape, port) in enumerate(zip(shapes, self._ports.outputs, strict=False)):
            nbytes = math.prod(shape.dimensions) * port.dtype.itemsize
            if nbytes > self._sizes[index]:
                self._sizes[index] = nbytes
                grown = True
        return grown

    def _read(self, request: Request, result: ExecutionResult, outs: Sequence[Any] | None) -> Any:
        pool = request.pools[0]
        if not isinstance(pool, Pool):
            raise GeneralFailure("the request has lost its memory")
        targets = [None] * len(self._ports.outputs) if outs is None else outs
        found = []
        for port, shape, argument, target in zip(
            self._ports.outputs, result.output_shapes, request.outputs, targets, strict=True
        ):
            if argument.location.pool_index:
                found.append(target)
                target.written(shape.dimensions)
                continue
            array = pool.array(port.dtype, shape.dimensions, argument.location.offset)
            check_out([msgspec.structs.replace(port, shape=array.shape)], (target,))
            found.append(array)
        values = [_taken(*each) for each in zip(targets, found, strict=True)]
        return values[0] if len(values) == 1 else tuple(values)


def _taken(target: Any, found: Any) -> Any:
    if target is None:
        return found.copy()
    if target is not found:
        target[...] = found
    return target


def _input(array: Array | buffer.Buffer | None, offset: int, pools: list[Any]) -> RequestArgument:
    """An input that is copied to this place in the first pool, or is in a buffer."""
    if array is None:
        return RequestArgument(has_no_value=True)
    if not isinstance(array, np.ndarray):
        return RequestArgument(location=_all_of(array, pools), dimensions=array.shape)
    np.copyto(pools[0].array(array.dtype, array.shape, offset), array)
    location = DataLocation(0, offset, array.nbytes)
    return RequestArgument(location=location, dimensions=array.shape)


def _all_of(held: buffer.Buffer, pools: list[Any]) -> DataLocation:
    if held.pool not in pools[1:]:
        pools.append(held.pool)
    return DataLocation(pools.index(held.pool), 0, held.length)


def _known_bytes(port: Port) -> int:
    return math.prod(port.shape) * port.dtype.itemsize if port.is_settled else 0


def _fitting(value: Any, port: Port) -> Array:
    array = as_array(images.pixels_of(value, port) if type(value) is Pool else value, port)
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
