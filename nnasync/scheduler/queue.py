"""The queue: one lane per client, or a policy; the choice of the next job, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nnasync._core.deferred import deferred
from nnasync._core.words import until_deadline
from nnasync.errors import (
    DeviceUnavailable,
    MissedDeadlinePersistent,
    NNError,
    because,
)
from nnasync.hal import NEVER_NS, Priority
from nnasync.scheduler.job import Job
from nnasync.scheduler.lane import ClientQueue
from nnasync.scheduler.pace import Pace
from nnasync.scheduler.policy import Policy, PolicyError
from nnasync.scheduler.room import Room, displaced
from nnasync.scheduler.statistics import ClientStatistics, SchedulerStatistics

if TYPE_CHECKING:
    from nnasync.scheduler import governed as governing
    from nnasync.scheduler.governed import GovernedQueue
else:
    governing = deferred("nnasync.scheduler.governed")

AGING_NS = 2_000_000_000
"""How long LOW or MEDIUM work waits before it goes first for once."""

_LEAST_NS = 1000.0
"""What an execution counts for at least: handing it out costs about that."""


_PATIENCE = 10
"""How many aging times a policy may keep jobs back while a core is idle."""


class Scheduler:
    """A queue of jobs; `servers` is the number of executions that run at once.

    `queue_limit` is how many jobs of the application may wait, `room` how many of all clients. With
    `aging_ns` of NEVER_NS nothing is ever due for its age. A `policy` decides in place of the
    default rule, until it breaks its contract: `failure` is its error then, all jobs that it had
    are in the lanes, and `on_failure` is called; that must not call the scheduler.
    """

    def __init__(
        self,
        *,
        servers: int,
        queue_limit: int,
        aging_ns: int = AGING_NS,
        room: int = NEVER_NS,
        policy: Policy | None = None,
    ) -> None:
        self._servers = servers
        self.failure: PolicyError | None = None
        self.on_failure: Callable[[PolicyError], object] | None = None
        self.totals = [0, 0, 0]
        """How many jobs are queued of each priority; to be read only."""
        self._aging_ns = aging_ns
        self.expired: list[Job] = []
        """Those whose deadlines passed in the queue, until `take_expired`; to be read only."""
        self._lanes: dict[int, ClientQueue] = {}
        self._leaving: set[int] = set()
        self._last_client = -1
        self._virtual_ns = 0.0
        self._sequence = 0
        self._submitted = self._dispatched = self._requeued = 0
        self._withdrawn = self._expired_count = self._aged = 0
        self._missed = 0
        self._room = Room(room)
        self._pace = Pace(servers)
        self.only: ClientQueue | None = None
        """The queue of the only client, where no policy decides; to be read only."""
        self.open_client(queue_limit=queue_limit)
        self.only = self._lanes[0]
        self._governed: GovernedQueue | None = None
        self.is_governed = policy is not None
        """Whether a policy decides, and not the default rule; to be read only."""
        if policy is not None:
            self.only = None
            self._governed = governing.GovernedQueue(
                policy,
                servers=servers,
                totals=self.totals,
                expired=self.expired,
                patience_ns=_PATIENCE * aging_ns,
            )
            self._check_policy()

    # -- clients

    def open_client(self, *, queue_limit: int, name: str = "") -> int:
        """Registers another client and returns its number; `name` is for statistics."""
        self._last_client += 1
        if self.only is not None:
            self.only.tag_ns = max(self.only.tag_ns, self._virtual_ns)
            self.only = None
        self._lanes[self._last_client] = ClientQueue(
            aging_ns=self._aging_ns,
            totals=self.totals,
            expired=self.expired,
            tag_ns=self._virtual_ns,
            name=name,
        )
        self._room.open(self._last_client, queue_limit)
        return self._last_client

    def close_client(self, client: int) -> None:
        """Forgets a client once nothing of it is queued or runs any more."""
        if client and client in self._lanes:
            self._leaving.add(client)
            self._drop(client)

    def spent(self, client: int, duration_ns: int, *, runs: int = 0) -> None:
        """Charge a client for work that was not queued here, such as `runs` executions."""
        lane = self._lanes.get(client)
        if lane is None or lane is self.only:
            return
        self._enter(lane)
        self._move_on(lane)
        lane.tag_ns += max(float(duration_ns), _LEAST_NS)
        lane.used_ns += duration_ns
        lane.runs += runs

    def ran(self, job: Job, duration_ns: int) -> None:
        """Charges a job that was handed out for the time that it ran; it has left its core."""
        lane = self._lanes.get(job.client)
        if lane is None or lane is self.only:
            return
        if self._governed is not None:
            self._governed.ran(job, duration_ns)
            self._check_policy()
        lane.running -= 1
        lane.tag_ns += max(float(duration_ns), _LEAST_NS) - job.charged_ns
        job.charged_ns = 0.0
        lane.used_ns += duration_ns
        lane.runs += not job.queued  # One that was preempted runs on later.
        self._drop(job.client)

    def is_over(self, client: int) -> bool:
        """Returns whether a client is ahead of one that waits; under a policy whether any waits."""
        if self.only is not None or not any(self.totals):
            return False
        mine = self._lanes.get(client)
        return (
            mine is None
            or self._governed is not None
            or any(lane.size and lane.tag_ns < mine.tag_ns for lane in self._lanes.values())
        )

    @property
    def is_shared(self) -> bool:
        """Returns whether there are several clients."""
        return len(self._lanes) > 1

    # -- jobs

    def has_room(self, priority: Priority, client: int = 0) -> bool:
        """Returns whether one more job of this priority and client would find a place."""
        return client not in self._leaving and self._room.has_room(priority, client)

    def check_room(self, job: Job, now_ns: int) -> None:
        """Raises, and counts it, where `submit` would refuse a job.

        That is for lack of a place, or for a deadline that is too near. It is for callers that
        check before they allocate memory for a job.
        """
        if not self.has_room(job.priority, job.client):
            raise self._room.refusal(job.priority, job.client)
        if job.deadline_ns != NEVER_NS and job.client in self._lanes:
            self._check_deadline(job, now_ns)

    def hold(self, job: Job) -> Job | None:
        """Reserves a place for a job that is not ready; returns the job that lost its place.

        That job, if there is one, has left the queue; answer it with `displaced`. Raises
        ResourceExhaustedTransient, or DeviceUnavailable for a client that was closed.
        """
        self._check_client(job)
        if job.has_place:
            return None
        return self._take_place(job, self._room.giver(job))

    def submit(self, job: Job, now_ns: int) -> Job | None:
        """Queues a job; returns the job that lost its place, if any, as `hold` does.

        Raises what `hold` raises, and MissedDeadlinePersistent where the deadline cannot be met. A
        job that is refused has no place any more.
        """
        try:
            if job.was_displaced or self._leaving or job.client not in self._lanes:
                self._check_client(job)
            giver = None if self._room.takes(job) else self._room.giver(job)
            if job.deadline_ns != NEVER_NS:
                self._check_deadline(job, now_ns)
        except NNError:
            self._room.leave(job)
            self._drop(job.client)
            raise
        if giver is not None:
            self._take_place(job, giver)
        job.sequence = self._sequence
        job.since_ns = now_ns
        self._sequence += 1
        self._submitted += 1
        if self._governed is not None:
            self._governed.push(job, now_ns)
            self._check_policy()
            return giver
        lane = self.only
        if lane is None:
            lane = self._lanes[job.client]
            if not lane.size:
                self._enter(lane)
        if not self.totals[job.priority]:
            self._pace.begins_to_wait(job.priority)
        lane.push(job)
        return giver

    def requeue(self, job: Job, now_ns: int) -> None:
        """Queue a preempted job again, with its old place in the order of arrival and of age."""
        self._requeued += 1
        job.has_begun = True
        self._room.take(job)
        if self._governed is not None:
            self._governed.push(job, now_ns)
            self._check_policy()
            return
        lane = self._lanes[job.client]
        self._enter(lane)
        if not self.totals[job.priority]:
            self._pace.begins_to_wait(job.priority)
        lane.put_back(job, now_ns)

    def withdraw(self, job: Job, *, is_late: bool = False) -> bool:
        """Takes a job and its place out of the queue; returns False if it was not queued.

        `is_late`: because its deadline has passed.
        """
        if not job.queued:
            self._room.leave(job)
            self._drop(job.client)
            return False
        if is_late:
            self._expired_count += 1
            self._has_missed(job)
        else:
            self._withdrawn += 1
        self._leave(job)
        return True

    def next(self, now_ns: int, priorities: Sequence[Priority]) -> Job | None:
        """Hands out the best job of the given priorities (highest first); None if there is none.

        That is one which is due for its age, if there is any, else one of the client whose share
        is behind the most. Under a policy it is that one's choice, of whatever priority.
        """
        only = self.only
        if only is not None:
            job = only.next(now_ns, priorities)
        elif self._governed is not None:
            job = self._governed_next(self._governed, now_ns, priorities)
        else:
            job = self._fair_next(now_ns, priorities)
        for late in self.expired:
            self._room.leave(late)
        if job is None:
            return None
        self._room.leave(job)
        self._pace.handed_out(job, now_ns, self.totals[job.priority])
        self._dispatched += 1
        if job.shielded_until_ns:
            self._aged += 1
        return job

    def first(self, now_ns: int, priorities: Sequence[Priority]) -> Job | None:
        """Returns the job that `next` would hand out; None where only `next` can tell.

        That is so with several clients, under a policy, where a job is due for its age, and where
        the deadline of that job has passed.
        """
        only = self.only
        if only is None or only.is_due(now_ns, priorities):
            return None
        job = only.first(priorities)
        return None if job is None or job.deadline_ns <= now_ns else job

    def due_ns(self, priority: Priority) -> int:
        """Returns when a job of this priority is due for its age; NEVER_NS if none will be."""
        only = self.only
        if only is not None:
            return only.due_ns(priority)
        return min(lane.due_ns(priority) for lane in self._lanes.values())

    def take_expired(self) -> list[Job]:
        """Returns the jobs whose deadlines passed in the queue, each of them once."""
        if not self.expired:
            return []
        expired = self.expired[:]
        self.expired.clear()
        self._expired_count += len(expired)
        for job in expired:
            self._has_missed(job)
            self._drop(job.client)
        return expired

    def waits_above(self, priority: Priority, client: int = 0) -> bool:
        """Returns whether more urgent work of the client is queued.

        Under a policy it is whether any work is.
        """
        if self._governed is not None:
            return len(self._governed) > 0
        lane = self._lanes.get(client)
        return lane is not None and lane.size > 0 and any(lane.queued[priority + 1 :])

    def displaces(self, running: Job, priority: Priority) -> bool:
        """Returns whether queued work of a priority or above may take a running job's place.

        That is a matter of priority within a client; between clients the share counts as well.
        """
        if running.priority >= priority or self.only is not None:
            return running.priority < priority
        mine = self._lanes.get(running.client)
        return any(
            any(lane.queued[priority:])
            and (lane is mine or mine is None or lane.tag_ns < mine.tag_ns)
            for lane in self._lanes.values()
        )

    def preempted(self, running: Sequence[Job], now_ns: int) -> Job | None:
        """Returns which of the running jobs, which take all cores, gives way to a queued one.

        By the default rule that is one of the least priority, below the highest that is queued.
        """
        if self._governed is not None:
            job = self._governed.preempted(running, now_ns)
            self._check_policy()
            if self._governed is not None:
                return job
        highest = max((each for each in Priority if self.totals[each]), default=Priority.LOW)
        among = [
            job
            for job in running
            if job.shielded_until_ns <= now_ns and self.displaces(job, highest)
        ]
        return min(among, key=lambda job: job.priority, default=None)

    def look_again_ns(self, now_ns: int) -> int:
        """Returns when to ask a policy again for `next` and `preempted`, though nothing happens."""
        if self._governed is None:
            return NEVER_NS
        at_ns = self._governed.due_ns(now_ns)
        self._check_policy()
        return at_ns

    def low_goes_first(self) -> bool:
        """Returns whether the next client has only LOW jobs while another has more urgent ones."""
        if self.only is not None or not self.totals[Priority.LOW]:
            return False
        waiting = [lane for lane in self._lanes.values() if lane.size]
        first = min(waiting, key=_tag)
        return first.queued[Priority.LOW] == first.size

    def queued(self, priorities: Sequence[Priority]) -> int:
        """Returns the number of queued jobs of the given priorities."""
        queued, total = self.totals, 0
        for priority in priorities:
            total += queued[priority]
        return total

    def backlog_ns(self, priority: Priority) -> float:
        """Returns what the queued jobs of this priority and above take at least, of all clients.

        Under a policy it is all of them.
        """
        if self._governed is not None:
            return self._governed.backlog_ns
        return sum(lane.backlog_ns(priority) for lane in self._lanes.values())

    def queued_of(self, client: int) -> int:
        """Returns the number of queued jobs of a client."""
        if self._governed is not None:
            return self._governed.queued_of(client)
        lane = self._lanes.get(client)
        return 0 if lane is None else lane.size

    def statistics(self) -> SchedulerStatistics:
        """Returns the counts so far."""
        governed = self._governed
        low, medium, high = self.totals if governed is None else governed.queued
        return SchedulerStatistics(
            queued=(low, medium, high),
            backlog_ns=(
                self.backlog_ns(Priority.LOW),
                self.backlog_ns(Priority.MEDIUM),
                self.backlog_ns(Priority.HIGH),
            ),
            waiting=self._room.size,
            submitted=self._submitted,
            dispatched=self._dispatched,
            requeued=self._requeued,
            withdrawn=self._withdrawn,
            expired=self._expired_count + len(self.expired),
            displaced=self._room.displaced,
            refused=self._room.refused,
            missed=self._missed,
            aged=self._aged,
            policy="default" if governed is None else governed.name,
            policy_failures=int(self.failure is not None),
            policy_failure=str(self.failure or ""),
            clients=tuple(self._client(client) for client in self._lanes if client),
        )

    def _client(self, client: int) -> ClientStatistics:
        lane = self._lanes[client]
        return ClientStatistics(
            client=client,
            name=lane.name,
            queued=self.queued_of(client),
            used_ns=lane.used_ns,
            runs=lane.runs,
            refused=self._room.refused_to(client),
            missed=lane.missed,
        )

    # -- admission

    def _check_client(self, job: Job) -> None:
        if job.client not in self._lanes or job.client in self._leaving:
            raise DeviceUnavailable("the client of this execution has gone")
        if job.was_displaced:
            raise displaced(job)

    def _take_place(self, job: Job, giver: Job | None) -> Job | None:
        if giver is not None:
            self._room.displace(giver)
            if giver.queued:
                self._leave(giver)
            else:
                self._room.leave(giver)
                self._drop(giver.client)
        self._room.take(job)
        return giver

    def _leave(self, job: Job) -> None:
        """Take a queued job out."""
        self._room.leave(job)
        if self._governed is not None:
            self._governed.leave(job)
            self._check_policy()
        else:
            self._lanes[job.client].leave(job)
        self._drop(job.client)

    def _check_deadline(self, job: Job, now_ns: int) -> None:
        remaining_ns = job.deadline_ns - now_ns
        if remaining_ns <= 0:
            self._refuses(job)
            raise _missed(
                f"the deadline had passed {-remaining_ns / 1e6:.3f} ms before the execution started"
            )
        if self._governed is not None and self._is_admitted(self._governed, job, now_ns):
            return
        lane, floor_ns = self._lanes[job.client], job.estimate.floor_ns
        above_ns, wait_ns = lane.backlog_ns(job.priority + 1), self._pace.wait_ns
        least_ns, spare_ns = above_ns + lane.equals_ns(job), remaining_ns - job.heard_after_ns
        if wait_ns(job.priority, least_ns) + floor_ns > spare_ns:
            self._pace.grow_old(job.priority, now_ns)
        ahead_ns = wait_ns(job.priority, least_ns)
        if ahead_ns + floor_ns > spare_ns:
            self._refuses(job)
            if above_ns / self._servers + floor_ns > remaining_ns:
                job.estimate.refused()
            raise _missed(
                f"{until_deadline(remaining_ns)}, and the execution needs at least "
                f"{floor_ns / 1e6:.3f} ms, {ahead_ns / 1e6:.3f} ms after what goes before it"
                + _heard(job.heard_after_ns)
            )

    def _refuses(self, job: Job) -> None:
        """Counts a job that could not be done by its deadline."""
        self._missed += 1
        self._has_missed(job)

    def _has_missed(self, job: Job) -> None:
        lane = self._lanes.get(job.client)
        if lane is not None:
            lane.missed += 1

    # -- a policy

    def _is_admitted(self, governed: GovernedQueue, job: Job, now_ns: int) -> bool:
        """Returns whether a policy let a job in; raises if it refuses, False if it cannot tell."""
        needed_ns = governed.needed_ns(job, now_ns)
        self._check_policy()
        if self._governed is None:
            return False
        remaining_ns = job.deadline_ns - now_ns
        if needed_ns + job.heard_after_ns > remaining_ns:
            self._refuses(job)
            if job.estimate.ns > remaining_ns:
                job.estimate.refused()
            raise _missed(
                f"{until_deadline(remaining_ns)}, and policy {governed.name!r} "
                f"predicts an end in {needed_ns / 1e6:.3f} ms" + _heard(job.heard_after_ns)
            )
        return True

    def _governed_next(
        self, governed: GovernedQueue, now_ns: int, priorities: Sequence[Priority]
    ) -> Job | None:
        """Returns the policy's choice, or that of the default rule if the policy fails."""
        job = governed.next(now_ns)
        self._check_policy()
        if job is not None:
            self._charge(self._lanes[job.client], job)
        elif self._governed is None:
            return self._fair_next(now_ns, priorities)
        return job

    def _check_policy(self) -> None:
        """Returns to the default rule if the policy has broken its contract."""
        governed = self._governed
        if governed is None or governed.broken is None:
            return
        self._governed, self.is_governed, self.failure = None, False, governed.broken
        self.totals[:] = (0, 0, 0)
        for job in governed.jobs():
            lane = self._lanes[job.client]
            self._enter(lane)
            lane.push(job)
        if len(self._lanes) == 1:
            self.only = self._lanes[0]
        if self.on_failure is not None:
            self.on_failure(self.failure)

    # -- shares

    def _fair_next(self, now_ns: int, priorities: Sequence[Priority]) -> Job | None:
        """Hands out from the lane with the lowest tag among those with due jobs, else among all."""
        waiting = [lane for lane in self._lanes.values() if lane.size and lane.has(priorities)]
        waiting.sort(key=lambda lane: (not lane.is_due(now_ns, priorities), lane.tag_ns))
        for lane in waiting:
            job = lane.next(now_ns, priorities)
            if job is not None:
                self._charge(lane, job)
                return job
        return None

    def _charge(self, lane: ClientQueue, job: Job) -> None:
        """Charges a lane the expected time of a job."""
        self._move_on(lane)
        job.charged_ns = max(job.estimate.ns, _LEAST_NS)
        lane.tag_ns += job.charged_ns
        lane.running += 1

    def _enter(self, lane: ClientQueue) -> None:
        """Sets the tag of a lane that was empty to that of the lanes that are served."""
        if not lane.size:
            lane.tag_ns = max(lane.tag_ns, self._virtual_ns)

    def _move_on(self, lane: ClientQueue) -> None:
        """Notes that a lane is served: lanes that come later begin at the lowest tag."""
        tag_ns = lane.tag_ns
        if any(self.totals):
            tag_ns = min([tag_ns, *(each.tag_ns for each in self._lanes.values() if each.size)])
        self._virtual_ns = max(self._virtual_ns, tag_ns)

    def _drop(self, client: int) -> None:
        """Forgets a client that was closed and has nothing left."""
        if client not in self._leaving:
            return
        lane = self._lanes[client]
        if lane.size or lane.running > 0 or self._room.taken_by(client):
            return
        self._leaving.discard(client)
        self._room.close(client)
        del self._lanes[client]
        if len(self._lanes) == 1 and self._governed is None:
            self.only = self._lanes[0]


def _missed(text: str) -> MissedDeadlinePersistent:
    return because("admission", MissedDeadlinePersistent(text))


def _heard(after_ns: float) -> str:
    return f"; the event loop hears of its end {after_ns / 1e6:.3f} ms later" if after_ns else ""


def _tag(lane: ClientQueue) -> float:
    return lane.tag_ns
