"""Memory for inputs and outputs of prepared models: of the device where it has some, else shared.

A device may refuse to allocate: it has no memory of its own, or no room, or the dimensions are not
known. What the application asked for can then be plain shared memory, if two things hold: its size
is known, and nobody has asked for these devices and no others. So it is where the roles are of
several devices, each of which only knows its own buffers.

Requests take either: `DomainMemory.pool` is what stands in them. Shared memory has contents from
the beginning, zeros, and nobody watches over who writes to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from nnasync.buffers import bytes_of
from nnasync.device import Buffer, Device, PreparedModel
from nnasync.errors import GeneralFailure, InvalidArgument, NNError, ResourceExhausted
from nnasync.hal import (
    BufferDesc,
    BufferRole,
    DataLocation,
    Memory,
    Model,
    RequestArgument,
    Shape,
    Struct,
    byte_size,
)
from nnasync.memory import Pool
from nnasync.validation import validate_buffer_desc

__all__ = ["DomainMemory", "MemoryRole", "allocate_memory"]


class MemoryRole(Struct, frozen=True):
    """One use of a memory: an input or output of a prepared model.

    model: what was prepared. is_pinned: the application named the devices of this model itself, so
    that nothing else is to be used.
    """

    device: Device
    prepared: PreparedModel
    model: Model
    kind: Literal["input", "output"]
    index: int
    frequency: float = 1.0
    is_pinned: bool = False


class DomainMemory:
    """A buffer of a device, or shared memory in its stead."""

    def __init__(self, memory: Buffer | Pool, reason: str = "") -> None:
        """`reason` is why no device has it."""
        self.reason = reason
        self._shared = memory if isinstance(memory, Pool) else None
        self._buffer = None if isinstance(memory, Pool) else memory

    @property
    def is_shared(self) -> bool:
        """Whether it is shared memory, for the `reason`."""
        return self._shared is not None

    @property
    def pool(self) -> Memory | int:
        """What stands in `Request.pools`: a pool, or a token."""
        return self._buffer.token if self._buffer is not None else self._pool

    def argument(self, pool_index: int, dimensions: Shape = ()) -> RequestArgument:
        """All of it as an input or output of a request, of whose pools it is this one."""
        length = 0 if self._shared is None else self._shared.size
        return RequestArgument(location=DataLocation(pool_index, 0, length), dimensions=dimensions)

    async def copy_to(self, memory: Memory) -> None:
        """Copy to memory of the same size; raises what `device.Buffer.copy_to` raises."""
        if self._buffer is not None:
            await self._buffer.copy_to(memory)
        else:
            np.copyto(bytes_of(self._same_size(memory), writable=True), bytes_of(self._pool))

    async def copy_from(self, memory: Memory, dimensions: Shape = ()) -> None:
        """Copy from memory of the same size; raises what `device.Buffer.copy_from` raises."""
        if self._buffer is not None:
            await self._buffer.copy_from(memory, dimensions)
        else:
            np.copyto(bytes_of(self._pool, writable=True), bytes_of(self._same_size(memory)))

    async def close(self) -> None:
        """Give it back."""
        if self._buffer is not None:
            await self._buffer.close()
        else:
            self._pool.close()

    @property
    def _pool(self) -> Pool:
        if self._shared is None:
            raise GeneralFailure("the memory is a device's, and not shared")
        return self._shared

    def _same_size(self, memory: Memory) -> Memory:
        if memory.size != self._pool.size:
            raise InvalidArgument(
                f"the memory has {memory.size} bytes, what it is copied with has {self._pool.size}"
            )
        return memory


async def allocate_memory(roles: Sequence[MemoryRole], dimensions: Shape = ()) -> DomainMemory:
    """Memory for these uses; all of them have the same type, and dimensions that go together.

    Raises InvalidArgument for roles that are not legal; GeneralFailure, or what the device raised,
    where no device has it and shared memory is not allowed or of unknown size.
    """
    models = {id(role.prepared): role.model for role in roles}
    operand = validate_buffer_desc(
        BufferDesc(dimensions), list(models.values()), *_positions(roles)
    )
    devices = list(dict.fromkeys(role.device for role in roles))
    refusal: NNError = GeneralFailure(
        f"the roles are of {len(devices)} devices, of which each only knows buffers of its own"
    )
    if len(devices) == 1:
        try:
            return DomainMemory(await _allocated(devices[0], roles, dimensions))
        except (GeneralFailure, ResourceExhausted) as error:
            refusal = error
    nbytes = byte_size(operand.type, operand.dimensions)
    if not nbytes or any(role.is_pinned for role in roles):
        raise refusal
    return DomainMemory(Pool.allocate(nbytes), str(refusal))


async def _allocated(device: Device, roles: Sequence[MemoryRole], dimensions: Shape) -> Buffer:
    prepared = {id(role.prepared): role.prepared for role in roles}
    inputs, outputs = _positions(roles)
    return await device.allocate(BufferDesc(dimensions), list(prepared.values()), inputs, outputs)


def _positions(roles: Sequence[MemoryRole]) -> tuple[list[BufferRole], list[BufferRole]]:
    """Input and output roles; prepared models count in the order in which they come up."""
    places = {key: place for place, key in enumerate(dict.fromkeys(id(r.prepared) for r in roles))}
    found: dict[str, list[BufferRole]] = {"input": [], "output": []}
    for role in roles:
        place = places[id(role.prepared)]
        found[role.kind].append(BufferRole(place, role.index, role.frequency))
    return found["input"], found["output"]
