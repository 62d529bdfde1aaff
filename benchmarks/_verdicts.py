"""What paired rounds say of a limit: it holds, it does not, or they cannot tell."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nnasync.experiments.intervals import Interval, interval

__all__ = ["differences", "ratios", "told", "verdict"]


def differences(values: Sequence[float], base: Sequence[float]) -> Interval:
    """Returns the mean difference of two contestants, round by round, with its 95 % interval."""
    return _known([value - other for value, other in zip(values, base, strict=True)])


def ratios(values: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Returns the geometric mean of ratios, round by round, and the ends of its interval."""
    pairs = zip(values, base, strict=True)
    found = _known([math.log(max(value, 1e-12) / max(other, 1e-12)) for value, other in pairs])
    return math.exp(found.mean), math.exp(found.low), math.exp(found.high)


def told(middle: float, low: float, high: float) -> str:
    """Returns a ratio and the ends of its interval in short.

    After few rounds they may be infinite.
    """
    shown = [f"{each:.2f}" if each < 1000 else f"{each:.0e}" for each in (middle, low, high)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def verdict(low: float, high: float, *, at_least: float | None = None, at_most: float = 0) -> str:
    """Returns whether an interval keeps a limit, in words."""
    if at_least is not None:
        low, high, at_most = -high, -low, -at_least
    if high <= at_most:
        return "holds"
    return "does not hold" if low > at_most else "cannot tell"


def _known(values: Sequence[float]) -> Interval:
    """Returns the interval of a mean; it is infinite where one round gives no precision."""
    found = interval(values)
    if found is None or found.half is None:
        return Interval(values[0] if values else 0.0, math.inf, len(values))
    return found
