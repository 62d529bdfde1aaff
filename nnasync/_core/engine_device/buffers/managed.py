"""One device-managed buffer: its state, its memory, and copies in and out of it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from nnasync import hal
from nnasync._core.engine_device.buffers.claims import ChangeMark, Claim, Claims
from nnasync._core.engine_device.buffers.rows import Role, zeros
from nnasync.errors import (
    BadState,
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedTransient,
)
from nnasync.hal import Array, Memory, Operand, Shape
from nnasync.memory import mapped

_COPIED = ("ashmem", "mmap_fd", "hardware_buffer_blob")


class CloseListener(Protocol):
    """Is told when a buffer that it uses is closed."""

    def drop(self) -> None:
        """Drops the memory of the buffer."""


class ManagedBuffer:
    """One buffer with its roles, dimensions, state and memory; any thread may use it.

    `found` are the dimensions of the contents, None without any. That, `is_closed` and `mark`
    change under the lock of the claims, which are told of every change.
    """

    def __init__(
        self,
        token: int,
        operand: Operand,
        roles: Sequence[Role],
        claims: Claims,
        reserve: Callable[[int], None],
        made: Callable[[Sequence[Role], int], Array],
    ) -> None:
        """`reserve` is told how many bytes more are taken, or fewer; it raises where it is full.

        `made` gives zeroed memory of that size.
        """
        self.token = token
        self.type = operand.type
        self.creation_dimensions: Shape = operand.dimensions
        self.memory: Array = zeros(0)
        self.is_closed = False
        self._followers: weakref.WeakSet[CloseListener] = weakref.WeakSet()
        self._reserve = reserve
        self._roles: weakref.WeakKeyDictionary[object, set[tuple[str, int]]] = (
            weakref.WeakKeyDictionary()
        )
        for owner, kind, index in roles:
            self._roles.setdefault(owner, set()).add((kind, index))
        self.claims = claims
        self.found: Shape | None = None
        self.mark = ChangeMark()
        nbytes = hal.byte_size(self.type, self.creation_dimensions)
        self.grow(nbytes, functools.partial(made, roles))

    @property
    def is_initialized(self) -> bool:
        """Returns whether the buffer has contents."""
        return self.found is not None

    @property
    def dimensions(self) -> Shape:
        """Returns the dimensions of the contents, or without contents those of the allocation."""
        found = self.found
        return self.creation_dimensions if found is None else found

    def has_role(self, owner: object, kind: str, index: int) -> bool:
        """Returns whether it was allocated for this input or output of this prepared model."""
        return (kind, index) in self._roles.get(owner, ())

    def takes(self, shape: Shape) -> bool:
        """Returns whether contents of this shape contradict nothing that the allocation knew."""
        if hal.is_scalar(self.type):
            return not shape
        return hal.has_dimensions(shape, self.creation_dimensions)

    def grow(self, nbytes: int, made: Callable[[int], Array] = zeros) -> Array:
        """Returns memory for at least so many bytes to a writer, perhaps without the old contents.

        Raises ResourceExhausted.
        """
        memory = self.memory
        have = memory.size
        if nbytes <= have:
            return memory
        self._reserve(nbytes - have)
        try:
            memory = made(nbytes)
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

    def followed_by(self, follower: CloseListener) -> None:
        """Has `follower` drop its memory when the buffer is closed; does not keep it alive."""
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
        if not self.is_initialized and not hal.is_fully_specified(self.type, dimensions):
            raise GeneralFailure(f"{self} is not initialized: nothing was written to it")
        self._check_size(memory, target, self._size_of(dimensions))
        claim = Claim([(self, dimensions)])
        self.claims.begin(claim)
        try:
            np.copyto(target, self.memory[: target.size])
        finally:
            self.claims.end(claim)

    def copy_from(self, memory: Memory, dimensions: Shape = ()) -> None:
        """Copy contents of these dimensions from memory of exactly their size.

        Without dimensions they are those of the allocation, which must be complete then. A copy
        that fails leaves no contents. Raises InvalidArgument for dimensions or a size that do not
        fit, GeneralFailure where the memory cannot be read, ResourceExhausted.
        """
        claim = Claim((), [(self, None)])
        self.claims.begin(claim)
        written: Shape | None = None
        try:
            source = bytes_of(memory)
            shape = self._shape_of(dimensions)
            nbytes = self._size_of(shape)
            self._check_size(memory, source, nbytes)
            np.copyto(self.grow(nbytes)[:nbytes], source)
            written = shape
        finally:
            self.claims.end(claim, [(self, written)])

    def close(self) -> None:
        """Frees the memory as soon as nobody uses it; later users are refused."""
        with self.claims.lock:
            if self.is_closed:
                return
            self.is_closed = True
            self.found = None
            self.claims.states_changed()
            self._reserve(-self.memory.size)
            if not self.claims.are_on(self):
                self.let_go()
            followers = list(self._followers)
        for follower in followers:
            follower.drop()

    def let_go(self) -> None:
        """Drop the memory of a closed buffer that nobody uses; under the lock of the claims."""
        self.memory = zeros(0)

    def __repr__(self) -> str:
        # Not the token: whoever reads a log is not meant to know it.
        return f"buffer of {hal.type_name(self.type)} {list(self.creation_dimensions)}"

    def _check_open(self) -> None:
        if self.is_closed:
            raise BadState(f"{self} is closed")

    def _shape_of(self, dimensions: Shape) -> Shape:
        """Returns the dimensions of contents that are copied in."""
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


def bytes_of(memory: Memory, *, writable: bool = False) -> Array:
    """Returns a pool as bytes; raises GeneralFailure where it cannot be read, or written."""
    if memory.name not in _COPIED:
        raise GeneralFailure(f"memory of kind {memory.name!r} cannot be copied; use {_COPIED}")
    return np.frombuffer(mapped(memory, "the memory of a copy", writable=writable), np.uint8)
