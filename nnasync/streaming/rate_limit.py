"""At most so many items a second, by the times of their capture.

Times are held to a grid of periods that begins with the first item, so that the mean rate is kept
however the times jitter; who is late by more than a period begins a new grid.
"""

from __future__ import annotations

import math

from nnasync._core.arguments import check_positive


class RateLimit:
    """Decides item by item what passes; raises InvalidArgument for a rate that is not positive."""

    def __init__(self, rate_hz: float) -> None:
        check_positive("rate_hz", rate_hz)
        self.period_ns = 1e9 / rate_hz
        self._due_ns = -math.inf

    def takes(self, captured_ns: int) -> bool:
        """Returns whether an item of this time passes, and counts it then."""
        if captured_ns < self._due_ns:
            return False
        is_behind = captured_ns - self._due_ns > self.period_ns
        self._due_ns = (captured_ns if is_behind else self._due_ns) + self.period_ns
        return True
