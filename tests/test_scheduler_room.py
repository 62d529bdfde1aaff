"""Places where work waits: bounded, shared among clients, given up for higher priorities."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nnasync.errors import MissedDeadlinePersistent, NNError, ResourceExhaustedTransient
from nnasync.hal import Priority
from nnasync.scheduler import Estimate, Job, Scheduler

LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH
ALL = (HIGH, MEDIUM, LOW)
SERVERS = 2


def job(priority: Priority, client: int = 0) -> Job:
    return Job(priority, Estimate(), client=client)


def scheduler(room: int, clients: int = 0) -> Scheduler:
    queue = Scheduler(servers=SERVERS, queue_limit=room, room=room)
    for _ in range(clients):
        queue.open_client(queue_limit=room)
    return queue


def drain(queue: Scheduler) -> list[Job]:
    found = []
    while (best := queue.next(0, ALL)) is not None:
        found.append(best)
    return found


# -- priorities


def test_low_that_fills_the_queue_does_not_keep_high_out() -> None:
    queue = scheduler(3)
    lows = [job(LOW) for _ in range(3)]
    for each in lows:
        assert queue.submit(each, 0) is None
    highs = [job(HIGH) for _ in range(3)]
    assert [queue.submit(each, 0) for each in highs] == lows[::-1]
    with pytest.raises(ResourceExhaustedTransient, match="3 executions are queued already"):
        queue.submit(job(HIGH), 0)
    assert drain(queue) == highs
    assert queue.statistics().displaced == 3


def test_the_lowest_gives_way_first() -> None:
    queue = scheduler(3)
    medium, low = job(MEDIUM), job(LOW)
    for each in (medium, low, job(HIGH)):
        queue.submit(each, 0)
    assert queue.submit(job(HIGH), 0) is low
    assert queue.submit(job(HIGH), 0) is medium
    assert not queue.has_room(HIGH)


def test_what_has_begun_gives_way_last_and_comes_back_in_any_case() -> None:
    queue = scheduler(2)
    begun = job(LOW)
    queue.submit(begun, 0)
    assert queue.next(0, ALL) is begun
    fresh = [job(LOW), job(LOW)]
    for each in fresh:
        queue.submit(each, 0)
    queue.requeue(begun, 0)
    assert queue.statistics().waiting == 3
    given_up = []
    for _ in range(2):
        assert queue.has_room(HIGH)
        given_up.append(queue.submit(job(HIGH), 0))
    assert given_up == fresh[::-1]
    assert queue.submit(job(HIGH), 0) is begun


def test_work_that_cannot_be_in_time_takes_nobodys_place() -> None:
    queue = scheduler(1)
    low = job(LOW)
    queue.submit(low, 0)
    late = Job(HIGH, Estimate(), 5)
    with pytest.raises(MissedDeadlinePersistent):
        queue.submit(late, 5)
    assert drain(queue) == [low]


# -- in front of the queue


def test_what_waits_in_front_of_the_queue_has_a_place() -> None:
    queue = scheduler(2)
    held = [job(MEDIUM), job(MEDIUM)]
    for each in held:
        assert queue.hold(each) is None
    with pytest.raises(ResourceExhaustedTransient):
        queue.hold(job(MEDIUM))
    with pytest.raises(ResourceExhaustedTransient):
        queue.submit(job(MEDIUM), 0)
    for each in held:
        assert queue.submit(each, 0) is None
    assert drain(queue) == held
    assert queue.statistics().waiting == 0


def test_a_place_in_front_of_the_queue_is_given_up_too_and_that_is_final() -> None:
    queue = scheduler(1)
    held = job(LOW)
    queue.hold(held)
    assert queue.submit(job(HIGH), 0) is held
    queue.next(0, ALL)
    with pytest.raises(ResourceExhaustedTransient, match="gave its place to work of higher"):
        queue.submit(held, 0)
    assert queue.statistics().waiting == 0


def test_a_held_job_that_is_withdrawn_or_refused_gives_its_place_back() -> None:
    queue = scheduler(1)
    held = job(LOW)
    queue.hold(held)
    assert not queue.withdraw(held)
    late = Job(LOW, Estimate(), 5)
    queue.hold(late)
    with pytest.raises(MissedDeadlinePersistent):
        queue.submit(late, 9)
    assert queue.hold(job(LOW)) is None


# -- clients


def test_a_client_that_has_filled_the_queue_does_not_keep_another_out() -> None:
    queue = scheduler(4, clients=2)
    first = [job(MEDIUM, 1) for _ in range(4)]
    for each in first:
        queue.submit(each, 0)
    assert [queue.submit(job(MEDIUM, 2), 0) for _ in range(2)] == first[:1:-1]
    assert [queue.has_room(MEDIUM, client) for client in (1, 2)] == [False, False]
    with pytest.raises(ResourceExhaustedTransient):
        queue.submit(job(MEDIUM, 2), 0)


def test_high_of_one_client_leaves_another_its_share() -> None:
    queue = scheduler(4, clients=2)
    lows = [job(LOW, 1) for _ in range(3)]
    for each in lows:
        queue.submit(each, 0)
    queue.submit(job(HIGH, 2), 0)
    assert queue.submit(job(HIGH, 2), 0) is lows[-1]
    with pytest.raises(ResourceExhaustedTransient):
        queue.submit(job(HIGH, 2), 0)
    assert queue.statistics().queued == (2, 0, 2)


def test_a_closed_client_is_forgotten_when_its_last_place_is_free() -> None:
    queue = scheduler(4, clients=1)
    held = job(LOW, 1)
    queue.hold(held)
    queue.close_client(1)
    assert queue.is_shared
    assert not queue.has_room(HIGH, 1)
    queue.withdraw(held)
    assert not queue.is_shared


@given(st.integers(1, 6), st.integers(1, 30), st.integers(1, 30))
def test_two_that_always_ask_for_places_do_not_take_them_from_one_another(
    room: int, first: int, second: int
) -> None:
    queue = scheduler(room, clients=2)
    for client, count in ((1, first), (2, second)):
        for _ in range(count):
            if queue.has_room(MEDIUM, client):
                queue.submit(job(MEDIUM, client), 0)
    moved = 0
    for _ in range(20):
        for client in (1, 2):
            if queue.has_room(MEDIUM, client):
                moved += queue.submit(job(MEDIUM, client), 0) is not None
    assert moved <= room


class Places(RuleBasedStateMachine):
    """Whatever clients ask for: bounds hold, who is refused had it coming, all ends once."""

    room = 7
    limits = (7, 5, 3)

    def __init__(self) -> None:
        super().__init__()
        self.queue = Scheduler(servers=SERVERS, queue_limit=self.limits[0], room=self.room)
        for limit in self.limits[1:]:
            self.queue.open_client(queue_limit=limit)
        self.held: list[Job] = []
        self.queued: list[Job] = []
        self.running: list[Job] = []
        self.ends: Counter[Job] = Counter()

    @property
    def waiting(self) -> list[Job]:
        return self.held + self.queued

    def taken(self) -> Counter[int]:
        return Counter(each.client for each in self.waiting)

    def _asks(self, wanted: Job, *, ready: bool) -> None:
        taken, total = self.taken(), len(self.waiting)
        among = {each.client for each in self.waiting} | {wanted.client}
        share = max(1, self.room // len(among))
        mine, limit = taken[wanted.client], self.limits[wanted.client]
        lower = [each for each in self.waiting if each.priority < wanted.priority]
        own_lower = any(each.client == wanted.client for each in lower)
        greedy_lower = any(taken[each.client] > share for each in lower)
        greedy = any(count > share for count in taken.values())
        foreseen = self.queue.has_room(wanted.priority, wanted.client)
        try:
            given = self.queue.submit(wanted, 0) if ready else self.queue.hold(wanted)
        except ResourceExhaustedTransient:
            assert not foreseen
            assert total >= self.room or mine >= limit
            assert not own_lower
            if mine < limit:
                assert not greedy_lower
                assert not (mine < share and greedy)
            self.ends[wanted] += 1
            return
        assert foreseen
        (self.queued if ready else self.held).append(wanted)
        assert (given is not None) == (total >= self.room or mine >= limit)
        if given is not None:
            assert given in self.waiting
            assert given.client == wanted.client or taken[given.client] > share
            (self.queued if given in self.queued else self.held).remove(given)
            self.ends[given] += 1

    @rule(priority=st.sampled_from(ALL), client=st.sampled_from((0, 1, 2)), ready=st.booleans())
    def ask(self, priority: Priority, client: int, *, ready: bool) -> None:
        self._asks(job(priority, client), ready=ready)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def get_ready(self, which: int) -> None:
        found = self.held.pop(which % len(self.held))
        assert self.queue.submit(found, 0) is None
        self.queued.append(found)

    @precondition(lambda self: len(self.running) < SERVERS)
    @rule()
    def take(self) -> None:
        found = self.queue.next(0, ALL)
        assert (found is None) == (not self.queued)
        if found is not None:
            self.queued.remove(found)
            self.running.append(found)

    @precondition(lambda self: self.running)
    @rule(preempted=st.booleans())
    def stop(self, *, preempted: bool) -> None:
        found = self.running.pop()
        if preempted:
            self.queue.requeue(found, 0)
            self.queued.append(found)
        else:
            self.ends[found] += 1
        self.queue.ran(found, 1000)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 99))
    def withdraw(self, which: int) -> None:
        found = self.waiting[which % len(self.waiting)]
        assert self.queue.withdraw(found) == (found in self.queued)
        (self.queued if found in self.queued else self.held).remove(found)
        self.ends[found] += 1

    @invariant()
    def bounds_hold(self) -> None:
        assert self.queue.statistics().waiting == len(self.waiting)
        fresh = [each for each in self.waiting if not each.has_begun]
        assert len(fresh) <= self.room
        assert len(self.waiting) <= self.room + SERVERS
        for client, limit in enumerate(self.limits):
            assert sum(each.client == client for each in fresh) <= limit

    @invariant()
    def all_end_once(self) -> None:
        assert set(self.ends.values()) <= {1}
        assert not self.ends.keys() & {*self.waiting, *self.running}

    def teardown(self) -> None:
        """Whatever is left comes out."""
        left = [each for each in self.held if self._submits(each)]
        assert {*drain(self.queue)} == {*self.queued, *left}
        assert self.queue.statistics().waiting == 0

    def _submits(self, held: Job) -> bool:
        try:
            return self.queue.submit(held, 0) is None
        except NNError as error:
            raise AssertionError("a job that has its place was refused") from error


TestPlaces = Places.TestCase
