"""One BLAS thread a call: while runtimes are open, their workers are the parallelism.

To find the BLAS libraries of a process takes milliseconds, so that is left until the first plan is
made that computes with them. The limit holds for the process, and ends with the last runtime. A
thread that has set a limit itself keeps its own (OpenBLAS remembers it by thread), which is why the
thread of an event loop, that restores it in the end, has to follow.
"""

from __future__ import annotations

import threading
from typing import Any

from nnasync._core.endings import renewed_in_child


class OneBlasThread:
    """The limit of BLAS to one thread, while somebody holds it; thread-safe."""

    def __init__(self) -> None:
        self._lock = renewed_in_child(threading.Lock())
        self._holders = 0
        self._limits: dict[int, Any] = {}
        self._libraries: Any = None

    def hold(self) -> None:
        """Want the limit from the next plan on."""
        with self._lock:
            self._holders += 1

    def apply(self) -> None:
        """Set the limit where somebody holds it; called when a plan is made."""
        with self._lock:
            if self._holders and not self._limits:
                self._limit_this_thread()

    def follow(self) -> None:
        """Have this thread keep to the limit, if it was set by another one."""
        with self._lock:
            if self._limits and threading.get_ident() not in self._limits:
                self._limit_this_thread()

    def release(self) -> None:
        """Restore what was there before, if nobody else holds the limit."""
        with self._lock:
            self._holders -= 1
            if self._holders or not self._limits:
                return
            limits = next(iter(self._limits.values()))
            self._limits = {}
            limits.restore_original_limits()

    def _limit_this_thread(self) -> None:
        import threadpoolctl

        if not self._limits:
            # Not again for a thread that follows, which may be that of an event loop.
            self._libraries = threadpoolctl.ThreadpoolController()
        limits = self._libraries.limit(limits=1, user_api="blas")
        self._limits[threading.get_ident()] = limits


ONE_BLAS_THREAD = OneBlasThread()
"""Of this process."""
