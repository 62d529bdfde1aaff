"""Room in the C library's heap, mapped before an engine takes it under the interpreter lock.

Where a heap grows, the system maps page by page as they are touched. An engine that packs weights
under the lock has all others wait for that, too, which is half of the time that it takes. So room
is made before: a block is taken, mapped by a call that keeps no lock, and freed. What the calling
thread is given next lies in there, for each thread has an arena of the heap. Where there is room
already nothing is mapped.

glibc gives a large block a mapping of its own, which goes when it is freed; but what counts as
large is, up to 32 MiB, what is larger than any that was freed so far. So a larger block goes first,
and is never touched. Other C libraries, and kernels before Linux 5.14, make no room; nothing else
is different there.
"""

from __future__ import annotations

import ctypes
import mmap

_LEAST_BYTES, _MOST_BYTES = 1 << 20, 31 << 20
_POPULATE_WRITE = 23
"""Advice of madvise(2), which the module mmap does not name."""
_PAGE = mmap.PAGESIZE

_locked, _unlocked = ctypes.PyDLL(None), ctypes.CDLL(None)
_malloc, _free = _locked.malloc, _locked.free
_malloc.restype, _malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_free.restype, _free.argtypes = None, [ctypes.c_void_p]
_advise, _residence = _unlocked.madvise, _unlocked.mincore


def make_room(wanted_bytes: int) -> None:
    """Have so many bytes mapped that the calling thread allocates next, or some of them.

    Little is not worth it, and of very much it is the first 31 MiB.
    """
    if wanted_bytes < _LEAST_BYTES:
        return
    size = min(wanted_bytes, _MOST_BYTES)
    _free(_malloc(size + _PAGE))
    block = _malloc(size)
    if block is None:
        return
    begin, end = -(-block // _PAGE) * _PAGE, (block + size) // _PAGE * _PAGE
    if not _is_mapped(begin, end - begin):
        _advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _POPULATE_WRITE)
    _free(block)


def _is_mapped(begin: int, size: int) -> bool:
    """Whether all pages of a part of the heap are there."""
    pages = ctypes.create_string_buffer(size // _PAGE)
    failed = _residence(ctypes.c_void_p(begin), ctypes.c_size_t(size), pages)
    return not failed and b"\0" not in pages.raw
