"""What a scheduler tells of itself and of its clients."""

from __future__ import annotations

from typing import Annotated

import msgspec

from nnasync.tracing import Count, labeled


class ClientStatistics(msgspec.Struct, frozen=True):
    """A client: its number, which no other one gets, the `name` it was opened with, and counts.

    `used_ns` is what its share was charged for, executions and other work; `runs` are executions,
    whether they succeeded or not. `refused` found no place or lost it, `missed` were refused for
    their deadline or still queued at it. `queued` wait now.
    """

    client: int
    name: str
    queued: int
    used_ns: Count
    runs: Count
    refused: Count
    missed: Count


class SchedulerStatistics(msgspec.Struct, frozen=True):
    """Counts since the start, but `queued`, `backlog_ns` and `waiting`, which are now.

    `waiting` has a place, in the queue or in front of it. What was `submitted` or `requeued` is
    queued, or was dispatched, withdrawn or displaced by other work, or expired. `displaced` counts
    what waited in front of the queue too. `refused` found no place, `missed` could not be done by
    its deadline; `aged` was dispatched for its age. `backlog_ns` is how long the queued work of a
    priority and above takes at least, on one thread, and under a policy all that is queued.
    `policy` is who decides, `policy_failure` why that is the default rule though another policy was
    asked for. `clients` are those of a service, without the application itself.
    """

    queued: Annotated[tuple[int, int, int], labeled("priority", "low", "medium", "high")]
    backlog_ns: Annotated[tuple[float, float, float], labeled("priority", "low", "medium", "high")]
    waiting: int
    submitted: Count
    dispatched: Count
    requeued: Count
    withdrawn: Count
    expired: Count
    displaced: Count
    refused: Count
    missed: Count
    aged: Count
    policy: str = "default"
    policy_failures: Count = 0
    policy_failure: str = ""
    clients: tuple[ClientStatistics, ...] = ()
