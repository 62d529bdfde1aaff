"""What open runtimes ask of the process and of its threads."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable

from nnasync._core.clock import now_ns
from nnasync._core.drivers.cpu.blas import ONE_BLAS_THREAD
from nnasync._core.endings import renewed_in_child
from nnasync._core.giving_way import UrgentWorker
from nnasync._core.os_threads import demote, make_nicer, niceness
from nnasync._core.real_time import REAL_TIME
from nnasync._core.runtime.options import Options
from nnasync._core.timeslice import PROMPTNESS, set_time_slice
from nnasync._core.workers import Worker
from nnasync.hal import Priority
from nnasync.machine.decisions import Decisions

_SHARE_OF_WORKERS = 0.7
"""A worker's slice, as a share of the loop's. That of the loop lasts for the inline work of a turn:
whoever is at its end when the system looks loses the core to any thread that has had less, also to
one of the lowest class, and until the next look."""


_OFFERED_US = {False: 50.0, True: 200.0}
"""How often the interpreter lock is offered by default, by whether real time is wanted."""


def _switch_interval_us(options: Options) -> float:
    """How often the interpreter lock is to be offered, 0 for as often as it is."""
    wanted_us = options.switch_interval_us
    return _OFFERED_US[options.real_time] if wanted_us is None else wanted_us


def slice_ns(options: Options) -> int:
    """The time slice that is asked for."""
    return int(options.time_slice_us * 1000)


def stall_budget_ns(options: Options) -> int:
    """How much inline work a turn of the loop may have."""
    return int(options.stall_budget_us * 1000)


def inline_budget_ns(options: Options, machine: Decisions) -> int:
    """How long an execution on the loop's thread may take, by the options or by the machine."""
    if options.inline_budget_us is not None:
        return int(options.inline_budget_us * 1000)
    return machine.inline_budget_ns


def settling_in(options: Options) -> Callable[[Worker], None]:
    """Returns what each new worker thread begins with; to be called on the thread of the loop."""
    least_nice = niceness() + options.worker_niceness
    wanted_ns = int(slice_ns(options) * _SHARE_OF_WORKERS)

    def settle_in(worker: Worker) -> None:
        if worker.nicer:
            make_nicer(least_nice)
        if Priority.LOW not in worker.priorities:
            set_time_slice(wanted_ns)
        else:
            PROMPTNESS.slice_ns = wanted_ns
            PROMPTNESS.ask(prompt=False)
            if worker.demoted:
                demote(threading.get_native_id())
        if options.real_time:
            with contextlib.suppress(OSError):  # The loop has it, so this one may have it, too.
                worker.urgent = UrgentWorker(now_ns)

    return settle_in


class LoopThread:
    """What a runtime asks of the system for the thread of its loop while it is open."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._old_slice_ns: int | None = None
        self._is_in_real_time = False

    def enter(self) -> None:
        """Ask for it; raises InvalidArgument where the system does not let it be in real time."""
        self._old_slice_ns = set_time_slice(slice_ns(self._options))
        if self._options.real_time:
            REAL_TIME.enter()
            self._is_in_real_time = True

    def leave(self) -> None:
        """Undo what of it was done, on the same thread."""
        if self._is_in_real_time:
            REAL_TIME.leave()
        if self._old_slice_ns is not None:
            set_time_slice(self._old_slice_ns)


class ProcessSettings:
    """What open runtimes need of the process: one BLAS thread a call, a short switch interval."""

    def __init__(self) -> None:
        self._lock = renewed_in_child(threading.Lock())
        self._open = 0
        self._interval_s = 0.0

    def enter(self, options: Options) -> None:
        """Change them as these options say, if no other runtime has."""
        if options.blas_threads is not None:
            ONE_BLAS_THREAD.hold()
        with self._lock:
            self._open += 1
            if self._open > 1:
                return
            self._interval_s = sys.getswitchinterval()
            interval_us = _switch_interval_us(options)
            if interval_us > 0:
                sys.setswitchinterval(interval_us * 1e-6)

    def leave(self, options: Options) -> None:
        """Restore them, if no other runtime needs them; `options` are those it entered with."""
        if options.blas_threads is not None:
            ONE_BLAS_THREAD.release()
        with self._lock:
            self._open -= 1
            if self._open == 0:
                sys.setswitchinterval(self._interval_s)


SETTINGS = ProcessSettings()
"""Of this process."""
