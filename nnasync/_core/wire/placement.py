"""Short work runs on the core of the caller that waits for it.

Where nobody looks for what comes, a packet that wakes a thread on another core costs that core's
way out of its sleep, several times what a switch between two threads of one core costs. So where
the caller of a burst sleeps until its answer is there, it stays on its core, and the thread that
executes comes there as long as that takes less than the way would. Longer work is better done
elsewhere, where it keeps nobody from running.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator

SHORT_NS = 100_000
"""What takes no longer is short: a wake-up on another core, and one back, cost about that."""


def current_core() -> int:
    """Returns the core on which the calling thread runs; -1 if the system does not tell."""
    return _system()()


@functools.cache
def _system() -> Callable[[], int]:
    # Not at start-up: nobody else needs it.
    import ctypes

    try:
        found: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return lambda: -1
    return found


@contextlib.contextmanager
def staying(core: int) -> Iterator[None]:
    """Keeps the calling thread on its core; -1 leaves it free."""
    if core < 0:
        yield
        return
    usual = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, usual)


class Placement:
    """Sets where the calling thread may run: on one core, or wherever it could at first."""

    __slots__ = ("_core", "_everywhere")

    def __init__(self) -> None:
        self._core = -1
        self._everywhere: frozenset[int] = frozenset()
        with contextlib.suppress(AttributeError, OSError):
            self._everywhere = frozenset(os.sched_getaffinity(0))

    def on(self, core: int) -> None:
        """Keeps the thread on a core; frees it for -1, or for a core that it may not use."""
        if core not in self._everywhere:
            core = -1
        if core == self._core:
            return
        self._core = core
        # Where that is not allowed it stays as it is.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self._everywhere if core < 0 else {core})
