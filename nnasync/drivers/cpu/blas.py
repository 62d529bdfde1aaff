"""One BLAS thread a call: while runtimes are open, their workers are the parallelism.

To find the BLAS libraries of a process takes milliseconds, so that is left until the first plan is
made that computes with them. The limit holds for the process, and ends with the last runtime.
"""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["ONE_BLAS_THREAD", "OneBlasThread"]


class OneBlasThread:
    """The limit of BLAS to one thread, while somebody holds it; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._limits: Any = None

    def hold(self) -> None:
        """Want the limit from the next plan on."""
        with self._lock:
            self._holders += 1

    def apply(self) -> None:
        """Set the limit where somebody holds it; called when a plan is made."""
        with self._lock:
            if self._holders and self._limits is None:
                import threadpoolctl

                self._limits = threadpoolctl.threadpool_limits(1, user_api="blas")

    def release(self) -> None:
        """Restore what was there before, if nobody else holds the limit."""
        with self._lock:
            self._holders -= 1
            limits = None if self._holders else self._limits
            if limits is not None:
                self._limits = None
                limits.restore_original_limits()


ONE_BLAS_THREAD = OneBlasThread()
"""Of this process."""
