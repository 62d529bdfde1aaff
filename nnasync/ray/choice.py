"""Which replicas a request is offered to: pure.

Each replica tells now and then how long the work takes that waits there, for each priority and
above. A request goes to one whose queue is through by its deadline, if there is one; of these two
are asked for their present number of requests, since what they told is a little old. Those that
cannot make it come last: there it is refused on arrival, which is the answer that it would get.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnasync._core.request_headers import (
    PRIORITY_HEADER,
    TIMEOUT_HEADER,
    priority_of,
    timeout_ns_of,
)
from nnasync.errors import InvalidArgument
from nnasync.hal import Priority, Struct

_ASKED = 2
"""How many replicas of a kind are asked at once."""


class Wish(Struct, frozen=True):
    """Seconds that a request has left, None without a deadline; and its priority."""

    left_s: float | None
    priority: Priority


def wish_of(headers: Mapping[str, str], age_s: float) -> Wish:
    """Returns the wish of a request that came so long ago; the replica refuses bad headers."""
    try:
        timeout_ns = timeout_ns_of(headers.get(TIMEOUT_HEADER, ""))
        priority = priority_of(headers.get(PRIORITY_HEADER, ""))
    except InvalidArgument:
        return Wish(None, Priority.MEDIUM)
    left_s = None if timeout_ns is None else timeout_ns / 1e9 - age_s
    return Wish(left_s, Priority.MEDIUM if priority is None else priority)


def backlog_of(told: object, priority: Priority) -> float:
    """Seconds of work ahead of a priority, from what a replica told; 0 where that says nothing."""
    if not isinstance(told, Sequence) or len(told) != len(Priority):
        return 0.0
    backlog_s = told[priority]
    return float(backlog_s) if isinstance(backlog_s, int | float) and backlog_s > 0 else 0.0


def ranked(backlogs_s: Sequence[float], wish: Wish) -> list[list[int]]:
    """The replicas, by their places, in groups that are tried one after the other."""
    order = sorted(range(len(backlogs_s)), key=lambda place: backlogs_s[place])
    in_time = [each for each in order if wish.left_s is None or backlogs_s[each] < wish.left_s]
    late = order[len(in_time) :]
    groups = [each[at : at + _ASKED] for each in (in_time, late) for at in range(0, len(each), 2)]
    return [group for group in groups if group]
