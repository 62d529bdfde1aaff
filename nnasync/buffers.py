"""Memory domains: buffers that a device manages, which requests name by tokens.

A buffer is made for roles: this input of that prepared model, that output of another; its token
means something there only. Its contents are either initialised, with dimensions, or nobody can
read them:

    not initialised --(execution wrote it | copy_from)--> initialised
    initialised --(execution that should write it failed | copy_from failed)--> not initialised

Reading changes nothing. What is not known of the dimensions at the allocation is known with the
contents; such a buffer has memory when it has something to hold, and gets more when it needs it.

*Tokens.* The HAL hands out the smallest number that is free, which is meant for one client. Here
several may share a device, so tokens are random numbers of 63 bits: who was not told one cannot
name the buffer.

*Races.* Readers share a buffer, a writer has it alone, for as long as it runs. Whoever comes in
between is refused at once with ResourceExhaustedTransient, and nothing is touched: contents are
never a mixture, no thread waits for another, and a run that the device does not let go of cannot
write into what came later. Work that is ordered by fences or awaits never meets that. The lock of
a buffer is held to change its state, never during a copy or a run.

*Memory* is the process's own, zeroed, and aligned for every engine; it is not shared with anybody.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from nnasync import hal
from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    NNError,
    ResourceExhaustedPersistent,
    ResourceExhaustedTransient,
)
from nnasync.hal import Array, Memory, Operand, Shape, Struct
from nnasync.memory import ALIGNMENT

__all__ = [
    "Buffers",
    "BuffersStatistics",
    "Closing",
    "ManagedBuffer",
    "Role",
    "default_limit_bytes",
]

_COPIED = ("ashmem", "mmap_fd", "hardware_buffer_blob")
_PADDING = ALIGNMENT
"""Engines may read a vector past the end of a tensor."""

Role = tuple[object, str, int]
"""A prepared model, "input" or "output", and which one."""


class BuffersStatistics(Struct, frozen=True):
    """How many buffers a device has now, and their bytes."""

    buffers: int
    bytes: int


class Closing(Protocol):
    """What hears of the end of a buffer that it uses."""

    def drop(self) -> None:
        """Let go of its memory."""


class ManagedBuffer:
    """One buffer: roles, dimensions, state, memory. Any thread may use it."""

    def __init__(
        self, token: int, operand: Operand, roles: Iterable[Role], reserve: Callable[[int], None]
    ) -> None:
        """`reserve` is told how many bytes more are taken, or fewer; it raises where it is full."""
        self.token = token
        self.type = operand.type
        self.creation_dimensions: Shape = operand.dimensions
        self.memory: Array = _zeros(0)
        self.is_closed = False
        self._users: weakref.WeakSet[Closing] = weakref.WeakSet()
        self._reserve = reserve
        self._roles: weakref.WeakKeyDictionary[object, set[tuple[str, int]]] = (
            weakref.WeakKeyDictionary()
        )
        for owner, kind, index in roles:
            self._roles.setdefault(owner, set()).add((kind, index))
        self._dimensions: Shape | None = None
        self._changes = 0
        self._readers = 0
        self._is_written = False
        self._lock = threading.Lock()
        self.grow(hal.byte_size(self.type, self.creation_dimensions))

    @property
    def is_initialised(self) -> bool:
        """Whether it has contents."""
        return self._dimensions is not None

    @property
    def dimensions(self) -> Shape:
        """Those of the contents; without contents what the allocation knew."""
        found = self._dimensions
        return self.creation_dimensions if found is None else found

    @property
    def changes(self) -> int:
        """A number that differs after every change of the contents or of their state."""
        return self._changes

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

    # -- claims

    def begin_reading(self, dimensions: Shape) -> Array:
        """The memory of the contents, which have these dimensions, until `end_reading`.

        Raises GeneralFailure where there are no contents, InvalidArgument where they have other
        dimensions, ResourceExhaustedTransient while they are written.
        """
        with self._lock:
            self._check_open()
            if self._is_written:
                raise ResourceExhaustedTransient(f"{self} is being written; read it afterwards")
            if self._dimensions is None:
                raise GeneralFailure(f"{self} is not initialised: nothing was written to it")
            if dimensions != self._dimensions:
                raise InvalidArgument(
                    f"{self} holds dimensions {list(self._dimensions)}, not {list(dimensions)}"
                )
            self._readers += 1
            return self.memory

    def end_reading(self) -> None:
        """Give the claim back."""
        with self._lock:
            self._readers -= 1

    def begin_writing(self) -> None:
        """Claim the buffer alone until `end_writing`; raises ResourceExhaustedTransient."""
        with self._lock:
            self._check_open()
            if self._is_written or self._readers:
                raise ResourceExhaustedTransient(f"{self} is in use; write to it afterwards")
            self._is_written = True

    def end_writing(self, dimensions: Shape | None) -> None:
        """Give the claim back with contents of these dimensions, or None without any."""
        with self._lock:
            self._is_written = False
            self._dimensions = None if self.is_closed else dimensions
            self._changes += 1

    def quit_writing(self) -> None:
        """Give the claim back with nothing changed."""
        with self._lock:
            self._is_written = False

    def void(self, changes: int) -> None:
        """Have no contents any more, unless they have changed since, or somebody writes them."""
        with self._lock:
            if self._changes == changes and not self._is_written:
                self._dimensions = None
                self._changes += 1

    def grow(self, nbytes: int) -> Array:
        """Memory for so many bytes at least, perhaps without what it held; for who writes.

        Raises ResourceExhausted.
        """
        with self._lock:
            self._check_open()
            have = self.memory.size
            if nbytes > have:
                self._reserve(nbytes - have)
                try:
                    self.memory = _zeros(nbytes)
                except (MemoryError, ValueError) as error:
                    self._reserve(have - nbytes)
                    text = f"no memory for {nbytes} bytes: {error}"
                    raise ResourceExhaustedTransient(text) from error
            return self.memory

    def used_by(self, user: Closing) -> None:
        """Have `user` drop its memory when the buffer is closed; it is not kept alive."""
        with self._lock:
            self._users.add(user)

    # -- copies

    def copy_to(self, memory: Memory) -> None:
        """Copy the contents to memory of exactly their size.

        Raises InvalidArgument for another size, GeneralFailure where there are no contents or the
        memory cannot be written, ResourceExhaustedTransient while they are being written.
        """
        self._check_open()
        target = _bytes_of(memory, writable=True)
        dimensions = self.dimensions
        if not self.is_initialised and not hal.is_fully_specified(self.type, dimensions):
            raise GeneralFailure(f"{self} is not initialised: nothing was written to it")
        self._check_size(memory, target, self._size_of(dimensions))
        contents = self.begin_reading(dimensions)
        try:
            np.copyto(target, contents[: target.size])
        finally:
            self.end_reading()

    def copy_from(self, memory: Memory, dimensions: Shape = ()) -> None:
        """Copy contents of these dimensions from memory of exactly their size.

        Without dimensions they are those of the allocation, which must be complete then. A copy
        that fails leaves no contents. Raises InvalidArgument for dimensions or a size that do not
        fit, GeneralFailure where the memory cannot be read, ResourceExhausted.
        """
        self.begin_writing()
        written: Shape | None = None
        try:
            source = _bytes_of(memory, writable=False)
            shape = self._shape_of(dimensions)
            nbytes = self._size_of(shape)
            self._check_size(memory, source, nbytes)
            np.copyto(self.grow(nbytes)[:nbytes], source)
            written = shape
        finally:
            self.end_writing(written)

    def close(self) -> None:
        """Give the memory back as soon as nobody uses it; whoever asks later is refused."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            self._dimensions = None
            self._changes += 1
            self._reserve(-self.memory.size)
            self.memory = _zeros(0)
            users = list(self._users)
        for user in users:
            user.drop()

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


