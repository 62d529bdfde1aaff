"""Inputs and outputs of a request that are in device-managed buffers: resolved and checked."""

from __future__ import annotations

import msgspec
import numpy as np

from nnasync import hal
from nnasync._core.engine_device.binding import array_of, target_of
from nnasync._core.engine_device.buffers import Buffers, ManagedBuffer
from nnasync.engine.contract import OutputBuffer, Target
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Operand, Request, RequestArgument, Shape


class Use(msgspec.Struct, frozen=True):
    """One input or output of a request that is in a buffer; `dimensions` may be unknown in part."""

    buffer: ManagedBuffer
    dimensions: Shape

    @property
    def is_settled(self) -> bool:
        """Returns whether all dimensions are known."""
        return hal.is_fully_specified(self.buffer.type, self.dimensions)

    @property
    def nbytes(self) -> int:
        """Returns the size of the contents in bytes, if the dimensions are known."""
        return hal.byte_size(self.buffer.type, self.dimensions)

    @property
    def shape(self) -> Shape:
        """Returns the dimensions under the name that arrays have for them."""
        return self.dimensions

    def array(self) -> Array:
        """Returns the contents as an array; their dimensions must be known."""
        dtype = hal.dtype_of(self.buffer.type)
        count = int(np.prod(self.dimensions, dtype=np.int64))
        memory = self.buffer.memory[: count * dtype.itemsize]
        return memory.view(dtype).reshape(self.dimensions)

    def target(self) -> Target:
        """Returns where the contents go."""
        if self.is_settled:
            return self.array()
        return OutputBuffer(self.buffer.memory, hal.dtype_of(self.buffer.type), self.dimensions)


class Uses:
    """Resolves the tokens of a request, and checks the roles of their buffers."""

    def __init__(self, owner: object, request: Request, known: Buffers) -> None:
        self._owner = owner
        self._request = request
        self._pools = [
            known.find(pool) if isinstance(pool, int) else None for pool in request.pools
        ]
        self.reads: dict[ManagedBuffer, Shape] = {}
        self.writes: list[ManagedBuffer] = []

    def input(
        self, position: int, argument: RequestArgument, operand: Operand
    ) -> Array | Use | None:
        """Returns where an input lies: in a pool, in a buffer, or nowhere if it is omitted."""
        if argument.has_no_value:
            return None
        buffer = self._pools[argument.location.pool_index]
        if buffer is None:
            return array_of(self._request, argument, operand)
        dimensions = argument.dimensions or operand.dimensions
        use = self._use(buffer, "input", position, dimensions)
        if self.reads.setdefault(buffer, dimensions) != dimensions:
            raise InvalidArgument(f"input {position}: its buffer is another input of other shape")
        return use

    def output(self, position: int, argument: RequestArgument, operand: Operand) -> Target | Use:
        """Returns where an output goes: to a pool or to a buffer."""
        buffer = self._pools[argument.location.pool_index]
        if buffer is None:
            return target_of(self._request, argument, operand)
        dimensions = hal.combine_dimensions(operand.dimensions, argument.dimensions) or ()
        use = self._use(buffer, "output", position, dimensions)
        if buffer in self.reads:
            raise InvalidArgument(f"output {position}: its buffer is an input of the same request")
        if buffer in self.writes:
            raise InvalidArgument(f"output {position}: its buffer is another output as well")
        self.writes.append(buffer)
        return use

    def _use(self, buffer: ManagedBuffer, kind: str, position: int, dimensions: Shape) -> Use:
        if not buffer.has_role(self._owner, kind, position):
            raise InvalidArgument(
                f"{kind} {position} of this prepared model is no role of its {buffer}"
            )
        if hal.combine_dimensions(buffer.creation_dimensions, dimensions) is None:
            raise InvalidArgument(
                f"{kind} {position} has dimensions {list(dimensions)}, its {buffer} has others"
            )
        return Use(buffer, dimensions)


def is_settled(output: Target | Use) -> bool:
    """Returns whether the shape of an output is known before a run."""
    return not isinstance(output, OutputBuffer) and (
        not isinstance(output, Use) or output.is_settled
    )


def target(output: Target | Use) -> Target:
    """Returns an output for one call: calls that run at once must not share shapes."""
    if isinstance(output, Use):
        return output.target()
    if isinstance(output, OutputBuffer):
        return OutputBuffer(output.memory, output.dtype, output.dimensions)
    return output
