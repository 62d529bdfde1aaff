"""Signs of life of a service that is awaited.

A process can be there and do nothing: stopped, deadlocked, its loop stuck. While something is
awaited of it and nothing was heard for half of the patience, it is pinged; its loop answers that at
once, however long a compilation or an execution takes, since those run on other threads. Silence
through the other half, too, is what `has_stopped` says. While nothing is awaited there is no timer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from nnasync._core.clock import Watchdog, now_ns
from nnasync.errors import BadState

logger = logging.getLogger(__name__)

HANG_AFTER_S = 10.0
"""For how long a service that is awaited may give no sign of life."""


class Heartbeat:
    """Watches one service; each message received from it sets `heard_ns`."""

    def __init__(
        self,
        watchdog: Watchdog,
        is_awaited: Callable[[], bool],
        ping: Callable[[], object],
        alert: Callable[[], object],
    ) -> None:
        """`alert` is called on the watchdog's thread when `has_stopped` should be asked."""
        self._watchdog = watchdog
        self._is_awaited = is_awaited
        self._ping = ping
        self._alert = alert
        self._lock = threading.Lock()
        self._half_ns = 0
        self._watching = False
        self._pinged_ns = 0
        self.heard_ns = 0

    @property
    def patience_s(self) -> float:
        """Returns how long an awaited service may be silent; 0 before `begin`."""
        return 2 * self._half_ns * 1e-9

    def begin(self, patience_s: float) -> None:
        """Listen from now on; with a patience of 0 never."""
        self._half_ns = int(patience_s * 1e9) // 2
        self.heard_ns = now_ns()

    def expect(self) -> None:
        """Note that something is awaited; from any thread."""
        if self._is_watching() or not self._half_ns:
            return
        with self._lock:
            if self._is_watching():
                return
            self._watching = True
            self._pinged_ns = 0
            # What was not heard while nothing was awaited is no silence.
            self.heard_ns = now_ns()
        self._look_at(self.heard_ns)

    def has_stopped(self) -> bool:
        """Returns whether a ping has remained unanswered for half of the patience."""
        pinged_ns = self._pinged_ns
        if not pinged_ns or self.heard_ns >= pinged_ns:
            return False
        return now_ns() - pinged_ns >= self._half_ns

    def _is_watching(self) -> bool:
        return self._watching

    def _look(self) -> None:
        """On the watchdog's thread, while something is awaited."""
        if not self._is_awaited():
            with self._lock:
                self._watching = False
            if self._is_awaited():
                self.expect()
            return
        if self.has_stopped():
            self._alert()
            self._look_at(now_ns())
            return
        if now_ns() - max(self.heard_ns, self._pinged_ns) >= self._half_ns:
            self._pinged_ns = now_ns()
            self._ping()
        self._look_at(max(self.heard_ns, self._pinged_ns))

    def _look_at(self, since_ns: int) -> None:
        """Look again when half of the patience has passed since then."""
        try:
            self._watchdog.arm(since_ns + self._half_ns, self._look)
        except BadState:
            pass  # The link is over.
        except RuntimeError as error:
            # No thread: what is awaited next tries again.
            logger.warning("nobody looks for signs of life of a service for now: %s", error)
            with self._lock:
                self._watching = False
