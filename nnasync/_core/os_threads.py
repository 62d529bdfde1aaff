"""Threads as the system sees them: which there are, how long they ran, the lowest OS priority.

Linux tells the processor time of any thread of the process, also of those that a library started.
Elsewhere the answers are empty, and nothing is asked of the system.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

_TASKS = "/proc/self/task"
_SCHEDULED_TIME_OF_A_THREAD = 0b110

MOST_NICE = 19
"""The niceness of the system that leaves a thread the smallest share of a core."""


def threads_of_others() -> frozenset[int]:
    """The system's numbers of the threads of this process that Python did not start."""
    try:
        names = os.listdir(_TASKS)
    except OSError:
        return frozenset()
    return frozenset(map(int, names)) - {each.native_id for each in threading.enumerate()}


def ran_ns(thread: int) -> int | None:
    """Processor time of a thread so far; None where the system does not tell, or it has ended."""
    if sys.platform != "linux":
        return None
    try:
        # The kernel's own clock of each thread, by its number.
        return time.clock_gettime_ns((~thread << 3) | _SCHEDULED_TIME_OF_A_THREAD)
    except OSError:
        return None


def niceness() -> int:
    """Returns how nice the calling thread is, from -20 to 19; 0 where the system cannot tell."""
    return os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0


def make_nicer(least: int) -> None:
    """Has the calling thread be at least so nice, 19 at most, which takes no privilege.

    It takes no core from threads of the usual OS priority when it wakes, either (SCHED_BATCH),
    and loses the time slice that it has asked for. Does nothing but on Linux: elsewhere it would
    be the whole process that is nicer.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        if niceness() < least:
            os.setpriority(os.PRIO_PROCESS, 0, min(least, MOST_NICE))
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def demote(thread: int) -> bool:
    """Have a thread run only where nothing else wants the core, for good; whether that worked.

    The idle class, and where there is none only the least share. No privilege is needed to get
    there, but one to come back.
    """
    if not hasattr(os, "setpriority"):
        return False
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, MOST_NICE)
        if not hasattr(os, "SCHED_IDLE"):
            return False
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        return True
    return False
