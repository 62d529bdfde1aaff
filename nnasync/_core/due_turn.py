"""The turn that a loop was asked for, and threads that let it have that turn before they compute.

A thread that wakes takes a core from another one only while it has had less than its share of the
core (Linux, EEVDF). A loop that has just run, and wakes again soon, for a post or for the lock of
the interpreter, has not: the system looks again at its next tick, up to 4 ms later at 250 Hz. When
workers keep all cores busy that is a stall of the loop, and so of the whole application.

So a worker that is about to compute for long looks whether a turn is due since a while. Then it
waits until the loop has had it, or a short time at most: a core is free meanwhile. Where loops get
their cores at once, nobody ever waits.
"""

from __future__ import annotations

import threading
from collections import deque

from nnasync._core.clock import now_ns

LONG_NS = 500_000
"""What takes less leaves its core soon, if a loop waits for that."""
LATE_NS = 100_000
"""A loop that gets a core at once has had its turn by then."""

_PATIENCE_S = 0.0003
"""The loop may have to do other things first; then it has its core."""


class DueTurn:
    """One loop's turn: asked for by any thread, had by the loop's own."""

    __slots__ = ("_waiting", "asked_ns")

    def __init__(self) -> None:
        self.asked_ns = 0
        """When it was asked for; 0 where none is due. Any thread may read it."""
        self._waiting: deque[threading.Lock] = deque()

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
        if not asked_ns or now_ns() - asked_ns < LATE_NS:
            return
        had = threading.Lock()
        had.acquire()
        self._waiting.append(had)
        had.acquire(timeout=_PATIENCE_S)
