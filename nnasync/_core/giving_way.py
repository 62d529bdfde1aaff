"""Workers in real time, which give way while an engine computes.

All threads of a process share the interpreter lock. One of the usual priority that loses its core
while it holds the lock stops the loop for as long as the system lets it wait, and with the loop
whatever HIGH work is to come. The remedy is the priority ceiling (Sha, Rajkumar and Lehoczky,
1990): who holds what urgent threads need is as urgent as they are. So where real time is asked for
(`real_time`), workers have it, too, one step below the loop. They give way, which is to have the
usual priority, while an engine computes for them without the lock. They do not hold it either while
they step down, since the system may give the core to another thread in that very moment.

A run of HIGH priority does not give way, as long as there is an allowance, half of the time that
passes: its computing is in real time, too, but another step down. Else a thread that was woken for
the lock might wait for a core behind that computing, and all that want the lock wait with it, as a
trace showed with glibc 2.36. Once the allowance is used up, such computing gives way as well. An
engine that does not say when it computes never steps down; once the allowance is exceeded by far,
whole runs give way.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from nnasync._core.real_time import REAL_TIME, Policy

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_SHARE = 0.5
_SAVED_NS = 50_000_000


class Allowance:
    """The time of a core that a thread may still use without giving way: a share of what passes.

    At most `_SAVED_NS` are saved. What was taken beyond that is paid back before there is more.
    """

    def __init__(self, now_ns: int) -> None:
        self._left_ns = float(_SAVED_NS)
        self._asked_ns = now_ns

    def left_ns(self, now_ns: int) -> float:
        """Returns what is left for a run that begins now; less than 0 where too much was taken."""
        gained_ns = _SHARE * (now_ns - self._asked_ns)
        self._asked_ns = now_ns
        self._left_ns = min(self._left_ns + gained_ns, _SAVED_NS)
        return self._left_ns

    def take(self, duration_ns: int) -> None:
        """Notes what a run has used while it did not give way."""
        self._left_ns -= duration_ns


class UrgentWorker:
    """A worker thread that is in real time except where it gives way; for that thread alone."""

    def __init__(
        self, now_ns: Callable[[], int], used_ns: Callable[[], int] = time.thread_time_ns
    ) -> None:
        """Raises OSError where the system does not let the calling thread be in real time.

        `used_ns` tells how much of a core the thread has used.
        """
        self._now_ns, self._used_ns = now_ns, used_ns
        usual = Policy.here()
        ahead = usual.in_real_time(above_least=1)
        self._computing = usual.in_real_time(above_least=0)
        ahead.apply()
        usual.apply()
        self._usual = Policy.here()  # With a flag that only a privilege would clear, perhaps.
        ahead.apply()
        self._ahead_is = 0, ahead.number, os.sched_param(ahead.priority)
        self._allowance = Allowance(now_ns())
        self._steps_down_to: Policy | None = self._computing
        self._gave_way_ns = 0
        _HERE.worker = self

    def run(self, run: Callable[[*Ts], object], *arguments: *Ts, is_high: bool) -> None:
        """Calls what runs an execution; its computing gives way unless its priority is HIGH."""
        left_ns = self._allowance.left_ns(self._now_ns())
        if left_ns < -_SAVED_NS:
            self._step_down(self._usual, run, *arguments)
            return
        begun_ns, self._gave_way_ns = self._used_ns(), 0
        self._steps_down_to = self._computing if is_high and left_ns > 0 else self._usual
        try:
            run(*arguments)
        finally:
            self._steps_down_to = self._computing
            self._allowance.take(self._used_ns() - begun_ns - self._gave_way_ns)

    @property
    def gives_way(self) -> bool:
        """Whether the computing of the run that is under way is to give way."""
        return self._steps_down_to is self._usual

    def compute(self, call: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Calls what computes without the interpreter lock, and steps down meanwhile."""
        policy = self._steps_down_to
        if policy is None:
            return call(*arguments)
        if policy is not self._usual:
            return self._step_down(policy, call, *arguments)
        begun_ns = self._used_ns()
        try:
            return self._step_down(policy, call, *arguments)
        finally:
            self._gave_way_ns += self._used_ns() - begun_ns

    def _step_down(self, policy: Policy, call: Callable[[*Ts], T], *arguments: *Ts) -> T:
        set_policy, ahead = os.sched_setscheduler, self._ahead_is
        before, self._steps_down_to = self._steps_down_to, None
        _leave_to_others(policy)
        try:
            return call(*arguments)
        finally:
            set_policy(*ahead)  # At once: with each step before it, the thread could lose its core.
            self._steps_down_to = before


def _leave_to_others(policy: Policy) -> None:
    """Gives the calling thread a lower policy, and lets go of the interpreter lock meanwhile."""
    priority = ctypes.c_int(policy.priority)
    if _set_scheduler()(0, policy.number, ctypes.byref(priority)) != 0:
        policy.apply()


@functools.cache
def _set_scheduler() -> Any:
    """Returns the C library's function; that of `os` holds the interpreter lock."""
    return ctypes.CDLL(None).sched_setscheduler


class _OfThread(threading.local):
    worker: UrgentWorker | None = None


_HERE = _OfThread()


def giving_way(
    call: Callable[[*Ts], T], apart: Callable[[*Ts], T] | None = None
) -> Callable[[*Ts], T]:
    """Returns a function that calls an engine, which computes without the interpreter lock.

    On a worker in real time it steps down meanwhile. Where `call` does much with the lock, too,
    `apart` is to have another thread of the engine compute: it is called in its place by whom gives
    way. While nobody wants real time the function is `call`.
    """
    if not REAL_TIME.is_wanted:
        return call

    def called(*arguments: *Ts) -> T:
        worker = _HERE.worker
        if worker is None:
            return call(*arguments)
        if apart is not None and worker.gives_way:
            return apart(*arguments)
        return worker.compute(call, *arguments)

    return called
