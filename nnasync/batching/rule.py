"""When requests that wait are run together, and which of them: pure, with time passed in.

Of what waits, the most urgent request is always taken. Others join it in the order of urgency, as
long as nobody who could be answered in time alone is late because of that: a run with all of them,
taken twice for safety, has to end by the earliest deadline. Where there is room for more, they wait
for it until the window of the eldest is over, and no longer than the slack of the most urgent one
allows; not at all where one is due and it is not known how long a run takes. What cannot be in time
even alone goes alone: it gets its own answer, or error, and nobody else's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from nnasync import hal

MARGIN_NS = 2_000_000
"""What waits goes so long before the earliest deadline at least: timers come late."""

_SAFETY = 2
"""How often the usual duration of a run has to fit."""

CostOf = Callable[[int], float]
"""Nanoseconds that a run of so many rows takes; 0 where that is not known."""


class Waiting(hal.Struct, frozen=True):
    """A request that waits: how many rows it has, when it came, and by when it is due."""

    rows: int
    arrived_ns: int
    deadline_ns: float = math.inf


class Together(hal.Struct, frozen=True):
    """The decision to run these requests now, given by their places among those that wait."""

    members: tuple[int, ...]


class Until(hal.Struct, frozen=True):
    """The decision to run none before this time, unless another one comes."""

    at_ns: float


def next_step(
    waiting: Sequence[Waiting], now_ns: int, cost_of: CostOf, window_ns: int, most_rows: int
) -> Together | Until:
    """Returns what to do with the requests that wait, of which there is one at least."""
    order = sorted(
        range(len(waiting)), key=lambda n: (waiting[n].deadline_ns, waiting[n].arrived_ns)
    )
    members = [order[0]]
    rows, due_ns = waiting[order[0]].rows, waiting[order[0]].deadline_ns
    cost_ns = cost_of(rows)
    if now_ns + cost_ns > due_ns:
        return Together((order[0],))
    if cost_ns == 0 and due_ns < math.inf:
        window_ns = 0
    for place in order[1:]:
        more = rows + waiting[place].rows
        if more <= most_rows and now_ns + _SAFETY * cost_of(more) <= due_ns:
            members.append(place)
            rows = more
    eldest_ns = min(waiting[place].arrived_ns for place in members)
    until_ns = latest_start_ns([due_ns], cost_of(rows), eldest_ns + window_ns)
    if rows < most_rows and now_ns < until_ns:
        return Until(until_ns)
    return Together(tuple(members))


def latest_start_ns(deadlines_ns: Iterable[float], cost_ns: float, patience_ns: float) -> float:
    """Returns until when requests that run together may wait for more.

    Neither their patience nor the slack of their deadlines may be exceeded.
    """
    slack_ns = max(_SAFETY * cost_ns, MARGIN_NS)
    return min(min(deadlines_ns, default=math.inf) - slack_ns, patience_ns)


def earliest_end_ns(
    rows: int, now_ns: int, rows_ahead: int, cost_of: CostOf, most_rows: int, lanes: int
) -> float:
    """Returns when a request is answered at the earliest, behind others that have so many rows.

    `lanes` runs go side by side. What is full goes ahead of it as a whole; the rest may join it.
    """
    full = rows_ahead // max(1, most_rows)
    return now_ns + full // max(1, lanes) * cost_of(most_rows) + cost_of(rows)


class Costs:
    """Knows what runs took by their number of rows; interpolates between the known ones."""

    def __init__(self, smoothing: float = 0.2) -> None:
        self._smoothing = smoothing
        self._known: dict[int, float] = {}

    def observe(self, rows: int, duration_ns: float) -> None:
        """Learns from a run."""
        known = self._known.get(rows)
        if known is None:
            self._known[rows] = duration_ns
        else:
            self._known[rows] = known + self._smoothing * (duration_ns - known)

    def __call__(self, rows: int) -> float:
        """Returns what so many rows take: interpolated, or in proportion beyond what is known."""
        if rows in self._known:
            return self._known[rows]
        below = max((each for each in self._known if each < rows), default=None)
        above = min((each for each in self._known if each > rows), default=None)
        if below is None:
            return 0.0 if above is None else self._known[above]
        if above is None:
            return self._known[below] * rows / below
        share = (rows - below) / (above - below)
        return self._known[below] + share * (self._known[above] - self._known[below])
