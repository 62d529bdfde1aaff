"""Room for waiting jobs: which are admitted, and which lose their place for that.

What waits has a place from the moment at which it is taken in, queued or behind fences, until it is
handed out, withdrawn or too late. There are `limit` places in all, and each client may take so many
of them. Places count in two ways, shares first:

*Shares.* While all places are taken, the share of a client is an equal part of them among those
that wait. Who has less gets a place of the client that has most, whatever the priorities. Who has
his share or less gives none up to others.

*Priorities.* Otherwise work of a higher priority takes the place of work of a lower one: of the
client's own, or of a client's that has more than its share. Of all these it is the lowest priority;
in that, the client who has most of it; of his, the newest. What has begun to run and was preempted
goes last, and always gets its place back: it is not counted as one that asks.

So nobody within his share is pushed out by others, and within a client, and so for an application
that is the only one, no work is refused while there is any of lower priority.
"""

from __future__ import annotations

from collections.abc import Iterable

from nnasync.errors import ResourceExhaustedTransient, because
from nnasync.hal import Priority
from nnasync.scheduler.job import Job


class Room:
    """The places of all jobs that wait; `size` is how many are taken."""

    __slots__ = ("_corners", "displaced", "limit", "refused", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = self.refused = self.displaced = 0
        self._corners: dict[int, _Corner] = {}

    def open(self, client: int, limit: int) -> None:
        """Registers a client that may have this many places."""
        self._corners[client] = _Corner(limit)

    def close(self, client: int) -> None:
        """Forgets a client that has no place."""
        self._corners.pop(client, None)

    def taken_by(self, client: int) -> int:
        """Returns how many places a client has."""
        corner = self._corners.get(client)
        return 0 if corner is None else corner.size

    def refusal(self, priority: Priority, client: int) -> ResourceExhaustedTransient:
        """Returns the error for a job without a place, after counting it as refused."""
        self.refused += 1
        corner = self._corners.get(client)
        limit = self.limit
        if corner is not None:
            corner.refused += 1
            limit = min(limit, corner.limit)
        text = (
            f"{limit} executions are queued already, none of them of a priority below "
            f"{Priority(priority).name}; retry when some have finished"
        )
        return because("queue_full", ResourceExhaustedTransient(text))

    def displace(self, job: Job) -> None:
        """Note that a job loses its place to another."""
        job.was_displaced = True
        self.displaced += 1
        self._corners[job.client].refused += 1

    def refused_to(self, client: int) -> int:
        """Returns how many jobs of a client found no place, or lost it."""
        corner = self._corners.get(client)
        return 0 if corner is None else corner.refused

    def has_room(self, priority: Priority, client: int = 0) -> bool:
        """Returns whether one more job of this priority and client would get a place."""
        corner = self._corners.get(client)
        if corner is None:
            return False
        if self.size < self.limit and corner.size < corner.limit:
            return True
        return self._giver(priority, corner) is not None

    def giver(self, job: Job) -> Job | None:
        """Returns the job that must give its place to this one; None if a place is free.

        Raises ResourceExhaustedTransient if no job must.
        """
        corner = self._corners[job.client]
        if self.size < self.limit and corner.size < corner.limit:
            return None
        giver = self._giver(job.priority, corner)
        if giver is None:
            raise self.refusal(job.priority, job.client)
        return giver

    def takes(self, job: Job) -> bool:
        """Gives a job a place if it has none and one is free; returns whether it has one then."""
        if job.has_place:
            return True
        corner = self._corners[job.client]
        if self.size >= self.limit or corner.size >= corner.limit:
            return False
        (corner.begun if job.has_begun else corner.waiting)[job.priority][job] = None
        job.has_place = True
        corner.size += 1
        self.size += 1
        return True

    def take(self, job: Job) -> None:
        """Give a job a place; one that was preempted gets it in any case."""
        corner = self._corners[job.client]
        (corner.begun if job.has_begun else corner.waiting)[job.priority][job] = None
        job.has_place = True
        corner.size += 1
        self.size += 1

    def leave(self, job: Job) -> None:
        """Give a job's place back, if it has one."""
        if not job.has_place:
            return
        corner = self._corners[job.client]
        del (corner.begun if job.has_begun else corner.waiting)[job.priority][job]
        job.has_place = False
        corner.size -= 1
        self.size -= 1

    def _giver(self, priority: Priority, corner: _Corner) -> Job | None:
        if corner.size >= corner.limit:
            return corner.newest_below(priority)
        share = max(1, self.limit // self._clients_with(corner))
        most = max(self._corners.values(), key=_size)
        if corner.size < share < most.size:
            return most.newest_below(None)
        above = (each for each in self._corners.values() if each is corner or each.size > share)
        return _lowest(above, priority)

    def _clients_with(self, corner: _Corner) -> int:
        """Returns how many clients wait, counting this one."""
        return sum(each.size > 0 or each is corner for each in self._corners.values())


class _Corner:
    """The places of one client, by priority and in the order in which they were taken."""

    __slots__ = ("begun", "limit", "refused", "size", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = self.refused = 0
        self.waiting: tuple[dict[Job, None], ...] = ({}, {}, {})
        self.begun: tuple[dict[Job, None], ...] = ({}, {}, {})

    def count(self, priority: int) -> int:
        return len(self.waiting[priority]) + len(self.begun[priority])

    def newest(self, priority: int) -> Job | None:
        for places in (self.waiting[priority], self.begun[priority]):
            if places:
                return next(reversed(places))
        return None

    def newest_below(self, priority: Priority | None) -> Job | None:
        """Returns the newest job of the client's lowest priority, if that is below this one."""
        return _lowest([self], priority)


def displaced(job: Job) -> ResourceExhaustedTransient:
    """Returns the error for a job that lost its place."""
    text = (
        f"all places were taken, and this execution of priority {Priority(job.priority).name} gave "
        "its place to work of higher priority, or of a client that had fewer of them; retry when "
        "some have finished"
    )
    return because("displaced", ResourceExhaustedTransient(text))


def _lowest(corners: Iterable[_Corner], below: Priority | None) -> Job | None:
    among = list(corners)
    for priority in range(3 if below is None else below):
        most = max(among, key=lambda corner: corner.count(priority))
        if most.count(priority):
            return most.newest(priority)
    return None


def _size(corner: _Corner) -> int:
    return corner.size
