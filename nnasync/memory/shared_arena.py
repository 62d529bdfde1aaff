"""Pieces of shared pools that go to one other process: many pieces, few descriptors.

A descriptor gives its holder the whole pool, so an arena serves one process, or none. A new pool is
as large as all that are still there, up to a limit: so the number of pools, each of which takes
descriptors here and there, grows with the logarithm of what is in use. A piece that is dropped is
not used again; its pool goes with its last piece.
"""

from __future__ import annotations

import threading
import weakref

from nnasync.memory.layout import ALIGNMENT
from nnasync.memory.pool import Pool

LARGEST_POOL_BYTES = 64 << 20
"""A piece that is larger than this has a pool of its own."""


class SharedArena:
    """Gives out pieces of shared memory, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: list[weakref.ref[Pool]] = []
        self._current: weakref.ref[Pool] | None = None
        self._end = 0

    def take(self, nbytes: int) -> tuple[Pool, int]:
        """A pool and the offset of this many zeroed bytes in it; they are freed with the pool.

        Raises ResourceExhaustedTransient where there is no memory or descriptor left.
        """
        nbytes = -(-nbytes // ALIGNMENT) * ALIGNMENT
        with self._lock:
            pool = None if self._current is None else self._current()
            if pool is None or self._end + nbytes > pool.size:
                pool = self._new_pool(nbytes)
                self._current, self._end = weakref.ref(pool), 0
            begin, self._end = self._end, self._end + nbytes
        return pool, begin

    def _new_pool(self, nbytes: int) -> Pool:
        self._pools = [each for each in self._pools if each() is not None]
        living = sum(pool.size for each in self._pools if (pool := each()) is not None)
        count = max(1, min(living, LARGEST_POOL_BYTES) // nbytes)
        pool = Pool.allocate(count * nbytes)
        self._pools.append(weakref.ref(pool))
        return pool
