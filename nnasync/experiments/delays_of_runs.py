"""The delays that real runs show, from the rows and spans that were kept of them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nnasync.experiments.delays import KEPT, AfterRest, Delays
from nnasync.experiments.record import Outcome, RequestRow, RunResult, Span

RESTS_NS = (0, 500_000, 2_000_000, 6_000_000)
"""A loop that has had nothing to do for so long, and not for the next time, is late alike."""

_FEW, _ENOUGH, _BEYOND = 5, 20, 4


class _Late(NamedTuple):
    """A delay, when it began, and how long the loop had done nothing by then; negative: unknown."""

    at_ns: int
    delay_ns: int
    rested_ns: int = -1


class _Seen(NamedTuple):
    """All delays of a run."""

    comes: list[_Late]
    begins: list[_Late]
    follows: list[_Late]
    heard: list[_Late]


def delays_of(run: RunResult, cost_ns: int, call_ns: int) -> Delays:
    """The delays of a real run of one stream, of which every request was kept.

    Each request costs `cost_ns`; `call_ns` is how long a call keeps the loop, half of it before
    the submission and half after the answer.
    """
    lengths_ns = [span.ended_ns - span.began_ns for _, span in _in_one_piece(run)]
    return _delays(_seen(run, call_ns), [length_ns - cost_ns for length_ns in lengths_ns])


def delays_by_company(runs: Sequence[RunResult], call_ns: int) -> tuple[Delays, ...]:
    """The delays of real runs of networks, by how many other requests are under way.

    Those that have come, and have not been run to their end: from none to some more than there are
    cores, of which the last stands for all beyond. Where that many were hardly ever under way, the
    delays are those of the nearest number.
    """
    seen = [_by_company(_seen(run, call_ns), run) for run in runs]
    pooled = [_pooled(each) for each in zip(*seen, strict=True)]
    return tuple(_delays(_nearest(pooled, number), []) for number in range(len(pooled)))


def quantiles(values: Sequence[int]) -> tuple[int, ...]:
    """Some quantiles of all values, evenly spaced; none is negative."""
    if not values:
        return (0,)
    shares = (np.arange(KEPT) + 0.5) / KEPT
    found = np.quantile(np.maximum(values, 0), shares, method="nearest")
    return tuple(found.tolist())


def _by_company(seen: _Seen, run: RunResult) -> list[_Seen]:
    """Delays by how many requests were under way when they began."""
    most, under_way = run.cores + _BEYOND, _under_way(run)
    found = [_Seen([], [], [], []) for _ in range(most + 1)]
    for place, part in enumerate(seen):
        for each in part:
            found[min(under_way(each.at_ns), most)][place].append(each)
    return found


def _pooled(seen: Sequence[_Seen]) -> _Seen:
    return _Seen(*(list(itertools.chain(*parts)) for parts in zip(*seen, strict=True)))


def _nearest(seen: Sequence[_Seen], number: int) -> _Seen:
    """Each kind of delays where enough are known, as near to this number as possible."""
    parts: list[list[_Late]] = []
    for place in range(len(_Seen._fields)):
        known = [n for n, each in enumerate(seen) if len(each[place]) >= _ENOUGH]
        near = min(known or [number], key=lambda n: abs(n - number))
        parts.append(seen[near][place])
    return _Seen(*parts)


def _under_way(run: RunResult) -> Callable[[int], int]:
    """Tells how many requests were under way at a moment, but for what came or ended just then."""
    ended_ns = {row.request: row.ended_ns for row in run.requests}
    ended_ns |= {span.request: span.ended_ns for span in run.spans}
    came = np.array([row.arrived_ns for row in run.requests], np.int64)
    ended = np.array([ended_ns[row.request] for row in run.requests], np.int64)
    return lambda at_ns: int(np.count_nonzero((came < at_ns) & (ended > at_ns)))


def _in_one_piece(run: RunResult) -> list[tuple[RequestRow, Span]]:
    """The requests that were answered, and ran without a break."""
    spans: dict[int, list[Span]] = {}
    for span in run.spans:
        spans.setdefault(span.request, []).append(span)
    return [
        (row, spans[row.request][0])
        for row in run.requests
        if row.outcome in (Outcome.MET, Outcome.LATE) and len(spans.get(row.request, ())) == 1
    ]


def _seen(run: RunResult, call_ns: int) -> _Seen:
    ran = _in_one_piece(run)
    half_ns = call_ns // 2
    busy_ns = sorted(itertools.chain(*((row.queued_ns, row.ended_ns) for row, _ in ran)))

    def late(at_ns: int, until_ns: int) -> _Late:
        before = bisect.bisect_left(busy_ns, at_ns) - 1
        rested_ns = at_ns - busy_ns[before] if before >= 0 else -1
        return _Late(at_ns, until_ns - at_ns - half_ns, rested_ns)

    begins, follows = _waits(ran, run.cores)
    return _Seen(
        comes=[late(row.arrived_ns, row.queued_ns) for row, _ in ran],
        begins=begins,
        follows=follows,
        heard=[late(span.ended_ns, row.ended_ns) for row, span in ran],
    )


def _delays(seen: _Seen, device_ns: Sequence[int]) -> Delays:
    comes, begins, follows, heard = ([each.delay_ns for each in part] for part in seen)
    return Delays(
        comes_ns=quantiles(comes),
        begins_ns=quantiles(begins),
        follows_ns=quantiles(follows),
        device_ns=quantiles(device_ns),
        heard_ns=quantiles(heard),
        comes_after=tuple(_after_rests(seen.comes)),
        heard_after=tuple(_after_rests(seen.heard)),
    )


def _after_rests(delays: Sequence[_Late]) -> Iterator[AfterRest]:
    """Delays by how long the loop had done nothing before."""
    found: list[list[int]] = [[] for _ in RESTS_NS]
    for each in delays:
        if each.rested_ns >= 0:
            found[bisect.bisect_right(RESTS_NS, each.rested_ns) - 1].append(each.delay_ns)
    for from_ns, values in zip(RESTS_NS, found, strict=True):
        if len(values) >= _FEW:
            yield AfterRest(from_ns, quantiles(values))


def _waits(ran: list[tuple[RequestRow, Span]], cores: int) -> tuple[list[_Late], list[_Late]]:
    """What passed until a worker began: one that slept, and one that had just ended something."""
    queued, began, ended = np.array(
        [(row.queued_ns, span.began_ns, span.ended_ns) for row, span in ran], np.int64
    ).T.reshape(3, -1)
    begins: list[_Late] = []
    follows: list[_Late] = []
    for queued_ns, began_ns in zip(queued.tolist(), began.tolist(), strict=True):
        in_front = np.count_nonzero((queued < queued_ns) & (ended > queued_ns))
        if in_front < cores:
            begins.append(_Late(queued_ns, began_ns - queued_ns))
        elif (before := ended[ended <= began_ns]).size:
            last_ns = int(before.max())
            follows.append(_Late(last_ns, began_ns - last_ns))
    return begins, follows
