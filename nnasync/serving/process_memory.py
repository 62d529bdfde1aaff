"""How a process that does nothing but serve uses its memory: for the command, not for libraries.

Requests of some hundred kilobytes come and go. The allocator of glibc gives memory back to the
system where more than a little is free at the end of the heap, and gets it again for the next
request, page by page. That took a third of the processor time of a request with 600 kB
(`benchmarks/serving_grpc.py`). Here it keeps what it has had.

It has several arenas of memory, each with a lock, for threads to share. One arena keeps the least.
Where threads have different priorities of the system, though, one that waits for a core in the
middle of an allocation stops all others that want the same lock, however urgent they are. So where
urgent threads are not to wait for others, each thread has an arena of its own.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""
_KEPT_BYTES, _KEPT_OF_MANY_BYTES = 128 << 20, 16 << 20
_MANY_ARENAS = 256
_LARGEST_BYTES = 32 << 20


def keep_memory(*, shared: bool = True) -> None:
    """Has glibc keep up to 128 MiB of freed memory for later requests.

    Threads that do not share it keep up to 16 MiB each, and never wait for each other. Does nothing
    without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES if shared else _KEPT_OF_MANY_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_ARENA_MAX, 1 if shared else _MANY_ARENAS)
