"""How late things happen on a machine: measured delays on a request's way, and draws of them.

A request for real is late at five places. Its timer rings late, and the loop has to wake, before
its call begins. A worker that sleeps begins late; one that has just ended something needs a moment
before it goes on with the next. The device that spends a cost returns a little late. And whoever
waits hears of the answer late. None of these is constant, and a mean of them would hide what makes
the slowest requests slow. How late a loop is depends on how long it has had nothing to do: after
ten milliseconds its caches are cold and its core sleeps, and it is twice as late as after one; so
it is later at low loads than at high ones.

What real runs of one stream measured is kept as it was, some hundred values of each, of which a
simulation draws. Every value is the middle one of several runs, so that what disturbs the machine
for a moment leaves nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from nnasync.experiments.checks import MOST, at_least

T = TypeVar("T")

KEPT = 199
"""So many values of a delay are kept."""

_BLOCK = 1024


class AfterRest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values of a delay after the loop had nothing to do for `from_ns` at least.

    See `Delays`.
    """

    from_ns: int
    values_ns: tuple[int, ...]

    def __post_init__(self) -> None:
        at_least("from_ns", self.from_ns, 0)
        _check("values_ns", self.values_ns)


class Delays(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of each delay in nanoseconds, any of which is as likely as any other.

    told_ns: from the planned time of a request until the loop is told that it is due, 0 where that
    is a part of comes_ns: from then until the loop begins its call. begins_ns: from the submission
    until a worker begins that had nothing to do. follows_ns: from the end of a run until
    the same worker begins the next one. device_ns: how much longer the device of a real run takes
    than a request costs. heard_ns: from the end of a run until the loop takes up its answer.
    calls_ns and answers_ns: how long the loop takes for a call, or an answer, that had to wait
    until it was done with something else; not less than alone, and 0 where that is meant.
    comes_after and heard_after: the same by how long the loop had nothing to do before, shortest
    rest first; where there are none the delays do not depend on it.
    """

    comes_ns: tuple[int, ...] = (0,)
    begins_ns: tuple[int, ...] = (0,)
    follows_ns: tuple[int, ...] = (0,)
    device_ns: tuple[int, ...] = (0,)
    heard_ns: tuple[int, ...] = (0,)
    told_ns: tuple[int, ...] = (0,)
    calls_ns: tuple[int, ...] = (0,)
    answers_ns: tuple[int, ...] = (0,)
    comes_after: tuple[AfterRest, ...] = ()
    heard_after: tuple[AfterRest, ...] = ()

    def __post_init__(self) -> None:
        for name in _NAMES:
            _check(name, getattr(self, name))


_NAMES = (
    "comes_ns",
    "begins_ns",
    "follows_ns",
    "device_ns",
    "heard_ns",
    "told_ns",
    "calls_ns",
    "answers_ns",
)


def middle_of(found: Sequence[Delays]) -> Delays:
    """Combines several measurements: each quantile is the median of theirs."""
    middle = {name: _median([getattr(each, name) for each in found]) for name in _NAMES}
    return Delays(
        **middle,
        comes_after=_middle_after([each.comes_after for each in found]),
        heard_after=_middle_after([each.heard_after for each in found]),
    )


def _middle_after(found: Sequence[tuple[AfterRest, ...]]) -> tuple[AfterRest, ...]:
    """Combines the delays after rests that most of the measurements have."""
    groups: dict[int, list[tuple[int, ...]]] = {}
    for after in itertools.chain(*found):
        groups.setdefault(after.from_ns, []).append(after.values_ns)
    return tuple(
        AfterRest(from_ns, _median(group))
        for from_ns, group in sorted(groups.items())
        if 2 * len(group) > len(found)
    )


def _median(values: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    full = [each for each in values if len(each) == KEPT] or [(0,)]
    return tuple(np.median(np.array(full), axis=0).astype(int).tolist())


def _check(name: str, values: Sequence[int]) -> None:
    at_least(f"the number of values in {name}", len(values), 1)
    for number, value in enumerate(values):
        at_least(f"{name}[{number}]", value, 0, MOST * 1e6)


def draws(values: Sequence[T], *seeds: int) -> Iterator[T]:
    """Yields these values at random without end, each as likely; the seeds fix their order.

    One value alone is repeated.
    """
    if len(values) == 1:
        return itertools.repeat(values[0])
    return _drawn(values, np.random.default_rng(seeds))


def _drawn(values: Sequence[T], rng: np.random.Generator) -> Iterator[T]:
    while True:
        for place in rng.integers(len(values), size=_BLOCK).tolist():
            yield values[place]
