"""A descriptor that is closed as soon as the process is killed, however slowly that dies.

The descriptors of a process are closed when the last of its threads has died, and a thread at the
lowest priority of the system dies when a core is free for it: measured up to 0.6 s after SIGKILL,
beside two busy processes. So one thread of ordinary priority takes the descriptor out of those that
all threads share. It does nothing but hold it, dies first, and who holds the other end knows.

Where the system does not allow that, or has no thread left, the descriptor is closed with all
others.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

from nnasync._core.timeslice import set_time_slice

_CLONE_FILES = 0x400
_MOST = 1 << 20
_SLICE_NS = 100_000


def hold(fd: int) -> None:
    """Has a thread hold the descriptor, which nobody else may use any more."""
    os.set_inheritable(fd, False)
    held = threading.Event()
    never = threading.Event()
    is_apart = False

    def run() -> None:
        nonlocal is_apart
        is_apart = _apart()
        if is_apart:
            os.closerange(0, fd)
            os.closerange(fd + 1, _MOST)
        held.set()
        if is_apart:
            set_time_slice(_SLICE_NS)
            never.wait()

    try:
        threading.Thread(target=run, name="nnasync-lifeline", daemon=True).start()
    except RuntimeError:
        return
    held.wait()
    if is_apart:
        os.close(fd)


def _apart() -> bool:
    """Gives the calling thread its own table of descriptors; returns whether that worked."""
    if sys.platform != "linux":
        return False
    unshare: Any = ctypes.CDLL(None, use_errno=True).unshare
    return bool(unshare(_CLONE_FILES) == 0)
