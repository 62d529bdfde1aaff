"""Automatic collection of garbage, put off while many objects are made that stay.

Importing an engine or compiling a model makes hundreds of thousands of objects that live long. The
collector would look through all of the process several times meanwhile, tens of milliseconds each,
in which no thread of it runs. So it is paused, and what was made goes straight into the oldest
generation, through which it only looks when a quarter as many objects have come to stay since.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

__all__ = ["collecting_later"]


class _Pause:
    """How many want automatic collection to be put off; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._was_on = False

    def begin(self) -> None:
        """Pause it, if it is not paused yet."""
        with self._lock:
            self._holders += 1
            if self._holders == 1:
                self._was_on = gc.isenabled()
                gc.disable()

    def end(self) -> None:
        """Let it go on, if nobody else wants it paused."""
        with self._lock:
            self._holders -= 1
            if self._holders or not self._was_on:
                return
            # Of an application that has frozen objects itself none must be unfrozen.
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


_PAUSE = _Pause()


@contextlib.contextmanager
def collecting_later() -> Iterator[None]:
    """Put automatic collection off, in this whole process; an explicit one works as always."""
    _PAUSE.begin()
    try:
        yield
    finally:
        _PAUSE.end()
