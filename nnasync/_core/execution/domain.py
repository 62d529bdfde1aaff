"""Buffers for inputs and outputs of networks: the device's own, or shared memory.

What one network writes and another reads stays where the device has it (memory domains). A device
may refuse: it has no memory of its own, or no room, or the dimensions are not known. Then plain
shared memory takes the place of its buffer, if two things hold: the size is known, and nobody has
asked for these devices and no others. So it is where the roles are of several devices, each of
which only knows its own buffers, and where the reference stands by for a device in another process,
whose buffers it could not read.

Shared memory starts as zeros; concurrent access is not checked. It is private to this process where
all devices are in it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from nnasync import device as devices
from nnasync._core.compilation.outside import FallbackPreparedModel
from nnasync._core.execution.buffer import Buffer, Role, memory_of
from nnasync._core.validation import validate_buffer_desc
from nnasync.device import Device
from nnasync.errors import GeneralFailure, InvalidArgument, NNError, ResourceExhausted
from nnasync.hal import BufferDesc, BufferRole, Shape, byte_size, has_dtype

__all__ = ["allocate"]


async def allocate(roles: Sequence[Role], shape: Sequence[int] = ()) -> Buffer:
    """Memory for these uses; all of them have the same type, and dimensions that go together.

    Raises InvalidArgument for roles that are not legal; GeneralFailure, or what the device raised,
    where no device has it and shared memory is not allowed or of unknown size.
    """
    dimensions = _checked(roles, shape)
    models = {id(role.prepared): role.model for role in roles}
    operand = validate_buffer_desc(
        BufferDesc(dimensions), list(models.values()), *_positions(roles)
    )
    distinct = list(dict.fromkeys(role.device for role in roles))
    standby = [role for role in roles if isinstance(role.prepared, FallbackPreparedModel)]
    is_pinned = any(role.is_pinned for role in roles)
    refusal: NNError
    if standby:
        refusal, is_pinned = _stands_by(standby[0]), False
    elif len(distinct) > 1:
        refusal = GeneralFailure(
            f"the roles are of {len(distinct)} devices, of which each only knows buffers of its own"
        )
    else:
        try:
            return Buffer(await _allocated(distinct[0], roles, dimensions), operand, roles)
        except (GeneralFailure, ResourceExhausted) as error:
            refusal = error
    nbytes = byte_size(operand.type, operand.dimensions) if has_dtype(operand.type) else 0
    if not nbytes or is_pinned:
        raise refusal
    return Buffer(memory_of(roles, nbytes), operand, roles, str(refusal))


def _checked(roles: Sequence[object], shape: Any) -> Shape:
    if not roles:
        raise InvalidArgument("a buffer needs one role at least, such as net.output_role('y')")
    for role in roles:
        if not isinstance(role, Role):
            raise InvalidArgument(
                f"a buffer is for roles such as net.output_role('y'), got {role!r}"
            )
    try:
        return tuple(operator.index(n) for n in shape)
    except TypeError as error:
        raise InvalidArgument(f"shape must be numbers, 0 for any, got {shape!r}") from error


def _stands_by(role: Role) -> GeneralFailure:
    return GeneralFailure(
        f"the reference stands by for {role.device.name}, and cannot read its buffers; compile "
        f"with devices=[{role.device.name!r}] to have them"
    )


async def _allocated(device: Device, roles: Sequence[Role], dimensions: Shape) -> devices.Buffer:
    prepared = {id(role.prepared): role.prepared for role in roles}
    inputs, outputs = _positions(roles)
    return await device.allocate(BufferDesc(dimensions), list(prepared.values()), inputs, outputs)


def _positions(roles: Sequence[Role]) -> tuple[list[BufferRole], list[BufferRole]]:
    """Input and output roles; prepared models count in the order in which they come up."""
    places = {key: place for place, key in enumerate(dict.fromkeys(id(r.prepared) for r in roles))}
    found: dict[str, list[BufferRole]] = {"input": [], "output": []}
    for role in roles:
        found[role.kind].append(BufferRole(places[id(role.prepared)], role.port.position))
    return found["input"], found["output"]
