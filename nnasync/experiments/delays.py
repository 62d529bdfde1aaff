"""How late things happen on a machine: measured delays on a request's way, and draws of them.

A request for real is late at five places. Its timer rings late, and the loop has to wake, before
its call begins. A worker that sleeps begins late; one that has just ended something needs a moment
before it goes on with the next. The device that spends a cost returns a little late. And whoever
waits hears of the answer late. None of these is constant, and a mean of them would hide what makes
the slowest requests slow. So what real runs of one stream measured is kept as it was, some hundred
values of each, of which a simulation draws. Every value is the middle one of several runs, so that
what disturbs the machine for a moment leaves nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from nnasync.experiments.checks import MOST, at_least
from nnasync.experiments.record import Outcome, RequestRow, RunResult, Span

T = TypeVar("T")

_KEPT = 199
_BLOCK = 1024


class Delays(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of each delay in nanoseconds, any of which is as likely as any other.

    comes_ns: from the planned time of a request until the loop begins its call. begins_ns: from the
    submission until a worker begins that had nothing to do. follows_ns: from the end of a run until
    the same worker begins the next one. device_ns: how much longer the device of a real run takes
    than a request costs. heard_ns: from the end of a run until the loop takes up its answer.
    """

    comes_ns: tuple[int, ...] = (0,)
    begins_ns: tuple[int, ...] = (0,)
    follows_ns: tuple[int, ...] = (0,)
    device_ns: tuple[int, ...] = (0,)
    heard_ns: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            values = getattr(self, name)
            at_least(f"the number of values in {name}", len(values), 1)
            for number, value in enumerate(values):
                at_least(f"{name}[{number}]", value, 0, MOST * 1e6)


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
    return Delays(
        comes_ns=_kept([row.queued_ns - row.arrived_ns - half_ns for row in rows]),
        begins_ns=_kept(begins),
        follows_ns=_kept(follows),
        device_ns=_kept([span.ended_ns - span.began_ns - cost_ns for _, span in ran]),
        heard_ns=_kept([row.ended_ns - span.ended_ns - half_ns for row, span in ran]),
    )


def middle_of(found: Sequence[Delays]) -> Delays:
    """Each quantile is the median of those of several measurements."""
    names = Delays.__struct_fields__
    values = {name: [getattr(each, name) for each in found] for name in names}
    return Delays(**{name: _median(each) for name, each in values.items()})


def _median(values: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    full = [each for each in values if len(each) == _KEPT] or [(0,)]
    return tuple(np.median(np.array(full), axis=0).astype(int).tolist())


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
