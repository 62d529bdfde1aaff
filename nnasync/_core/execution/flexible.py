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

from nnasync._core.execution.filled_request import FilledRequest
from nnasync._core.execution.placing import held_by, pixels_of
from nnasync._core.execution.ports import (
    Port,
    Ports,
    as_array,
    check_target,
    is_number,
    out_in_order,
)
from nnasync._core.execution.slots import MemorySource, moved, own_memory, taken
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
    Model,
    OutputShape,
    Request,
    RequestArgument,
    has_dimensions,
)
from nnasync.memory import Pool, layout

if TYPE_CHECKING:
    from nnasync._core.execution import buffer


_FIRST_GUESS_BYTES = 1 << 12
_ATTEMPTS = 8

_KEPT_REQUESTS = 4
"""Requests kept for later calls, each of which has its memory: a call, and a few others at once."""


class FlexibleCalls:
    """Executes a network with open shapes, and remembers how much memory its outputs took."""

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
        self._kept: list[tuple[tuple[object, ...], FilledRequest]] = []

    async def call(
        self,
        values: Sequence[Any],
        out: Any,
        config: ExecutionConfig,
    ) -> tuple[Any, ExecutionResult]:
        """Runs once; returns the result as of a network's call, and the device's report.

        Raises InvalidArgument for inputs that do not fit, and the errors of the device.
        """
        outs = out_in_order(self._ports.outputs, out)
        held = [
            held_by(each, self._prepared, "output", port)
            for each, port in zip(outs, self._ports.outputs, strict=True)
        ]
        arrays = self.given(values)
        for attempt in range(_ATTEMPTS):
            shapes = self._shapes_of(arrays, held)
            kept = self._kept_request(shapes, arrays)
            filled = kept or FilledRequest(self._request(arrays, held))
            try:
                result = await self._prepared.execute_synchronously(filled.request, config)
            except OutputInsufficientSize as error:
                if not self._grow(filled.request, error.output_shapes):
                    raise
            except MissedDeadlinePersistent as error:
                if kept is not None:
                    self._keep(shapes, kept)  # Nothing was begun with it.
                if attempt == 0:
                    raise
                raise MissedDeadlineTransient(f"with enough memory at last, {error}") from error
            else:
                value = self._read(filled, result, outs)
                self._keep(shapes, filled)
                return value, result
        raise GeneralFailure(f"the outputs did not fit in {_ATTEMPTS} times, each time larger")

    def close(self) -> None:
        """Drops the requests that are kept."""
        self._kept.clear()

    def given(self, values: Sequence[Any]) -> list[Array | buffer.Buffer | None]:
        """Returns the inputs as arrays that fit, and buffers; raises InvalidArgument."""
        return [
            None
            if value is None
            else held_by(value, self._prepared, "input", port) or _fitting(value, port)
            for value, port in zip(values, self._ports.inputs, strict=True)
        ]

    def _shapes_of(
        self,
        arrays: Sequence[Array | buffer.Buffer | None],
        held: Sequence[buffer.Buffer | None],
    ) -> tuple[object, ...] | None:
        """Returns what calls must have in common to share a request; None if buffers are in it."""
        shapes = [each.shape if isinstance(each, np.ndarray) else each for each in arrays]
        if any(each is not None and not isinstance(each, tuple) for each in (*shapes, *held)):
            return None
        return (*self._sizes, *shapes)

    def _kept_request(
        self,
        shapes: tuple[object, ...] | None,
        arrays: Sequence[Array | buffer.Buffer | None],
    ) -> FilledRequest | None:
        """Returns an idle request that was kept, filled with the inputs, or None."""
        for place, (known, filled) in enumerate(self._kept):
            if known == shapes:
                del self._kept[place]
                filled.fill(arrays)
                return filled
        return None

    def kept_for(self, arrays: Sequence[Any]) -> FilledRequest | None:
        """Returns a kept request for arrays like these whose memory sufficed; it stays kept."""
        for place, (_, filled) in enumerate(self._kept):
            if filled.fits(arrays):
                if place:
                    self._kept.insert(0, self._kept.pop(place))
                return filled
        return None

    def copied(self, filled: FilledRequest, shapes: Sequence[OutputShape]) -> Any:
        """Returns the outputs of these shapes as arrays of their own, as a call does."""
        if len(shapes) == 1:
            return filled.output(0, self._ports.outputs[0].dtype, shapes[0].dimensions).copy()
        return tuple(
            filled.output(number, port.dtype, shape.dimensions).copy()
            for number, (port, shape) in enumerate(zip(self._ports.outputs, shapes, strict=True))
        )

    def outgrown(self, filled: FilledRequest, error: OutputInsufficientSize) -> None:
        """Notes that a kept request was too small, so that the next one has more memory."""
        self.forget(filled)
        self._grow(filled.request, error.output_shapes)

    def forget(self, filled: FilledRequest) -> None:
        """Stops keeping a request."""
        self._kept = [each for each in self._kept if each[1] is not filled]

    def _keep(self, shapes: tuple[object, ...] | None, filled: FilledRequest) -> None:
        """Keeps a finished request for reuse, most recently used first."""
        if shapes is not None:
            self._kept.insert(0, (shapes, filled))
            del self._kept[_KEPT_REQUESTS:]

    def _request(
        self,
        arrays: Sequence[Array | buffer.Buffer | None],
        held: Sequence[buffer.Buffer | None],
    ) -> Request:
        """Makes a request of fresh memory, with the inputs in it, and of buffers."""
        if self._ports.state_inputs:
            unknown = [port.name for port in self._ports.outputs if not port.is_settled]
            raise InvalidArgument(
                "a network with states needs known shapes; give them to nn.load as shapes=, those"
                f" of outputs, too, where it does not find them: {', '.join(unknown) or 'none'}"
            )
        sizes = [array.nbytes if isinstance(array, np.ndarray) else 0 for array in arrays]
        sizes += [size if each is None else 0 for size, each in zip(self._sizes, held, strict=True)]
        offsets, total = layout(sizes)
        pool, begin = self._memory(max(total, 1))
        locations = [
            DataLocation(0, begin + offset, size)
            for offset, size in zip(offsets, sizes, strict=True)
        ]
        inputs = [
            _input(array, location, pool)
            for array, location in zip(arrays, locations, strict=False)
        ]
        outputs = [RequestArgument(location=location) for location in locations[len(arrays) :]]
        pieces = [
            (at, each)
            for at, each in enumerate((*arrays, *held))
            if each is not None and not isinstance(each, np.ndarray)
        ]
        return moved(Request(tuple(inputs), tuple(outputs), (pool,)), pieces)

    def _grow(self, request: Request, shapes: Sequence[OutputShape]) -> bool:
        """Notes the memory that outputs need; returns whether this request had less.

        Another call may have noted as much meanwhile. What a caller's buffer has does not grow.
        """
        grown = False
        for index, (shape, port) in enumerate(zip(shapes, self._ports.outputs, strict=False)):
            location = request.outputs[index].location
            if location.pool_index:
                continue
            nbytes = math.prod(shape.dimensions) * port.dtype.itemsize
            self._sizes[index] = max(self._sizes[index], nbytes)
            grown |= nbytes > location.length
        return grown

    def _read(self, filled: FilledRequest, result: ExecutionResult, outs: Sequence[Any]) -> Any:
        values = []
        for number, (port, shape, target) in enumerate(
            zip(self._ports.outputs, result.output_shapes, outs, strict=True)
        ):
            if filled.request.outputs[number].location.pool_index:
                values.append(target)
                target.written(shape.dimensions)
                continue
            array = filled.output(number, port.dtype, shape.dimensions)
            if target is not None:
                check_target(target, msgspec.structs.replace(port, shape=array.shape))
            values.append(taken(target, array))
        return values[0] if len(values) == 1 else tuple(values)


def _input(
    array: Array | buffer.Buffer | None, location: DataLocation, pool: Pool
) -> RequestArgument:
    """Returns the argument for an input with its own shape; an array is copied into the pool."""
    if array is None:
        return RequestArgument(has_no_value=True)
    if isinstance(array, np.ndarray):
        np.copyto(pool.array(array.dtype, array.shape, location.offset), array)
    return RequestArgument(location=location, dimensions=array.shape)


def _known_bytes(port: Port) -> int:
    return math.prod(port.shape) * port.dtype.itemsize if port.is_settled else 0


def _fitting(value: Any, port: Port) -> Array:
    array = as_array(pixels_of(value, port) if type(value) is Pool else value, port)
    if is_number(array, port):
        array = array.reshape(port.shape)
    fits = port.shape == array.shape
    if not fits and not port.is_settled:
        fits = not port.shape or has_dimensions(array.shape, port.shape)
    if not fits:
        raise InvalidArgument(
            f"input {port.name!r} has shape {list(array.shape)}, should be {list(port.shape)}"
            f"{'' if port.is_settled else ' (0: any size)'}"
        )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(array.shape)
