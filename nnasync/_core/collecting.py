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
_NEVER = 1 << 20


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
            if len(sys.modules) > self._modules + _FEW_MODULES:
                _take_for_old()
            gc.enable()

    def look_at_new(self, often: tuple[int, int, int]) -> bool:
        """Have it look at new objects meanwhile; whether it may, as far as the application says."""
        with self._lock:
            if not (gc.isenabled() or (self._holders and self._was_on)):
                return False
            if self._holders:  # All that was made since counts as new.
                _take_for_old()
            gc.set_threshold(*often)
            gc.enable()
            return True

    def stop_looking(self, often: tuple[int, int, int], usual: tuple[int, int, int]) -> None:
        """Pause it again, if it is to be paused still."""
        with self._lock:
            if gc.get_threshold() == often:
                gc.set_threshold(*usual)
            if self._holders:
                gc.disable()


def _take_for_old() -> None:
    """Have what is there counted as old, without looking at it."""
    # Of an application that has frozen objects itself none must be unfrozen.
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


_PAUSE = _Pause()


@contextlib.contextmanager
def collecting_later() -> Iterator[None]:
    """Put automatic collection off, in this whole process; an explicit one works as always."""
    _PAUSE.begin()
    try:
        yield
    finally:
        _PAUSE.end()


@contextlib.contextmanager
def collecting_new(every: int) -> Iterator[None]:
    """Have the newest objects looked at after so many of them, also where the rest is put off.

    That takes some microseconds each time. Where the application wants no collector there is none.
    """
    usual = gc.get_threshold()
    often = (every, _NEVER, usual[2])
    if usual[0] == 0 or not _PAUSE.look_at_new(often):
        yield
        return
    try:
        yield
    finally:
        _PAUSE.stop_looking(often, usual)
