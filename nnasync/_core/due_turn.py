"""The turn that a loop was asked for, and threads that let it have that turn before they compute.

A thread that wakes takes a core from another one only while it has had less than its share of the
core (Linux, EEVDF). A loop that has just run, and wakes again soon, for a post or for the lock of
the interpreter, has not: the system looks again at its next tick, up to 4 ms later at 250 Hz. When
workers keep all cores busy that is a stall of the loop, and so of the whole application.

So a worker that is about to compute for long looks whether a turn is due since a while. Then it
waits until the loop has had it, or a short time at most: a core is free meanwhile. Where loops get
their cores at once, nobody waits.

A loop may be late because it is busy. It has a core then, and nobody waits for it: its processor
time tells that apart.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque

from nnasync._core.clock import now_ns

LONG_NS = 500_000
"""What takes less leaves its core soon, if a loop waits for that."""
LATE_NS = 100_000
"""A loop that gets a core at once has had its turn by then."""

_PATIENCE_S = 0.0003
"""The loop may have to do other things first; then it has its core."""
_BUSY = 0.8
"""A loop that has run for this share of the time since it was asked is busy."""


class DueTurn:
    """One loop's turn: asked for by any thread, had by the loop's own."""

    __slots__ = ("_clock", "_ran_ns", "_waiting", "asked_ns")

    def __init__(self) -> None:
        """To be made on the thread of the loop."""
        self.asked_ns = 0
        """When it was asked for; 0 where none is due. Any thread may read it."""
        self._ran_ns = 0
        self._waiting: deque[threading.Lock] = deque()
        self._clock = _processor_clock()

    def ask(self, at_ns: int) -> None:
        """Notes that it is due from now on, from any thread, but by one at a time."""
        self._ran_ns = self._processor_ns()
        self.asked_ns = at_ns

    def begin(self) -> int:
        """Notes that the loop has its turn; returns when that was asked for."""
        asked_ns, self.asked_ns = self.asked_ns, 0
        return asked_ns

    def end(self) -> None:
        """Lets those go on that waited for the turn."""
        waiting = self._waiting
        while waiting:
            waiting.popleft().release()

    def wait_if_late(self) -> None:
        """Waits for the turn on a thread that is about to compute, if it is late; not for long."""
        asked_ns = self.asked_ns
        late_ns = now_ns() - asked_ns
        if not asked_ns or late_ns < LATE_NS:
            return
        if self._processor_ns() - self._ran_ns > _BUSY * late_ns:
            return
        had = threading.Lock()
        had.acquire()
        self._waiting.append(had)
        if not had.acquire(timeout=_PATIENCE_S):
            with contextlib.suppress(ValueError):  # It was let go on just now.
                self._waiting.remove(had)

    def _processor_ns(self) -> int:
        """The processor time of the loop's thread; 0 where the system does not tell."""
        if self._clock is not None:
            with contextlib.suppress(OSError):  # The thread has ended.
                return time.clock_gettime_ns(self._clock)
        return 0


def _processor_clock() -> int | None:
    """The clock of this thread's processor time."""
    if hasattr(time, "pthread_getcpuclockid"):
        return time.pthread_getcpuclockid(threading.get_ident())
    return None
