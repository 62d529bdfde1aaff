"""What open runtimes ask of the process and of its threads."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from nnasync.drivers.cpu.blas import ONE_BLAS_THREAD
from nnasync.hal import Priority
from nnasync.runtime.options import Options
from nnasync.timeslice import set_time_slice
from nnasync.workers import Worker

__all__ = ["SETTINGS", "ProcessSettings", "settle_in", "slice_ns"]


def slice_ns(options: Options) -> int:
    """The time slice that is asked for."""
    return int(options.time_slice_us * 1000)


def settle_in(options: Options, worker: Worker) -> None:
    """What a new worker thread does first; it inherited the time slice of whoever started it."""
    if Priority.LOW not in worker.priorities:
        set_time_slice(slice_ns(options))
        return
    set_time_slice(0)
    gives_way = worker.is_alone if options.low_os_priority == "alone" else options.low_os_priority
    if gives_way and hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        # A thread of that class runs only where nothing else wants the core, however nice that is.
        if hasattr(os, "SCHED_IDLE"):
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class ProcessSettings:
    """What open runtimes need of the process: one BLAS thread a call, a short switch interval."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._interval_s = 0.0

    def enter(self, switch_interval_s: float) -> None:
        """Change them, if no other runtime has."""
        ONE_BLAS_THREAD.hold()
        with self._lock:
            self._open += 1
            if self._open > 1:
                return
            self._interval_s = sys.getswitchinterval()
            if switch_interval_s > 0:
                sys.setswitchinterval(switch_interval_s)

    def leave(self) -> None:
        """Restore them, if no other runtime needs them."""
        ONE_BLAS_THREAD.release()
        with self._lock:
            self._open -= 1
            if self._open == 0:
                sys.setswitchinterval(self._interval_s)


SETTINGS = ProcessSettings()
"""Of this process."""
