"""What open runtimes ask of the process and of its threads."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from nnasync.hal import Priority
from nnasync.runtime.options import Options
from nnasync.timeslice import set_time_slice

__all__ = ["SETTINGS", "ProcessSettings", "settle_in", "slice_ns"]


def slice_ns(options: Options) -> int:
    """The time slice that is asked for."""
    return int(options.time_slice_us * 1000)


def settle_in(options: Options, priorities: tuple[Priority, ...]) -> None:
    """What a new worker thread does first; it inherited the time slice of whoever started it."""
    if Priority.LOW not in priorities:
        set_time_slice(slice_ns(options))
        return
    set_time_slice(0)
    if options.low_os_priority and hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


class ProcessSettings:
    """What open runtimes need of the process: one BLAS thread a call, a short switch interval.

    Finding BLAS takes some milliseconds, so that is done beside the opening.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._interval_s = 0.0
        self._blas: Any = None
        self._limiting = threading.Thread()

    def enter(self, switch_interval_s: float) -> None:
        """Change them, if no other runtime has."""
        with self._lock:
            self._open += 1
            if self._open > 1:
                return
            self._interval_s = sys.getswitchinterval()
            if switch_interval_s > 0:
                sys.setswitchinterval(switch_interval_s)
            self._limiting = threading.Thread(target=self._limit_blas, name="nnasync-blas")
            self._limiting.start()

    def settled(self) -> None:
        """Wait until they are changed; not to be called on a loop."""
        self._limiting.join()

    def leave(self) -> None:
        """Restore them, if no other runtime needs them."""
        with self._lock:
            self._open -= 1
            if self._open == 0:
                sys.setswitchinterval(self._interval_s)
                self._limiting.join()
                self._blas.restore_original_limits()

    def _limit_blas(self) -> None:
        import threadpoolctl

        self._blas = threadpoolctl.threadpool_limits(1, user_api="blas")


SETTINGS = ProcessSettings()
"""Of this process."""
