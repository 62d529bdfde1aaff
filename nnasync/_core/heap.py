"""Memory that was freed, given back to the system where the C library would keep it.

Threads of engines and workers allocate in turn from several arenas of glibc, eight for each core.
It gives back what is free at the end of an arena alone: a few bytes in use there keep all that a
network has left before them. Networks that come and go would so have a process grow for hours,
though it uses no more than at first. `malloc_trim(3)` gives free pages in the middle back as well.
It takes some milliseconds, a tenth of a second where much is free in small pieces, and holds up who
allocates from the arena that it is at. So it is done seldom where it takes long.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

from nnasync._core.endings import renewed_in_child

_RESTS = 200
"""Between two times so many times as long as one took: half a percent of a core at most."""
_ROUNDS = 2
"""What was freed is looked at twice: who held something of it may have let go a little later."""


class Heap:
    """The memory of this process that was allocated by native code; thread-safe."""

    def __init__(
        self, trim: Callable[[int], object] | None, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`trim` is the C library's, None where it has none."""
        self._trim = trim
        self._clock = clock
        self._rests_until_ns = 0
        self._lock = renewed_in_child(threading.Lock())
        self._rounds = 0

    def freed(self) -> None:
        """Note that much was freed."""
        with self._lock:
            self._rounds = _ROUNDS

    @property
    def is_due(self) -> bool:
        """Returns whether it is time to give something back."""
        if self._trim is None or not self._rounds:
            return False
        return self._clock() >= self._rests_until_ns

    def give_back(self) -> None:
        """Give back what is free, where something was freed; for a thread that may take long."""
        with self._lock:
            if self._trim is None or not self._rounds:
                return
            self._rounds -= 1
        begun_ns = self._clock()
        self._trim(0)
        ended_ns = self._clock()
        self._rests_until_ns = ended_ns + _RESTS * (ended_ns - begun_ns)


HEAP = Heap(getattr(ctypes.CDLL(None), "malloc_trim", None))
"""That of this process."""
