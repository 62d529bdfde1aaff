"""Memory pools that models and requests refer to, and typed pieces of them as numpy arrays.

A pool is one shared mapping with a file descriptor that can be handed to another process. Two kinds
exist here: "ashmem" (anonymous memory of our own) and "mmap_fd" (a part of a file, or memory that a
peer sent). Nothing is copied: an array of a pool is a view of the mapping.

Life of a mapping: it belongs to whoever still looks at it. Closing a pool gives back its
descriptor and its own reference; the pages go with the last view, so an array never dangles. Memory
of our own is sealed against resizing where the system can do that: without the seal, a peer who
shrinks the file turns our next access into a bus error. `from_fd(..., require_sealed=True)` asks it
of a peer's memory.
"""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from nnasync.errors import BadState, InvalidArgument, ResourceExhaustedTransient
from nnasync.hal import Array, Shape

__all__ = ["ALIGNMENT", "MemoryStatistics", "Pool", "Region", "layout", "statistics"]

ALIGNMENT = 64
"""Default alignment of tensors inside a pool, in bytes: a cache line, and the widest vector."""

_F_SEAL_SHRINK = 2
_F_SEAL_GROW = 4
_EXHAUSTED = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN)

_live: dict[int, tuple[bool, int]] = {}


class MemoryStatistics(msgspec.Struct, frozen=True):
    """What this process has mapped now; a closed pool counts until its last view is gone."""

    pools: int
    """Number of mappings."""
    allocated_bytes: int
    """Bytes of memory of our own ("ashmem"), in whole pages."""
    mapped_bytes: int
    """Bytes of all mappings, in whole pages."""


class Region:
    """A typed piece of a pool; `array` is a numpy view of it, never a copy."""

    __slots__ = ("__weakref__", "array", "dtype", "length", "offset", "pool", "shape")

    def __init__(
        self, pool: Pool, offset: int, length: int, *, dtype: npt.DTypeLike, shape: Shape
    ) -> None:
        self.pool = pool
        self.offset = offset
        self.length = length
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.shape = tuple(shape)
        self.array: Array = pool.array(self.dtype, self.shape, offset)
        if self.array.nbytes != length:
            raise InvalidArgument(
                f"region at offset {offset} of {pool!r}: {length} bytes given, but {self.dtype} "
                f"{list(self.shape)} takes {self.array.nbytes}"
            )

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if dtype is not None and np.dtype(dtype) != self.dtype:
            if copy is False:
                raise ValueError(f"a {self.dtype} region cannot be seen as {dtype} without a copy")
            return self.array.astype(dtype)
        return self.array.copy() if copy else self.array

    def __repr__(self) -> str:
        return f"Region({self.dtype} {list(self.shape)} at {self.offset} of {self.pool!r})"


