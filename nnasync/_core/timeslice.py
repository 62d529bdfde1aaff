"""The time slice of a thread: how soon it gets a core when it wakes beside busy threads.

Linux (6.12 and later) lets the runnable thread with the earliest virtual deadline run, and the
deadline is as far away as the thread's time slice is long. By default all slices are equal, some
milliseconds, and a thread that wakes may wait until the running one has used its slice up. One that
asks for a short slice goes first, with the same share of the processor in all: no priority changes
and no privilege is needed. Other systems ignore the wish.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import struct
import sys
import threading
from typing import Any

_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
_LAYOUT = struct.Struct("=IIQiIQQQ")
_RUNTIME_FIELD = 5
_LONGEST_NS = 100_000_000
_TRIED_NS = 1_100_000


def set_time_slice(slice_ns: int) -> int | None:
    """Set the slice of the calling thread and return the old one; None where that has no effect.

    0 stands for the system's default; the kernel takes 0.1 to 100 ms.
    """
    calls = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if calls is None:
        return None
    set_call, get_call = calls
    syscall = _syscall()
    buffer = ctypes.create_string_buffer(_LAYOUT.size)
    if syscall(get_call, 0, buffer, _LAYOUT.size, 0) != 0:
        return None
    fields = list(_LAYOUT.unpack(buffer.raw))
    old_ns = int(fields[_RUNTIME_FIELD])
    fields[0] = _LAYOUT.size
    fields[_RUNTIME_FIELD] = min(slice_ns, _LONGEST_NS)
    if syscall(set_call, 0, _LAYOUT.pack(*fields), 0) != 0:
        return None
    return old_ns


def has_time_slices() -> bool | None:
    """Returns whether the system honors a thread's time slice; None if that is unknown.

    Older kernels take the wish, and forget it.
    """
    old_ns = set_time_slice(_TRIED_NS)
    if old_ns is None:
        return None
    return set_time_slice(old_ns) == _TRIED_NS


@functools.cache
def _syscall() -> Any:
    """The C library's; looked up once, since it takes longer than the calls."""
    return ctypes.CDLL(None, use_errno=True).syscall


class Promptness:
    """Which threads ask for the short slice, one that all runtimes of the process share.

    Among threads with the same slice the one that runs goes on when another wakes. That matters for
    those that hold the interpreter lock now and then: who is sent off the core with it stops all.
    """

    def __init__(self) -> None:
        self.slice_ns = 0
        self._here = threading.local()

    def ask(self, *, prompt: bool) -> None:
        """Have the calling thread use the short slice, or the system's; cheap if it does."""
        here = self._here
        wanted_ns = self.slice_ns if prompt else 0
        if getattr(here, "slice_ns", None) != wanted_ns:
            here.slice_ns = wanted_ns
            set_time_slice(wanted_ns)


PROMPTNESS = Promptness()
"""Of this process."""
