"""Files in memory that a driver fills or reads, and that nothing else can change.

On Linux they are memory files with seals: once sealed, not even a process that holds a descriptor
can write, shrink or grow them. Elsewhere they are temporary files without a name.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from nnasync._core.cache.outcome import Rejected

_SEALS = 0x0001 | 0x0002 | 0x0004 | 0x0008  # seal, shrink, grow, write


def memory_file() -> int:
    """Descriptor of an empty file in memory; raises Rejected where there is none to be had."""
    try:
        if hasattr(os, "memfd_create"):
            return os.memfd_create("nnasync-cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        import tempfile

        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
    except OSError as error:
        raise Rejected(f"no descriptor for a cache file in memory: {error.strerror}") from error


def seal(fd: int) -> int:
    """The file for reading only; takes the descriptor over and gives another.

    Raises Rejected where it cannot be sealed.
    """
    try:
        if hasattr(os, "memfd_create"):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return _for_reading(fd)
    except OSError as error:
        os.close(fd)
        raise Rejected(f"a cache file in memory cannot be sealed: {error.strerror}") from error


def _for_reading(fd: int) -> int:
    # Kernels before 6.7 refuse to share a mapping of a sealed file that is open for writing.
    try:
        reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        os.lseek(fd, 0, os.SEEK_SET)
        return fd
    os.close(fd)
    return reading


def fill(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Make `data` the whole content of a file, whatever its offset; raises OSError."""
    rest = memoryview(data).cast("B")
    os.ftruncate(fd, 0)
    offset = 0
    while offset < len(rest):
        offset += os.pwrite(fd, rest[offset:], offset)


def view(fd: int) -> memoryview:
    """The content of a file, mapped for reading; the descriptor may be closed afterwards."""
    size = os.fstat(fd).st_size
    if size == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
