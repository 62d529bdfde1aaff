"""The two ends of what a process has open: its exit, and a copy of it by fork.

When the interpreter ends, a thread that comes back from an engine is ended by force, in the middle
of the engine's code, which does not survive that: C++ ends the process by SIGABRT. So what is open
is closed before, and threads that are inside an engine are waited for, for some seconds at most.

A child of a fork has the memory of its parent and none of its threads. A lock that one of these
held is held for ever, so locks of modules are made anew in it. A module that one of them was
importing would stay half imported in it, so a fork waits until such an import is over.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import weakref
from typing import Any, Protocol, TypeVar

logger = logging.getLogger(__name__)

_PATIENCE_S = 5.0

Lock = TypeVar("Lock")


class _Closable(Protocol):
    def close(self) -> None: ...


_open: weakref.WeakSet[Any] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_exit(open: _Closable) -> None:
    """Have something closed when the interpreter ends, if it is still there."""
    _open.add(open)


def joined_at_exit(thread: threading.Thread) -> threading.Thread:
    """Have a thread that runs code of an engine waited for when the interpreter ends."""
    _threads.add(thread)
    return thread


def renewed_in_child(lock: Lock) -> Lock:
    """A lock that is free in each child of a fork."""
    _locks.add(lock)
    return lock


class _Imports:
    """Imports on threads of ours, for whose end a fork waits a while."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_held = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        """Wait until nothing is being imported; the forking thread itself may be at it."""
        self._is_held = self._lock.acquire(timeout=_PATIENCE_S)

    def after_fork(self) -> None:
        """Go on, in the parent and in the child."""
        if self._is_held:
            self._is_held = False
            self._lock.release()


IMPORTS = _Imports()
"""To be entered by a thread for the time of an import."""
renewed_in_child(IMPORTS._lock)


def _end() -> None:
    for each in tuple(_open):
        try:
            each.close()
        except Exception:
            logger.exception("closing at the end of the interpreter failed")
    end_s = time.monotonic() + _PATIENCE_S
    for thread in tuple(_threads):
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(max(0.0, end_s - time.monotonic()))
    _remember_interruption()


def _remember_interruption() -> None:
    """Have a program that Ctrl-C ended end by the signal, as it would without threads of ours.

    CPython forgets that it was Ctrl-C when any thread executes a string of code after that, as the
    import of many a module does; and remembers it when a string of code raises it.
    """
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _forget() -> None:
    """Forgets, in a child, what the parent closes and its threads, which a child has not."""
    global _open, _threads
    _open, _threads = weakref.WeakSet(), weakref.WeakSet()
    for lock in tuple(_locks):
        # There is no public way that keeps the object; the standard library does the same.
        lock._at_fork_reinit()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=IMPORTS.before_fork,
        after_in_parent=IMPORTS.after_fork,
        after_in_child=IMPORTS.after_fork,
    )
    os.register_at_fork(after_in_child=_forget)