class Pool:
    """A mapped piece of shared memory; made by `allocate`, `from_fd` or `from_file`.

    A context manager; `close` may be called at any time and any number of times.
    """

    __slots__ = ("__weakref__", "_fd", "_view", "name", "offset", "size", "writable")

    # At the end of the interpreter a module is gone before its last object.
    _close_fd = staticmethod(os.close)

    def __init__(self, name: str, fd: int, size: int, *, offset: int, writable: bool) -> None:
        """Map `size` bytes of `fd` from `offset`; takes the descriptor over."""
        self.name = name
        self.size = size
        self.offset = offset
        self.writable = writable
        self._fd = fd
        self._view: memoryview | None = None
        try:
            self._view = _map(name, fd, size, offset=offset, writable=writable)
        except BaseException:
            self.close()
            raise

    @classmethod
    def allocate(cls, size: int) -> Pool:
        """Zeroed memory of our own, "ashmem", in whole pages, shareable through `fd`.

        Raises InvalidArgument for a size below 1, ResourceExhaustedTransient where there is no
        memory or descriptor left.
        """
        if size < 1:
            raise InvalidArgument(f"cannot allocate a pool of {size} bytes: at least 1 is needed")
        return cls("ashmem", _anonymous_file(_in_pages(size)), size, offset=0, writable=True)

    @classmethod
    def from_fd(
        cls,
        fd: int,
        size: int,
        *,
        offset: int = 0,
        writable: bool = True,
        require_sealed: bool = False,
    ) -> Pool:
        """`size` bytes of a file from any `offset`, "mmap_fd"; the descriptor stays the caller's.

        Raises InvalidArgument where the file is shorter, cannot be mapped that way, or is not
        sealed against shrinking although `require_sealed` asks for it.
        """
        if size < 1 or offset < 0:
            raise InvalidArgument(f"cannot map {size} bytes from offset {offset} of a file")
        try:
            available = os.fstat(fd).st_size
        except (OSError, OverflowError) as error:
            raise InvalidArgument(f"cannot map file descriptor {fd}: {error}") from error
        if offset + size > available:
            raise InvalidArgument(
                f"cannot map bytes {offset} to {offset + size}: the file holds {available}"
            )
        if require_sealed and not _is_sealed(fd):
            raise InvalidArgument("shared memory of a peer must be sealed against shrinking")
        return cls("mmap_fd", _duplicate(fd), size, offset=offset, writable=writable)

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, offset: int = 0, size: int | None = None
    ) -> Pool:
        """A file, or `size` bytes of it from `offset`, mapped for reading.

        Raises OSError where it cannot be opened, InvalidArgument where it is too short.
        """
        with open(path, "rb") as file:
            if size is None:
                size = os.fstat(file.fileno()).st_size - offset
            return cls.from_fd(file.fileno(), size, offset=offset, writable=False)

    @property
    def fd(self) -> int:
        """The descriptor of the memory; raises BadState when closed."""
        if self._fd < 0:
            raise BadState(f"{self!r} is closed")
        return self._fd

    @property
    def view(self) -> memoryview:
        """The whole pool as bytes, without a copy; raises BadState when closed."""
        view = self._view
        if view is None:
            raise BadState(f"{self!r} is closed")
        return view

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._view is None

    def array(self, dtype: npt.DTypeLike, shape: Sequence[int], offset: int = 0) -> Array:
        """A C-contiguous view of the pool's bytes; raises InvalidArgument where it leaves them."""
        dtype, shape = np.dtype(dtype), tuple(shape)
        length = dtype.itemsize * math.prod(shape)
        if offset < 0 or any(n < 0 for n in shape) or offset + length > self.size:
            raise InvalidArgument(
                f"{dtype} {list(shape)} at offset {offset} leaves {self!r}: "
                f"it would take bytes {offset} to {offset + length}"
            )
        try:
            if length == 0:
                return np.empty(shape, dtype)
            return np.ndarray(shape, dtype, buffer=self.view, offset=offset)
        except ValueError as error:
            raise InvalidArgument(f"no array can have the shape {list(shape)}: {error}") from error

    def region(
        self,
        offset: int = 0,
        length: int | None = None,
        *,
        dtype: npt.DTypeLike = np.uint8,
        shape: Shape | None = None,
    ) -> Region:
        """A typed piece; without a length to the end, without a shape one-dimensional."""
        dtype = np.dtype(dtype)
        if length is None:
            length = self.size - offset if shape is None else dtype.itemsize * math.prod(shape)
        if shape is None:
            shape = (length // dtype.itemsize,)
        return Region(self, offset, length, dtype=dtype, shape=shape)

    def close(self) -> None:
        """Give back the descriptor, and the pages as soon as nobody looks at them."""
        fd, self._fd = self._fd, -1
        # An explicit munmap would pull the pages from under arrays that numpy made of them.
        self._view = None
        if fd >= 0:
            self._close_fd(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def __repr__(self) -> str:
        return f"<{self.name} pool of {self.size} bytes>"


def layout(sizes: Sequence[int], alignment: int = ALIGNMENT) -> tuple[list[int], int]:
    """Offsets that put blocks of these sizes one after the other, each aligned, and the total size.

    The total is a multiple of the alignment, which is a power of two.
    """
    if alignment < 1 or alignment & (alignment - 1):
        raise InvalidArgument(f"an alignment must be a power of two, not {alignment}")
    offsets = []
    end = 0
    for index, size in enumerate(sizes):
        if size < 0:
            raise InvalidArgument(f"block {index} has a negative size, {size}")
        offsets.append(end)
        end = (end + size + alignment - 1) & -alignment
    return offsets, end


def statistics() -> MemoryStatistics:
    """What this process has mapped now."""
    live = list(_live.values())
    return MemoryStatistics(
        pools=len(live),
        allocated_bytes=sum(size for own, size in live if own),
        mapped_bytes=sum(size for _, size in live),
    )


def _in_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _anonymous_file(size: int) -> int:
    """Descriptor of `size` zeroed bytes without a name, sealed where there are seals."""
    try:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("nnasync", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:
            import tempfile

            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
    except OSError as error:
        raise ResourceExhaustedTransient(f"no descriptor for shared memory: {error}") from error
    try:
        os.ftruncate(fd, size)
        if hasattr(os, "memfd_create"):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
    except (OSError, OverflowError) as error:
        os.close(fd)
        raise ResourceExhaustedTransient(f"no shared memory of {size} bytes: {error}") from error
    return fd


def _duplicate(fd: int) -> int:
    try:
        return os.dup(fd)
    except OSError as error:
        raise ResourceExhaustedTransient(f"no descriptor for shared memory: {error}") from error


def _is_sealed(fd: int) -> bool:
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _F_SEAL_SHRINK)
    except (OSError, AttributeError):
        return False


def _map(name: str, fd: int, size: int, *, offset: int, writable: bool) -> memoryview:
    start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    skip = offset - start
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        mapping = mmap.mmap(fd, size + skip, flags=mmap.MAP_SHARED, prot=prot, offset=start)
    except (OSError, ValueError, OverflowError) as error:
        if getattr(error, "errno", 0) in _EXHAUSTED:
            raise ResourceExhaustedTransient(f"cannot map {size} bytes: {error}") from error
        raise InvalidArgument(f"cannot map {size} bytes from offset {offset}: {error}") from error
    key = id(mapping)
    _live[key] = (name == "ashmem", _in_pages(size + skip))
    weakref.finalize(mapping, _live.pop, key).atexit = False
    return memoryview(mapping)[skip : skip + size]
