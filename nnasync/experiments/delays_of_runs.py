"""The delays that real runs show, from the rows and spans that were kept of them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from nnasync.experiments.delays import KEPT, AfterRest, Delays
from nnasync.experiments.observed_runs import Ran, runs_of
from nnasync.experiments.record import RunResult

RESTS_NS = (0, 500_000, 2_000_000, 6_000_000)
"""A loop that has had nothing to do for so long, and not for the next time, is late alike."""

_FEW, _ENOUGH = 5, 20


class _Late(NamedTuple):
    """A delay: when it began, and how long the loop had been idle by then (negative: unknown)."""

    at_ns: int
    delay_ns: int
    rested_ns: int = -1


class _Seen(NamedTuple):
    """All delays that were seen in a run, by kind."""

    told: list[_Late]
    comes: list[_Late]
    begins: list[_Late]
    follows: list[_Late]
    heard: list[_Late]
    calls: list[_Late]
    answers: list[_Late]

    @classmethod
    def nothing(cls) -> _Seen:
        """Returns an object without any delays yet."""
        return cls(*([] for _ in cls._fields))


def delays_of(run: RunResult, cost_ns: int, call_ns: int) -> Delays:
    """Returns the delays in a real run of one stream of which every request was recorded.

    Each request costs `cost_ns`; `call_ns` is how long a call keeps the loop, half of it before
    the submission and half after the answer.
    """
    ran = runs_of(run)
    lengths_ns = [each.length_ns for each in ran if each.pieces == 1]
    seen = _seen([each._replace(row=replace(each.row, told_ns=-1)) for each in ran], call_ns)
    return _delays(seen, [length_ns - cost_ns for length_ns in lengths_ns])


def delays_by_company(runs: Sequence[RunResult], call_ns: int) -> tuple[Delays, ...]:
    """Returns the delays in real runs of networks, one for each number of workers at work.

    From none to as many as there are cores. Whoever wakes the loop and goes on with what waits
    keeps its core busy, so that requests that wait count as those that run. Where that many hardly
    ever were, the delays are those of the nearest number. A loop that is late for something is late
    for all that comes until it is there: that is no delay of its own, and counts once.
    """
    seen = [_by_company(run, call_ns) for run in runs]
    pooled = [_pooled(each) for each in zip(*seen, strict=True)]
    return tuple(_delays(_nearest(pooled, number), []) for number in range(len(pooled)))


def quantiles(values: Sequence[int]) -> tuple[int, ...]:
    """Returns evenly spaced quantiles of all values, with negative ones set to 0."""
    if not values:
        return (0,)
    shares = (np.arange(KEPT) + 0.5) / KEPT
    found = np.quantile(np.maximum(values, 0), shares, method="nearest")
    return tuple(found.tolist())


def _by_company(run: RunResult, call_ns: int) -> list[_Seen]:
    """Groups delays by how many requests waited or ran when they began."""
    ran = runs_of(run)
    queued_ns = sorted(each.row.queued_ns for each in ran)
    ended_ns = sorted(each.ended_ns for each in ran)
    found = [_Seen.nothing() for _ in range(run.cores + 1)]
    seen = _seen(ran, call_ns)
    (told,), (comes, heard) = _firsts(seen.told), _firsts(seen.comes, seen.heard)
    calls, answers = _turns(seen.comes, seen.heard)
    seen = _Seen(told, comes, seen.begins, seen.follows, heard, calls, answers)
    for place, part in enumerate(seen):
        for each in part:
            queued = bisect.bisect_left(queued_ns, each.at_ns)
            under_way = queued - bisect.bisect_right(ended_ns, each.at_ns)
            found[min(max(under_way, 0), run.cores)][place].append(each)
    return found


def _firsts(*kinds: list[_Late]) -> list[list[_Late]]:
    """Returns the delays of one thread that began while nobody else waited for it."""
    found: list[list[_Late]] = [[] for _ in kinds]
    until_ns = -1
    for each, kind in sorted((each, kind) for kind, part in enumerate(kinds) for each in part):
        if each.at_ns >= until_ns:
            found[kind].append(each)
        until_ns = max(until_ns, each.at_ns + each.delay_ns)
    return found


def _turns(*kinds: list[_Late]) -> list[list[_Late]]:
    """Returns how long the loop took for each event that had waited while it was busy."""
    found: list[list[_Late]] = [[] for _ in kinds]
    done = sorted(
        (each.at_ns + each.delay_ns, each.at_ns, kind)
        for kind, part in enumerate(kinds)
        for each in part
    )
    for (before_ns, *_), (done_ns, at_ns, kind) in itertools.pairwise(done):
        if at_ns <= before_ns:
            found[kind].append(_Late(before_ns, done_ns - before_ns))
    return found


def _pooled(seen: Sequence[_Seen]) -> _Seen:
    return _Seen(*(list(itertools.chain(*parts)) for parts in zip(*seen, strict=True)))


def _nearest(seen: Sequence[_Seen], number: int) -> _Seen:
    """Returns for each kind of delay those at the nearest number for which enough are known."""
    parts: list[list[_Late]] = []
    for place in range(len(_Seen._fields)):
        known = [n for n, each in enumerate(seen) if len(each[place]) >= _ENOUGH]
        near = min(known or [number], key=lambda n: abs(n - number))
        parts.append(seen[near][place])
    return _Seen(*parts)


def _seen(ran: Sequence[Ran], call_ns: int) -> _Seen:
    """Returns the delays of requests that ran in one piece."""
    ran = [each for each in ran if each.pieces == 1]
    half_ns = call_ns // 2
    busy_ns = sorted(itertools.chain(*((each.row.queued_ns, each.row.ended_ns) for each in ran)))

    def late(at_ns: int, until_ns: int) -> _Late:
        before = bisect.bisect_left(busy_ns, at_ns) - 1
        rested_ns = at_ns - busy_ns[before] if before >= 0 else -1
        return _Late(at_ns, until_ns - at_ns - half_ns, rested_ns)

    told = [each.row for each in ran if each.row.told_ns >= 0]
    return _Seen(
        told=[_Late(row.arrived_ns, row.told_ns - row.arrived_ns) for row in told],
        comes=[
            late(max(each.row.arrived_ns, each.row.told_ns), each.row.queued_ns) for each in ran
        ],
        begins=[_Late(each.handed_ns, each.late_ns) for each in ran if each.is_woken],
        follows=list(_follows(ran)),
        heard=[late(each.ended_ns, each.row.ended_ns) for each in ran],
        calls=[],
        answers=[],
    )


def _delays(seen: _Seen, device_ns: Sequence[int]) -> Delays:
    values = [quantiles([each.delay_ns for each in part]) for part in seen]
    told, comes, begins, follows, heard, calls, answers = values
    return Delays(
        comes_ns=comes,
        begins_ns=begins,
        follows_ns=follows,
        device_ns=quantiles(device_ns),
        heard_ns=heard,
        told_ns=told,
        calls_ns=calls,
        answers_ns=answers,
        comes_after=tuple(_after_rests(seen.comes)),
        heard_after=tuple(_after_rests(seen.heard)),
    )


def _after_rests(delays: Sequence[_Late]) -> Iterator[AfterRest]:
    """Groups delays by how long the loop had been idle before; yields them, shortest rest first."""
    found: list[list[int]] = [[] for _ in RESTS_NS]
    for each in delays:
        if each.rested_ns >= 0:
            found[bisect.bisect_right(RESTS_NS, each.rested_ns) - 1].append(each.delay_ns)
    for from_ns, values in zip(RESTS_NS, found, strict=True):
        if len(values) >= _FEW:
            yield AfterRest(from_ns, quantiles(values))


def _follows(ran: Sequence[Ran]) -> Iterator[_Late]:
    """Yields the times from the end of a worker's run to its begin of the next that was waiting."""
    ended_ns = sorted(each.ended_ns for each in ran)
    for each in ran:
        before = bisect.bisect_right(ended_ns, each.began_ns) - 1
        if not each.is_woken and before >= 0:
            last_ns = ended_ns[before]
            yield _Late(last_ns, each.began_ns - last_ns)
