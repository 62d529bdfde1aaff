"""One device-managed buffer: its state, its memory, copies in and out of it, and claims on it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from nnasync import hal
from nnasync.errors import (
    BadState,
    GeneralFailure,
    InvalidArgument,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.hal import Array, Memory, Operand, Shape
from nnasync.memory import ALIGNMENT, mapped

__all__ = ["Claims", "Closing", "ManagedBuffer", "Read", "Role", "Written", "bytes_of"]

_COPIED = ("ashmem", "mmap_fd", "hardware_buffer_blob")
_WRITTEN = -1
_PADDING = ALIGNMENT
"""Engines may read a vector past the end of a tensor."""

Role = tuple[object, str, int]
"""A prepared model, "input" or "output", and which one."""

Read = tuple["ManagedBuffer", Shape]
"""A buffer, and the dimensions that its contents must have."""

Written = tuple["ManagedBuffer", Shape | None]
"""A buffer, and the dimensions of its contents; None where it has none."""


class Closing(Protocol):
    """What hears of the end of a buffer that it uses."""

    def drop(self) -> None:
        """Let go of its memory."""


class Claims:
    """What the buffers of a device share to claim any number of them at once: a lock and a clock.

    `tick` counts the changes of contents and of their states.
    """

    __slots__ = ("lock", "tick")

    def __init__(self) -> None:
        # The collection of garbage may close another buffer anywhere, on the thread that holds it.
        self.lock = threading.RLock()
        self.tick = 0

    def begin(self, reads: Sequence[Read], writes: Sequence[ManagedBuffer]) -> None:
        """Claim buffers to read contents of known dimensions, others to write to; or none.

        Raises GeneralFailure where there are no contents, InvalidArgument where they have other
        dimensions, ResourceExhaustedTransient for what is claimed otherwise, BadState when closed.
        """
        with self.lock:
            for buffer in writes:
                if buffer.users or buffer.is_closed:
                    raise _refusal_to_write(buffer)
            for buffer, dimensions in reads:
                if buffer.users < 0 or buffer.found != dimensions:
                    raise _refusal_to_read(buffer, dimensions)
            for buffer in writes:
                buffer.users = _WRITTEN
            for buffer, _ in reads:
                buffer.users += 1

    def end(self, reads: Sequence[Read], writes: Sequence[Written]) -> int:
        """Give the claims back, with contents of these dimensions or None without; the tick."""
        with self.lock:
            if writes:
                self.tick += 1
            tick = self.tick
            for buffer, dimensions in writes:
                buffer.users = 0
                buffer.changed_at = tick
                buffer.found = None if buffer.is_closed else dimensions
            for buffer, _ in reads:
                buffer.users -= 1
                if buffer.is_closed and not buffer.users:
                    buffer.memory = _zeros(0)
            return tick

    def void(self, buffers: Iterable[ManagedBuffer], tick: int) -> None:
        """Have no contents in buffers that have not changed since, and that nobody writes."""
        with self.lock:
            for buffer in buffers:
                if buffer.changed_at <= tick and buffer.users >= 0:
                    self.tick += 1
                    buffer.found, buffer.changed_at = None, self.tick


def _refusal_to_write(buffer: ManagedBuffer) -> NNError:
    if buffer.is_closed:
        return BadState(f"{buffer} is closed")
    return ResourceExhaustedTransient(f"{buffer} is in use; write to it afterwards")


def _refusal_to_read(buffer: ManagedBuffer, dimensions: Shape) -> NNError:
    if buffer.is_closed:
        return BadState(f"{buffer} is closed")
    if buffer.users < 0:
        return ResourceExhaustedTransient(f"{buffer} is being written; read it afterwards")
    if buffer.found is None:
        return GeneralFailure(f"{buffer} is not initialised: nothing was written to it")
    return InvalidArgument(
        f"{buffer} holds dimensions {list(buffer.found)}, not {list(dimensions)}"
    )


class ManagedBuffer:
    """One buffer: roles, dimensions, state, memory. Any thread may use it.

    `found` are the dimensions of the contents, None without any; `users` counts readers, and is
    negative while somebody writes. These, `is_closed` and `changed_at` change under the lock of the
    claims.
    """

    def __init__(
        self,
        token: int,
        operand: Operand,
        roles: Iterable[Role],
        claims: Claims,
        reserve: Callable[[int], None],
    ) -> None:
        """`reserve` is told how many bytes more are taken, or fewer; it raises where it is full."""
        self.token = token
        self.type = operand.type
        self.creation_dimensions: Shape = operand.dimensions
        self.memory: Array = _zeros(0)
        self.is_closed = False
        self._followers: weakref.WeakSet[Closing] = weakref.WeakSet()
        self._reserve = reserve
        self._roles: weakref.WeakKeyDictionary[object, set[tuple[str, int]]] = (
            weakref.WeakKeyDictionary()
        )
        for owner, kind, index in roles:
            self._roles.setdefault(owner, set()).add((kind, index))
        self.claims = claims
        self.found: Shape | None = None
        self.users = 0
        self.changed_at = 0
        self.grow(hal.byte_size(self.type, self.creation_dimensions))

    @property
    def is_initialised(self) -> bool:
        """Whether it has contents."""
        return self.found is not None

    @property
    def dimensions(self) -> Shape:
        """Those of the contents; without contents what the allocation knew."""
        found = self.found
        return self.creation_dimensions if found is None else found

    def has_role(self, owner: object, kind: str, index: int) -> bool:
        """Whether it was allocated for this input or output of this prepared model."""
        return (kind, index) in self._roles.get(owner, ())

    def takes(self, shape: Shape) -> bool:
        """Whether contents of this shape contradict nothing that the allocation knew."""
        known = self.creation_dimensions
        if hal.is_scalar(self.type):
            return not shape
        return not known or (
            len(known) == len(shape) and all(a in (0, b) for a, b in zip(known, shape, strict=True))
        )

    def grow(self, nbytes: int) -> Array:
        """Memory for so many bytes at least, perhaps without what it held; for who writes.

        Raises ResourceExhausted.
        """
        memory = self.memory
        have = memory.size
        if nbytes <= have:
            return memory
        self._reserve(nbytes - have)
        try:
            memory = _zeros(nbytes)
        except (MemoryError, ValueError) as error:
            self._reserve(have - nbytes)
            text = f"no memory for {nbytes} bytes: {error}"
            raise ResourceExhaustedTransient(text) from error
        with self.claims.lock:
            if not self.is_closed:
                self.memory = memory
                return memory
        self._reserve(have - nbytes)
        raise BadState(f"{self} is closed")

    def followed_by(self, follower: Closing) -> None:
        """Have `follower` drop its memory when the buffer is closed; it is not kept alive."""
        with self.claims.lock:
            self._followers.add(follower)

    # -- copies

    def copy_to(self, memory: Memory) -> None:
        """Copy the contents to memory of exactly their size.

        Raises InvalidArgument for another size, GeneralFailure where there are no contents or the
        memory cannot be written, ResourceExhaustedTransient while they are being written.
        """
        self._check_open()
        target = bytes_of(memory, writable=True)
        dimensions = self.dimensions
        if not self.is_initialised and not hal.is_fully_specified(self.type, dimensions):
            raise GeneralFailure(f"{self} is not initialised: nothing was written to it")
        self._check_size(memory, target, self._size_of(dimensions))
        reads = [(self, dimensions)]
        self.claims.begin(reads, ())
        try:
            np.copyto(target, self.memory[: target.size])
        finally:
            self.claims.end(reads, ())

    def copy_from(self, memory: Memory, dimensions: Shape = ()) -> None:
        """Copy contents of these dimensions from memory of exactly their size.

        Without dimensions they are those of the allocation, which must be complete then. A copy
        that fails leaves no contents. Raises InvalidArgument for dimensions or a size that do not
        fit, GeneralFailure where the memory cannot be read, ResourceExhausted.
        """
        self.claims.begin((), [self])
        written: Shape | None = None
        try:
            source = bytes_of(memory)
            shape = self._shape_of(dimensions)
            nbytes = self._size_of(shape)
            self._check_size(memory, source, nbytes)
            np.copyto(self.grow(nbytes)[:nbytes], source)
            written = shape
        finally:
            self.claims.end((), [(self, written)])

    def close(self) -> None:
        """Give the memory back as soon as nobody uses it; whoever asks later is refused."""
        with self.claims.lock:
            if self.is_closed:
                return
            self.is_closed = True
            self.found = None
            self._reserve(-self.memory.size)
            if self.users <= 0:
                self.memory = _zeros(0)
            followers = list(self._followers)
        for follower in followers:
            follower.drop()

    def __repr__(self) -> str:
        # Not the token: whoever reads a log is not meant to know it.
        return f"buffer of {hal.type_name(self.type)} {list(self.creation_dimensions)}"

    def _check_open(self) -> None:
        if self.is_closed:
            raise BadState(f"{self} is closed")

    def _shape_of(self, dimensions: Shape) -> Shape:
        """The dimensions of what is copied in."""
        if not dimensions:
            if not hal.is_fully_specified(self.type, self.creation_dimensions):
                raise InvalidArgument(f"{self}: dimensions must be given, as it does not know them")
            return self.creation_dimensions
        if hal.is_scalar(self.type):
            raise InvalidArgument(f"{self}: a scalar has no dimensions, not {list(dimensions)}")
        if any(n < 1 for n in dimensions) or not self.takes(dimensions):
            raise InvalidArgument(f"{self} cannot hold dimensions {list(dimensions)}")
        return dimensions

    def _size_of(self, shape: Shape) -> int:
        return hal.byte_size(self.type, shape)

    def _check_size(self, memory: Memory, data: Array, nbytes: int) -> None:
        if data.size != nbytes or memory.size != nbytes:
            raise InvalidArgument(f"{self} takes {nbytes} bytes, the memory has {memory.size}")


def _zeros(nbytes: int) -> Array:
    """Zeroed bytes that begin at a multiple of the alignment, with some behind them."""
    if not nbytes:
        return np.empty(0, np.uint8)
    raw = np.zeros(nbytes + ALIGNMENT + _PADDING, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def bytes_of(memory: Memory, *, writable: bool = False) -> Array:
    """A pool as bytes; raises GeneralFailure where it cannot be read, or written."""
    if memory.name not in _COPIED:
        raise GeneralFailure(f"memory of kind {memory.name!r} cannot be copied; use {_COPIED}")
    return np.frombuffer(mapped(memory, "the memory of a copy", writable=writable), np.uint8)
