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

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from nnasync.experiments.checks import MOST, at_least
from nnasync.experiments.record import Outcome, RequestRow, RunResult, Span

T = TypeVar("T")

RESTS_NS = (0, 500_000, 2_000_000, 6_000_000)
"""A loop that has had nothing to do for so long, and not for the next time, is late alike."""

_KEPT, _FEW = 199, 5
_BLOCK = 1024


class AfterRest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A delay of a loop that has had nothing to do for `from_ns` at least, as `Delays` has them."""

    from_ns: int
    values_ns: tuple[int, ...]

    def __post_init__(self) -> None:
        at_least("from_ns", self.from_ns, 0)
        _check("values_ns", self.values_ns)


class Delays(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of each delay in nanoseconds, any of which is as likely as any other.

    comes_ns: from the planned time of a request until the loop begins its call. begins_ns: from the
    submission until a worker begins that had nothing to do. follows_ns: from the end of a run until
    the same worker begins the next one. device_ns: how much longer the device of a real run takes
    than a request costs. heard_ns: from the end of a run until the loop takes up its answer.
    comes_after and heard_after: the same by how long the loop had nothing to do before, shortest
    rest first; where there are none the delays do not depend on it.
    """

    comes_ns: tuple[int, ...] = (0,)
    begins_ns: tuple[int, ...] = (0,)
    follows_ns: tuple[int, ...] = (0,)
    device_ns: tuple[int, ...] = (0,)
    heard_ns: tuple[int, ...] = (0,)
    comes_after: tuple[AfterRest, ...] = ()
    heard_after: tuple[AfterRest, ...] = ()

    def __post_init__(self) -> None:
        for name in _NAMES:
            _check(name, getattr(self, name))


_NAMES = ("comes_ns", "begins_ns", "follows_ns", "device_ns", "heard_ns")


def delays_of(run: RunResult, cost_ns: int, call_ns: int) -> Delays:
    """The delays of a real run of one stream, of which every request was kept.

    Each request costs `cost_ns`; `call_ns` is how long a call keeps the loop, half of it before
    the submission and half after the answer.
    """
    spans = {span.request: span for span in run.spans}
    rows = [row for row in run.requests if row.outcome is Outcome.MET and row.request in spans]
    ran = [(row, spans[row.request]) for row in rows]
    begins, follows = _waits(ran, run.cores)
    half_ns = call_ns // 2
    busy_ns = sorted(itertools.chain(*((row.queued_ns, row.ended_ns) for row in rows)))
    comes = [(row.arrived_ns, row.queued_ns - row.arrived_ns - half_ns) for row in rows]
    heard = [(span.ended_ns, row.ended_ns - span.ended_ns - half_ns) for row, span in ran]
    return Delays(
        comes_ns=_kept([delay for _, delay in comes]),
        begins_ns=_kept(begins),
        follows_ns=_kept(follows),
        device_ns=_kept([span.ended_ns - span.began_ns - cost_ns for _, span in ran]),
        heard_ns=_kept([delay for _, delay in heard]),
        comes_after=tuple(_after_rests(comes, busy_ns)),
        heard_after=tuple(_after_rests(heard, busy_ns)),
    )


def _after_rests(delays: Sequence[tuple[int, int]], busy_ns: Sequence[int]) -> Iterator[AfterRest]:
    """Delays that begin at certain times, by how long the loop was not busy before."""
    found: list[list[int]] = [[] for _ in RESTS_NS]
    for at_ns, delay in delays:
        before = bisect.bisect_left(busy_ns, at_ns) - 1
        if before >= 0:
            found[bisect.bisect_right(RESTS_NS, at_ns - busy_ns[before]) - 1].append(delay)
    for from_ns, values in zip(RESTS_NS, found, strict=True):
        if len(values) >= _FEW:
            yield AfterRest(from_ns, _kept(values))


def middle_of(found: Sequence[Delays]) -> Delays:
    """Each quantile is the median of those of several measurements."""
    middle = {name: _median([getattr(each, name) for each in found]) for name in _NAMES}
    return Delays(
        **middle,
        comes_after=_middle_after([each.comes_after for each in found]),
        heard_after=_middle_after([each.heard_after for each in found]),
    )


def _middle_after(found: Sequence[tuple[AfterRest, ...]]) -> tuple[AfterRest, ...]:
    """What is known of rests that most of the measurements had."""
    groups: dict[int, list[tuple[int, ...]]] = {}
    for after in itertools.chain(*found):
        groups.setdefault(after.from_ns, []).append(after.values_ns)
    return tuple(
        AfterRest(from_ns, _median(group))
        for from_ns, group in sorted(groups.items())
        if 2 * len(group) > len(found)
    )


def _median(values: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    full = [each for each in values if len(each) == _KEPT] or [(0,)]
    return tuple(np.median(np.array(full), axis=0).astype(int).tolist())


def _check(name: str, values: Sequence[int]) -> None:
    at_least(f"the number of values in {name}", len(values), 1)
    for number, value in enumerate(values):
        at_least(f"{name}[{number}]", value, 0, MOST * 1e6)


def _waits(ran: list[tuple[RequestRow, Span]], cores: int) -> tuple[list[int], list[int]]:
    """What passed until a worker began: one that slept, and one that had just ended something."""
    queued, began, ended = np.array(
        [(row.queued_ns, span.began_ns, span.ended_ns) for row, span in ran], np.int64
    ).T.reshape(3, -1)
    begins: list[int] = []
    follows: list[int] = []
    for queued_ns, began_ns in zip(queued.tolist(), began.tolist(), strict=True):
        in_front = np.count_nonzero((queued < queued_ns) & (ended > queued_ns))
        if in_front < cores:
            begins.append(began_ns - queued_ns)
        elif (before := ended[ended <= began_ns]).size:
            follows.append(began_ns - int(before.max()))
    return begins, follows


def _kept(values: Sequence[int]) -> tuple[int, ...]:
    """Some quantiles of all values, evenly spaced; none is negative."""
    if not values:
        return (0,)
    shares = (np.arange(_KEPT) + 0.5) / _KEPT
    found = np.quantile(np.maximum(values, 0), shares, method="nearest")
    return tuple(found.tolist())


def draws(values: Sequence[T], *seeds: int) -> Iterator[T]:
    """Endlessly one of these values, each as likely as any other; always the same for these seeds.

    One value alone is repeated.
    """
    if len(values) == 1:
        return itertools.repeat(values[0])
    return _drawn(values, np.random.default_rng(seeds))


def _drawn(values: Sequence[T], rng: np.random.Generator) -> Iterator[T]:
    while True:
        for place in rng.integers(len(values), size=_BLOCK).tolist():
            yield values[place]
