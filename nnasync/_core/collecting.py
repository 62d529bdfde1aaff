"""Automatic collection of garbage, put off while many objects are made that stay.

Importing an engine or compiling a model makes hundreds of thousands of objects, most of which are
gone in the end. Counting those that are there for a while, the collector would look through all of
the process several times meanwhile, tens of milliseconds each, in which no thread of it runs. So it
is paused, and looks once afterwards at what is still there. Where modules were imported meanwhile
it does not even do that: they stay, so all goes straight into the oldest generation, through which
it looks when a quarter as many objects have come to stay since.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator

_FEW_MODULES = 20


class _Pause:
    """How many want automatic collection to be put off; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._was_on = False
        self._modules = 0

    def begin(self) -> None:
        """Pause it, if it is not paused yet."""
        with self._lock:
            self._holders += 1
            if self._holders == 1:
                self._was_on = gc.isenabled()
                self._modules = len(sys.modules)
                gc.disable()

    def end(self) -> None:
        """Let it go on, if nobody else wants it paused."""
        with self._lock:
            self._holders -= 1
            if self._holders or not self._was_on:
                return
            has_imported = len(sys.modules) > self._modules + _FEW_MODULES
            # Of an application that has frozen objects itself none must be unfrozen.
            if has_imported and not gc.get_freeze_count():
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