class Buffers:
    """The buffers of one device, by their tokens."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        """All of them together take at most `limit_bytes`; None is `default_limit_bytes()`."""
        self.limit_bytes = default_limit_bytes() if limit_bytes is None else limit_bytes
        self._buffers: dict[int, ManagedBuffer] = {}
        self._bytes = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def allocate(self, operand: Operand, roles: Iterable[Role]) -> ManagedBuffer:
        """A buffer for what `validation.validate_buffer_desc` found, in these roles.

        Raises GeneralFailure for a type whose size is not known (of an extension),
        ResourceExhaustedPersistent for what is too large ever to fit, Transient for what does not
        fit now.
        """
        if not hal.has_dtype(operand.type):
            raise GeneralFailure(
                f"no buffer for {hal.type_name(operand.type)}: its size is not known; "
                "use shared memory"
            )
        if self._is_closed:
            raise DeviceUnavailable("the device of these buffers is closed")
        token = self._new_token()
        buffer = ManagedBuffer(token, operand, roles, self._reserve)
        with self._lock:
            self._buffers[token] = buffer
        return buffer

    def find(self, token: int) -> ManagedBuffer:
        """The buffer of a token; raises InvalidArgument where there is none."""
        buffer = self._buffers.get(token)
        if buffer is None:
            raise InvalidArgument("a memory token of the request stands for no buffer (any more)")
        return buffer

    def free(self, token: int) -> None:
        """Close a buffer, whose token means nothing from now on; harmless where there is none."""
        with self._lock:
            buffer = self._buffers.pop(token, None)
        if buffer is not None:
            buffer.close()

    def close(self) -> None:
        """Close all of them."""
        self._is_closed = True
        for token in list(self._buffers):
            self.free(token)

    def statistics(self) -> BuffersStatistics:
        """What there is now."""
        return BuffersStatistics(len(self._buffers), self._bytes)

    def _new_token(self) -> int:
        while True:
            token = secrets.randbits(63)
            if token and token not in self._buffers:
                return token

    def _reserve(self, nbytes: int) -> None:
        with self._lock:
            if nbytes > min(self.limit_bytes, hal.MAX_TENSOR_BYTES):
                raise ResourceExhaustedPersistent(
                    f"a buffer of {nbytes} bytes is too large: all together may have "
                    f"{self.limit_bytes} bytes, each {hal.MAX_TENSOR_BYTES}"
                )
            if nbytes > 0 and self._bytes + nbytes > self.limit_bytes:
                raise ResourceExhaustedTransient(
                    f"{nbytes} bytes do not fit: buffers take {self._bytes} of at most "
                    f"{self.limit_bytes} bytes"
                )
            self._bytes += nbytes


def default_limit_bytes() -> int:
    """Half of the machine's memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError):
        return hal.MAX_TENSOR_BYTES


def _zeros(nbytes: int) -> Array:
    """Zeroed bytes that begin at a multiple of the alignment, with some behind them."""
    if not nbytes:
        return np.empty(0, np.uint8)
    raw = np.zeros(nbytes + ALIGNMENT + _PADDING, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def _bytes_of(memory: Memory, *, writable: bool) -> Array:
    """A pool as bytes; raises GeneralFailure where it cannot be read, or written."""
    if memory.name not in _COPIED:
        raise GeneralFailure(f"memory of kind {memory.name!r} cannot be copied; use {_COPIED}")
    try:
        view = memory.view
    except (NNError, OSError, ValueError) as error:
        raise GeneralFailure(f"the memory of a copy cannot be mapped: {error}") from error
    if writable and view.readonly:
        raise GeneralFailure("the memory of a copy cannot be written")
    return np.frombuffer(view, np.uint8)
