"""Whether a device is worse than the baseline, for certain or not at all.

Both answered the same data, so each sequence gives a pair, and what counts is the mean of the
differences: what makes a sequence hard makes it hard for both, and falls out. Its interval is
Student's, with 95 % confidence. A device is worse where all of that interval is on the wrong side,
by more than the margin that a score allows.

Where a sequence is either right or wrong, differences are 0 and 1 and few, far from a normal
distribution. There the exact test of McNemar must agree: of the sequences that only one of the two
got right, as many or more lost ones would be found in less than 2.5 % of the cases, if the two were
equally good.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from nnasync.experiments.intervals import interval
from nnasync.suites.benchmark.evaluators import Score
from nnasync.suites.results import Better

LEAST_PAIRS = 5
_LEVEL = 0.025


class PairedVerdict(msgspec.Struct, frozen=True):
    """By how much a device is worse on average, and within what; negative where it is better.

    `is_worse` is None where there is too little to compare.
    """

    loss: float
    low: float
    high: float
    pairs: int
    is_worse: bool | None


def compared(device: Score, base: Score) -> PairedVerdict | None:
    """The verdict on a score; None where neither less nor more of it is better, or nothing is."""
    if device.better is Better.NEITHER or len(device.items) != len(base.items):
        return None
    sign = 1 if device.better is Better.LESS else -1
    losses = [sign * (mine - its) for mine, its in zip(device.items, base.items, strict=True)]
    found = interval(losses)
    if found is None or not all(math.isfinite(loss) for loss in losses):
        return None
    is_worse: bool | None = None
    if found.count >= LEAST_PAIRS:
        is_worse = found.low > device.margin and _is_significant(losses)
    return PairedVerdict(found.mean, found.low, found.high, found.count, is_worse)


def mcnemar(lost: int, won: int) -> float:
    """Returns the probability of at least as many lost pairs if both were equally good."""
    count = lost + won
    return math.fsum(math.comb(count, k) / 2**count for k in range(lost, count + 1))


def _is_significant(losses: Sequence[float]) -> bool:
    if not set(losses) <= {-1.0, 0.0, 1.0}:
        return True
    lost, won = losses.count(1.0), losses.count(-1.0)
    return mcnemar(lost, won) <= _LEVEL
