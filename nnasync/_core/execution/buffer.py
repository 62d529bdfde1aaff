"""A buffer as applications have it: memory that stands for arrays in calls of networks.

It is a buffer of a device (memory domain), or shared memory in its stead. Requests name either in
the same way.

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

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np

from nnasync import device as devices
from nnasync._core.execution.ports import Port, as_array, out_in_order
from nnasync._core.execution.prepared_kinds import is_inline
from nnasync._core.validation import validate_buffer_desc
from nnasync.device import Device, PreparedModel, RepeatingPreparedModel
from nnasync.errors import (
    BadState,
    GeneralFailure,
    InvalidArgument,
    NNError,
    ResourceExhausted,
)
from nnasync.fences import Fence
from nnasync.hal import (
    Array,
    BufferDesc,
    BufferRole,
    Memory,
    Model,
    Operand,
    Shape,
    Struct,
    byte_size,
    combine_dimensions,
    dtype_of,
    has_dtype,
    is_fully_specified,
    is_scalar,
    type_name,
)
from nnasync.memory import Pool


class Role(Struct, frozen=True):
    """Names an input or output of a network that a buffer is used for; `net.input_role` makes one.

    `is_pinned`: the application named the devices of the network itself, so that nothing else is to
    be used.
    """

    device: Device
    prepared: PreparedModel
    model: Model
    kind: Literal["input", "output"]
    port: Port
    is_pinned: bool = False


class Buffer:
    """Memory for inputs and outputs of networks, made by `rt.allocate`.

    It stands for an array in `net(...)`, `net.launch(...)` and `burst(...)`, as an argument and in
    `out=`, where it has a role. An async context manager; one that is dropped is given back.
    """

    def __init__(
        self,
        memory: devices.Buffer | Pool,
        operand: Operand,
        roles: Sequence[Role],
        reason: str = "",
    ) -> None:
        """`operand` describes the contents; `reason` says why no device holds it."""
        self.dtype: np.dtype[Any] = dtype_of(operand.type)
        self.reason = reason
        self.roles = tuple(roles)
        self._uses = {(id(role.prepared), role.kind, role.port.position) for role in roles}
        self._operand = operand
        self._memory: devices.Buffer | Pool | None = memory
        self._found: Shape | None = None
        self._idle: Pool | None = None
        # As a piece of a request: a pool, or the token of all of a device's buffer.
        self.pool: Memory | int = memory if isinstance(memory, Pool) else memory.token
        self.offset = 0
        self.length = memory.size if isinstance(memory, Pool) else 0

    @property
    def is_shared(self) -> bool:
        """Returns whether it is shared memory, for the `reason`, and no memory of a device."""
        return isinstance(self._open(), Pool)

    @property
    def shape(self) -> Shape:
        """Returns the shape of the contents.

        Without contents that of the allocation, with 0 for unknown dimensions.

        Contents that were written by token, not through this object, do not count.
        """
        return self._operand.dimensions if self._found is None else self._found

    @property
    def is_settled(self) -> bool:
        """Returns whether the allocation knew all dimensions."""
        return is_fully_specified(self._operand.type, self._operand.dimensions)

    async def read(self, out: Array | None = None) -> Array:
        """Returns a copy of the contents, in a fresh array or in `out`.

        Raises GeneralFailure where there are none, ResourceExhaustedTransient while they are being
        written, InvalidArgument for an `out` that does not fit, BadState when closed.
        """
        memory, shape = self._open(), self.shape
        if not is_fully_specified(self._operand.type, shape):
            raise GeneralFailure(f"{self!r} has no contents: nothing was written to it")
        if out is not None and (out.shape != shape or out.dtype != self.dtype):
            raise InvalidArgument(f"out must be {self.dtype} {list(shape)} for {self!r}")
        pool = memory if isinstance(memory, Pool) else self._staging(shape)
        if not isinstance(memory, Pool):
            await memory.copy_to(pool)
        found = pool.array(self.dtype, shape)
        if out is None:
            out = found.copy()
        else:
            np.copyto(out, found)
        self._keep(memory, pool)
        return out

    async def write(self, value: Any) -> None:
        """Set the contents from anything that numpy can read; it also sets open dimensions.

        Raises InvalidArgument for what does not fit, ResourceExhausted while somebody uses the
        contents or where there is no room, BadState when closed. A write that fails leaves none.
        """
        memory = self._open()
        array = as_array(value, self.roles[0].port)
        if not self._takes(array.shape):
            raise InvalidArgument(f"an array of shape {list(array.shape)} does not fit in {self!r}")
        if isinstance(memory, Pool):
            np.copyto(memory.array(self.dtype, array.shape), array)
            return
        pool = self._staging(array.shape)
        np.copyto(pool.array(self.dtype, array.shape), array)
        self._found = None
        await memory.copy_from(pool, array.shape)
        self._found = array.shape
        self._keep(memory, pool)

    async def close(self) -> None:
        """Gives the buffer back; executions that use it go on. May be repeated."""
        memory, self._memory, self._idle = self._memory, None, None
        if isinstance(memory, Pool):
            memory.close()
        elif memory is not None:
            await memory.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __array__(self, dtype: object = None, copy: object = None) -> Array:
        raise TypeError("the contents of a buffer are with its device: use `await buffer.read()`")

    def __repr__(self) -> str:
        return f"Buffer({type_name(self._operand.type)} {list(self.shape)})"

    # -- for requests

    def check(self, prepared: PreparedModel, kind: str, port: Port) -> None:
        """Raises InvalidArgument where the buffer has not this role, BadState when it is closed."""
        if self._memory is not None and (id(prepared), kind, port.position) in self._uses:
            return
        self._open()
        raise InvalidArgument(
            f"{self!r} was not allocated for {kind} {port.name!r} of this network; give "
            f"rt.allocate the role net.{kind}({port.name!r})"
        )

    def written(self, shape: Shape) -> None:
        """Notes the shape that an execution has written."""
        self._found = shape

    def _takes(self, shape: Shape) -> bool:
        known = self._operand.dimensions
        if is_scalar(self._operand.type):
            return not shape
        return 0 not in shape and combine_dimensions(known, shape) == shape != ()

    def _open(self) -> devices.Buffer | Pool:
        memory = self._memory
        if memory is None:
            raise BadState("the buffer is closed")
        return memory

    def _staging(self, shape: Shape) -> Pool:
        """Returns memory of the contents' size for one copy alone."""
        nbytes = math.prod(shape) * self.dtype.itemsize
        pool, self._idle = self._idle, None
        if pool is not None and pool.size == nbytes:
            return pool
        return memory_of(self.roles, nbytes)

    def _keep(self, memory: devices.Buffer | Pool, pool: Pool) -> None:
        """Keeps staging memory that no copy uses any more for the next one."""
        if pool is not memory and self._memory is not None:
            self._idle = pool


