"""Descriptors of shared memory and their mappings, and what this process has of them.

A mapping counts until the last view of it is gone. What reading or writing a mapping can do to a
process is a bus error, where the file has become shorter since: so sizes are asked for before each
mapping, memory of our own is sealed against resizing, and `Pool.check` asks again later.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
import threading
import weakref

import msgspec

from nnasync._core.endings import renewed_in_child
from nnasync.errors import InvalidArgument, ResourceExhaustedTransient

_F_SEAL_SHRINK = 2
_F_SEAL_GROW = 4
_EXHAUSTED = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN)

_live: dict[int, tuple[bool, int]] = {}
_copied = [0]
_copying = renewed_in_child(threading.Lock())


class MemoryStatistics(msgspec.Struct, frozen=True):
    """What this process has mapped now; a closed pool counts until its last view is gone."""

    pools: int
    """Number of mappings."""
    allocated_bytes: int
    """Bytes of memory of our own, in whole pages."""
    mapped_bytes: int
    """Bytes of all mappings, in whole pages."""
    copied_bytes: int = 0
    """Bytes of images copied since the start, where they could not be read or written in place."""


def statistics() -> MemoryStatistics:
    """Returns the sizes of what this process has mapped now."""
    live = list(_live.values())
    return MemoryStatistics(
        pools=len(live),
        allocated_bytes=sum(size for own, size in live if own),
        mapped_bytes=sum(size for _, size in live),
        copied_bytes=_copied[0],
    )


def count_copied(nbytes: int) -> None:
    """Count bytes of an image that were copied; from any thread."""
    with _copying:
        _copied[0] += nbytes


def anonymous_file(size: int) -> int:
    """Descriptor of at least `size` zeroed bytes without a name, sealed where there are seals.

    Raises ResourceExhaustedTransient where there is no memory or descriptor left.
    """
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
        os.ftruncate(fd, _in_pages(size))
        if hasattr(os, "memfd_create"):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
    except (OSError, OverflowError) as error:
        os.close(fd)
        raise ResourceExhaustedTransient(f"no shared memory of {size} bytes: {error}") from error
    return fd


def duplicate(fd: int) -> int:
    """Another descriptor of the same memory.

    Raises InvalidArgument if it is not a descriptor, ResourceExhaustedTransient.
    """
    try:
        return os.dup(fd)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", 0) in _EXHAUSTED:
            text = f"no descriptor for shared memory: {error}"
            raise ResourceExhaustedTransient(text) from error
        raise InvalidArgument(f"cannot use file descriptor {fd}: {error}") from error


def check_size(fd: int, size: int, offset: int) -> None:
    """Raise InvalidArgument unless a file has `size` bytes at `offset` now."""
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


def is_sealed(fd: int) -> bool:
    """Returns whether this memory can no longer be made smaller."""
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _F_SEAL_SHRINK)
    except (OSError, AttributeError):
        return False


def mapped_bytes(fd: int, size: int, *, offset: int, writable: bool, own: bool) -> memoryview:
    """Map bytes of a file; `own` memory counts as allocated.

    Raises InvalidArgument where that is not possible, ResourceExhaustedTransient.
    """
    start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    skip = offset - start
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        mapping = _mapping_of(fd, size + skip, prot=prot, offset=start)
    except (OSError, ValueError, OverflowError) as error:
        if getattr(error, "errno", 0) in _EXHAUSTED:
            raise ResourceExhaustedTransient(f"cannot map {size} bytes: {error}") from error
        raise InvalidArgument(f"cannot map {size} bytes from offset {offset}: {error}") from error
    _count(mapping, size + skip, own=own)
    return memoryview(mapping)[skip : skip + size]


def private_bytes(size: int) -> memoryview:
    """Zeroed bytes that no other process can be given, and that take no descriptor.

    Raises ResourceExhaustedTransient.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        mapping = mmap.mmap(-1, _in_pages(size), flags=flags)
    except (OSError, OverflowError) as error:
        raise ResourceExhaustedTransient(f"no memory of {size} bytes: {error}") from error
    _count(mapping, size, own=True)
    return memoryview(mapping)[:size]


def _mapping_of(fd: int, size: int, *, prot: int, offset: int) -> mmap.mmap:
    """Map a file; the mapping keeps a descriptor of its own before Python 3.13."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=prot, offset=offset, trackfd=False)
    return mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=prot, offset=offset)


def _count(mapping: mmap.mmap, size: int, *, own: bool) -> None:
    """Count a mapping for as long as it lives."""
    key = id(mapping)
    _live[key] = (own, _in_pages(size))
    weakref.finalize(mapping, _live.pop, key).atexit = False


def _in_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
