"""How a process that does nothing but serve uses its memory: for the command, not for libraries.

Requests of some hundred kilobytes come and go. The allocator of glibc gives memory back to the
system where more than a little is free at the end of the heap, and gets it again for the next
request, page by page. That took a third of the processor time of a request with 600 kB
(`benchmarks/serving_grpc.py`). Here it keeps what it has had.
"""

from __future__ import annotations

import ctypes
import gc

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""
_KEPT_BYTES = 128 << 20
_LARGEST_BYTES = 32 << 20


def keep_memory() -> None:
    """Has glibc keep up to 128 MiB of freed memory for later requests.

    Does nothing without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        # Threads have arenas of their own otherwise, each of which would keep as much.
        mallopt(_ARENA_MAX, 1)


def keep_objects() -> None:
    """Excludes all objects that exist now from garbage collection, so that it scans only new ones.

    Modules, models and settings are some hundred thousand objects, which live as long as the
    server. A collection that walked them would keep all requests waiting for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