def memory_of(roles: Sequence[Role], nbytes: int) -> Pool:
    """Returns memory that all these devices can use; private if all of them are in this process."""
    if all(is_inline(role.prepared) for role in roles):
        return Pool.private(nbytes)
    return Pool.allocate(nbytes)


class BufferWrite:
    """Notes when a fence is signaled that buffers were written, as one of its callbacks."""

    __slots__ = ("_outs", "_ports")

    def __init__(self, ports: Sequence[Port], outs: Sequence[Any]) -> None:
        self._ports = ports
        self._outs = outs

    def __call__(self, fence: Fence) -> None:
        """Notes that the buffers were written."""
        if fence.error is None:
            for each, port in zip(self._outs, self._ports, strict=True):
                if each is not None:
                    each.written(port.shape)
        self._outs = ()
        self._ports = ()


async def allocate(roles: Sequence[Role], shape: Sequence[int] = ()) -> Buffer:
    """Allocates memory for these roles, which have the same type and compatible dimensions.

    Raises InvalidArgument for roles that are not legal; GeneralFailure, or what the device raised,
    where no device has it and shared memory is not allowed or of unknown size.
    """
    dimensions = _checked(roles, shape)
    models = {id(role.prepared): role.model for role in roles}
    operand = validate_buffer_desc(
        BufferDesc(dimensions), list(models.values()), *_positions(roles)
    )
    distinct = list(dict.fromkeys(role.device for role in roles))
    standby = [role for role in roles if isinstance(role.prepared, RepeatingPreparedModel)]
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
    """Returns input roles and output roles; prepared models are numbered as they come up."""
    places = {key: place for place, key in enumerate(dict.fromkeys(id(r.prepared) for r in roles))}
    found: dict[str, list[BufferRole]] = {"input": [], "output": []}
    for role in roles:
        found[role.kind].append(BufferRole(places[id(role.prepared)], role.port.position))
    return found["input"], found["output"]


def buffers_of(ports: Sequence[Port], out: Any) -> Sequence[Any]:
    """Returns the buffers in a launch's `out=`; raises InvalidArgument for anything else."""
    outs = out_in_order(ports, out)
    if not all(each is None or isinstance(each, Buffer) for each in outs):
        raise InvalidArgument("out= of a launch takes buffers; other outputs are regions")
    return outs
