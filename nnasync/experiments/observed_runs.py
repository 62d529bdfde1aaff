"""The runs of networks in a record: when each was handed to a worker, and beside what.

A worker that slept is woken for a request; from then on the request has its core, though the
thread begins later. One that has just ended something goes on with what waited. Both begin beside
what runs then. Who is woken joins it: two threads may get one core for a while though another one
is free, and then both are slower. Whoever goes on joins nobody, as its thread has its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nnasync.experiments.record import Outcome, RequestRow, RunResult, Span


class Ran(NamedTuple):
    """A request that ran to its end, in pieces that took `length_ns` together.

    `handed_ns` is when a worker had it, `others` are the streams that ran then. `joined_by` is
    the first request for which a worker was woken while this one ran.
    """

    row: RequestRow
    began_ns: int
    ended_ns: int
    length_ns: int
    pieces: int
    is_woken: bool
    handed_ns: int
    others: tuple[int, ...] = ()
    joined_by: int | None = None

    @property
    def late_ns(self) -> int:
        """Returns how long after it was handed to a worker the request began."""
        return self.began_ns - self.handed_ns


def runs_of(result: RunResult) -> list[Ran]:
    """Returns the requests that ran to their end, in the order in which workers had them."""
    ran = sorted(_handed(result), key=lambda each: each.handed_ns)
    found: list[Ran] = []
    running: list[int] = []
    for place, each in enumerate(ran):
        running = [other for other in running if ran[other].ended_ns > each.handed_ns]
        found.append(each._replace(others=tuple(ran[other].row.stream for other in running)))
        if each.is_woken:
            for other in running:
                if found[other].joined_by is None:
                    found[other] = found[other]._replace(joined_by=place)
        running.append(place)
    return found


def _handed(result: RunResult) -> Iterator[Ran]:
    spans: dict[int, list[Span]] = {}
    for span in result.spans:
        spans.setdefault(span.request, []).append(span)
    ran = [
        (row, spans[row.request])
        for row in result.requests
        if row.outcome in (Outcome.MET, Outcome.LATE) and row.request in spans
    ]
    queued = np.array([row.queued_ns for row, _ in ran], np.int64)
    ended = np.array([pieces[-1].ended_ns for _, pieces in ran], np.int64)
    for row, pieces in ran:
        in_front = np.count_nonzero((queued < row.queued_ns) & (ended > row.queued_ns))
        is_woken = bool(in_front < result.cores)
        yield Ran(
            row,
            began_ns=pieces[0].began_ns,
            ended_ns=pieces[-1].ended_ns,
            length_ns=sum(piece.ended_ns - piece.began_ns for piece in pieces),
            pieces=len(pieces),
            is_woken=is_woken,
            handed_ns=min(row.queued_ns, pieces[0].began_ns) if is_woken else pieces[0].began_ns,
        )
