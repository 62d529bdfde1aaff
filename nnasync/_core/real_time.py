"""Real-time priority of the system for the threads that deadlines hang on.

A thread that wakes beside busy ones may have to wait until the system takes the core away from one
of these, at the next tick of its clock: 4 ms at 250 Hz. A short time slice (`timeslice`) spares a
thread that wait while it has used less than its share of the cores. The thread of a loop that
serves a busy machine has not, nor has its process if its workers keep the cores busy. A real-time
thread runs at once, ahead of all that have no such priority, those of other programs, too. So it is
for threads that do little at a time, and only where it is asked for: that of the loop, and those
that wait for deadlines. What they start does not inherit it. It needs a privilege, or a limit that
allows it.
"""

from __future__ import annotations

import contextlib
import os
import threading

from nnasync._core.endings import renewed_in_child
from nnasync.errors import InvalidArgument
from nnasync.hal import Struct

_NOT_PERMITTED = (
    "real_time: the system lets this process have no real-time threads ({}); it takes the "
    "capability CAP_SYS_NICE or a limit RLIMIT_RTPRIO of 3 or more (LimitRTPRIO=3 of systemd, "
    "--cap-add=SYS_NICE of containers)"
)


class Policy(Struct, frozen=True):
    """How the system schedules a thread: the policy with its flags, and the priority within it."""

    number: int
    priority: int

    @staticmethod
    def here() -> Policy:
        """That of the calling thread."""
        return Policy(os.sched_getscheduler(0), os.sched_getparam(0).sched_priority)

    @property
    def is_real_time(self) -> bool:
        """Whether it is a real-time one."""
        return self.number & ~os.SCHED_RESET_ON_FORK in (os.SCHED_FIFO, os.SCHED_RR)

    def in_real_time(self, above_least: int = 2) -> Policy:
        """Returns a real-time one, which is not inherited, or itself if it is in real time.

        Its priority is so far above the least urgent one: 2 for threads of loops and deadlines, 1
        for workers, 0 for what these compute.
        """
        if self.is_real_time:
            return self
        priority = os.sched_get_priority_min(os.SCHED_RR) + above_least
        return Policy(os.SCHED_RR | os.SCHED_RESET_ON_FORK, priority)

    def apply(self) -> None:
        """Have the calling thread scheduled so; raises OSError where that is not permitted."""
        priority = os.sched_param(self.priority)
        try:
            os.sched_setscheduler(0, self.number, priority)
        except PermissionError:
            # Without privileges the flag stays: threads that are started inherit nothing then.
            os.sched_setscheduler(0, self.number | os.SCHED_RESET_ON_FORK, priority)


class _OfThread(threading.local):
    """How often the calling thread has it, and what it had before the first time."""

    held = 0
    usual = Policy(0, 0)


class RealTime:
    """Whether runtimes of the process want it, and for which threads."""

    def __init__(self) -> None:
        self.is_wanted = False
        """Threads that wait for deadlines look at it, and `follow` where it has changed."""
        self._lock = renewed_in_child(threading.Lock())
        self._open = 0
        self._here = _OfThread()

    def enter(self) -> None:
        """Give it to the calling thread, and to those that wait for deadlines, until it leaves.

        Raises InvalidArgument where the system does not let it.
        """
        here = self._here
        if not here.held:
            try:
                here.usual = Policy.here()
                here.usual.in_real_time().apply()
            except (AttributeError, OSError) as error:
                raise InvalidArgument(_NOT_PERMITTED.format(error)) from error
        here.held += 1
        self._count(1)

    def leave(self) -> None:
        """Undo one `enter` of this thread: the last one, in whatever order, gives it back."""
        here = self._here
        self._count(-1)
        here.held -= 1
        if not here.held:
            with contextlib.suppress(OSError):
                here.usual.apply()

    def follow(self, old: Policy | None) -> Policy | None:
        """Have the calling thread be as is wanted now.

        `old` is what it had before, if it is in real time; the same is returned for the next time.
        """
        if old is not None:
            with contextlib.suppress(OSError):
                old.apply()
            return None
        old = Policy.here()
        with contextlib.suppress(OSError):
            old.in_real_time().apply()
        return old

    def forget(self) -> None:
        """Want it no more: this is a child, in which no thread is in real time."""
        self._open = 0
        self._here = _OfThread()
        self.is_wanted = False

    def _count(self, change: int) -> None:
        with self._lock:
            self._open += change
            self.is_wanted = self._open > 0


REAL_TIME = RealTime()
"""Of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=REAL_TIME.forget)
