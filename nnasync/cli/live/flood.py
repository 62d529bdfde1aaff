"""How many messages a page may send: a bucket of tokens that fills at a steady rate."""

from __future__ import annotations


class Allowance:
    """`burst` messages at once, and `rate_hz` a second in the long run; pure, time is passed in."""

    def __init__(self, rate_hz: float, burst: int) -> None:
        self._rate_hz = rate_hz
        self._burst = burst
        self._left = float(burst)
        self._at_ns: int | None = None

    def take(self, now_ns: int) -> bool:
        """Returns whether one more message is allowed now; if so it is counted."""
        elapsed_ns = 0 if self._at_ns is None else max(now_ns - self._at_ns, 0)
        self._at_ns = now_ns
        self._left = min(self._left + elapsed_ns * self._rate_hz / 1e9, self._burst)
        if self._left < 1:
            return False
        self._left -= 1
        return True
