"""How late an event loop hears of what other threads post to it, as far as that is known.

Each wake-up is a sample: the time from its posting to its running. The estimate is the least of the
last three, so one stall of the loop, however long, says nothing, and one quick turn is enough to
forget a slow time. It also fades: it halves each time that as much time has passed as it was, or a
tenth of a second. So it is a lower bound of what the next wake-up takes, as far as one can be had.

Whoever refuses work on the strength of it posts a wake-up instead, which brings the next sample:
what is refused is refused for no longer than the loop really lags.
"""

from __future__ import annotations

_KEPT = 3
_HALVES_AFTER_NS = 100_000_000


class Lag:
    """The lag of one loop; pure: times are arguments."""

    __slots__ = ("_at_ns", "_least_ns", "_samples")

    def __init__(self) -> None:
        self._samples = [0] * _KEPT
        self._least_ns = 0
        self._at_ns = 0

    def observe(self, lag_ns: int, now_ns: int) -> None:
        """Take in how long a wake-up took that runs now."""
        samples = self._samples
        del samples[0]
        samples.append(lag_ns)
        self._least_ns = min(samples)
        self._at_ns = now_ns

    def estimate_ns(self, now_ns: int) -> float:
        """Returns the least time that a wake-up posted now takes."""
        least_ns = self._least_ns
        if least_ns <= 0:
            return 0.0
        age_ns = max(0, now_ns - self._at_ns)
        return float(least_ns * 2.0 ** -(age_ns / max(least_ns, _HALVES_AFTER_NS)))
