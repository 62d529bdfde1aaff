"""The scheduler hands out the right job, once, and refuses only what cannot be met."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from nnasync.errors import MissedDeadlinePersistent, ResourceExhaustedTransient
from nnasync.hal import Priority
from nnasync.scheduler import NEVER_NS, Estimate, Job, Scheduler

LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH
ALL = (HIGH, MEDIUM, LOW)
MS = 1_000_000

priorities = st.sampled_from(ALL)
deadlines = st.one_of(st.just(NEVER_NS), st.integers(1, 50))


def scheduler(*, servers: int = 2, queue_limit: int = 1_000_000) -> Scheduler:
    return Scheduler(servers=servers, queue_limit=queue_limit)


def job(priority: Priority = MEDIUM, deadline_ns: int = NEVER_NS, floor_ns: float = 0.0) -> Job:
    estimate = Estimate()
    estimate.ns = estimate.floor_ns = floor_ns
    return Job(priority, estimate, deadline_ns)


def drain(queue: Scheduler, now_ns: int = 0) -> list[Job]:
    found = []
    while (best := queue.next(now_ns, ALL)) is not None:
        found.append(best)
    return found


def entries(queue: Scheduler) -> int:
    return queue._lanes[0].heap_entries


# -- order


@given(st.lists(st.tuples(priorities, deadlines)))
def test_order_is_priority_then_deadline_then_arrival(wanted: list[tuple[Priority, int]]) -> None:
    queue = scheduler()
    jobs = [job(priority, deadline) for priority, deadline in wanted]
    for each in jobs:
        queue.submit(each, 0)
    ordered = sorted(jobs, key=lambda each: (-each.priority, each.deadline_ns))
    assert drain(queue) == ordered


@given(st.lists(deadlines, min_size=2), st.data())
def test_a_preempted_job_takes_its_old_place(waiting: list[int], data: st.DataObject) -> None:
    queue = scheduler()
    jobs = [job(LOW, deadline) for deadline in waiting]
    for each in jobs:
        queue.submit(each, 0)
    taken = [queue.next(0, ALL) for _ in range(data.draw(st.integers(1, len(jobs))))]
    for preempted in data.draw(st.permutations(taken)):
        assert preempted is not None
        queue.requeue(preempted, 0)
    assert drain(queue) == sorted(jobs, key=lambda each: each.deadline_ns)


@given(st.lists(st.tuples(priorities, deadlines), min_size=1), st.integers(0, 60), st.data())
def test_the_first_is_the_one_that_is_handed_out_next(
    wanted: list[tuple[Priority, int]], now_ns: int, data: st.DataObject
) -> None:
    """Or nobody can tell, as its deadline has passed."""
    queue = scheduler()
    jobs = [job(priority, deadline) for priority, deadline in wanted]
    for each in jobs:
        queue.submit(each, 0)
    for each in jobs:
        if data.draw(st.booleans()):
            queue.withdraw(each)
    asked = data.draw(st.sampled_from([ALL, (HIGH, MEDIUM), (LOW,)]))
    first = queue.first(now_ns, asked)
    found = queue.next(now_ns, asked)
    assert first is found or (first is None and queue.take_expired())


def test_nobody_tells_the_first_of_several_clients_or_of_what_is_due() -> None:
    queue = Scheduler(servers=2, queue_limit=9, aging_ns=10)
    assert queue.first(0, ALL) is None
    old = job(LOW)
    queue.submit(old, 0)
    plain = [queue.only is not None]
    assert queue.first(9, ALL) is old
    assert queue.first(10, ALL) is None, "it is due for its age"
    client = queue.open_client(queue_limit=9)
    plain.append(queue.only is not None)
    assert queue.first(0, ALL) is None
    queue.close_client(client)
    assert [*plain, queue.only is not None] == [True, False, True]
    assert queue.first(0, ALL) is old


def test_only_the_asked_priorities_are_handed_out() -> None:
    queue = scheduler()
    low, medium, high = (job(priority) for priority in (LOW, MEDIUM, HIGH))
    for each in (low, medium, high):
        queue.submit(each, 0)
    assert queue.next(0, (LOW,)) is low
    assert queue.next(0, (LOW,)) is None
    assert queue.next(0, (HIGH, MEDIUM)) is high
    assert queue.queued((HIGH, MEDIUM)) == 1
    assert queue.queued((LOW,)) == 0


def test_waits_above_sees_higher_priorities_only() -> None:
    queue = scheduler()
    assert [queue.waits_above(each) for each in (LOW, MEDIUM, HIGH)] == [False] * 3
    for priority, expected in (
        (LOW, [False, False, False]),
        (MEDIUM, [True, False, False]),
        (HIGH, [True, True, False]),
    ):
        queue.submit(job(priority), 0)
        assert [queue.waits_above(each) for each in (LOW, MEDIUM, HIGH)] == expected


# -- leaving the queue


def test_withdrawn_job_is_not_handed_out() -> None:
    queue = scheduler()
    kept, gone = job(), job()
    queue.submit(gone, 0)
    queue.submit(kept, 0)
    assert queue.withdraw(gone)
    assert not queue.withdraw(gone)
    assert drain(queue) == [kept]
    assert not queue.withdraw(kept)
    assert queue.statistics().withdrawn == 1


def test_withdrawn_job_can_be_submitted_again_and_is_then_last() -> None:
    queue = scheduler()
    first, second = job(), job()
    queue.submit(first, 0)
    queue.submit(second, 0)
    queue.withdraw(first)
    queue.submit(first, 0)
    assert drain(queue) == [second, first]


def test_withdrawn_job_can_be_requeued_beside_its_old_entry() -> None:
    queue = scheduler()
    first, second = job(), job()
    queue.submit(first, 0)
    queue.submit(second, 0)
    queue.withdraw(first)
    queue.requeue(first, 0)
    assert drain(queue) == [first, second]


@given(st.lists(st.booleans(), min_size=200, max_size=400))
@settings(max_examples=20)
def test_what_left_the_queue_leaves_the_memory(withdrawn: list[bool]) -> None:
    """Entries of withdrawn jobs are deleted lazily, but no more of them stay than live ones."""
    queue = scheduler()
    urgent = [job(MEDIUM, 1000) for _ in withdrawn]
    patient = [job(MEDIUM) for _ in withdrawn]
    for each in (*urgent, *patient):
        queue.submit(each, 0)
    for each, goes in zip(patient, withdrawn, strict=True):
        if goes:
            queue.withdraw(each)
            assert entries(queue) <= 2 * queue.queued(ALL) + 64
    for each in urgent:
        assert queue.next(0, ALL) is each
        assert entries(queue) <= 2 * queue.queued(ALL) + 64


def test_expired_job_is_returned_once_and_not_handed_out() -> None:
    queue = scheduler()
    late, later, patient = job(HIGH, 10), job(HIGH, 11), job(HIGH)
    for each in (late, later, patient):
        queue.submit(each, 0)
    assert queue.next(10, ALL) is later
    assert queue.take_expired() == [late]
    assert queue.take_expired() == []
    assert queue.next(NEVER_NS - 1, ALL) is patient
    assert queue.statistics().expired == 1


def test_preempted_job_can_expire_too() -> None:
    queue = scheduler()
    late = job(LOW, 10)
    queue.submit(late, 0)
    assert queue.next(5, ALL) is late
    queue.requeue(late, 5)
    assert queue.next(10, ALL) is None
    assert queue.take_expired() == [late]


# -- admission


def test_full_queue_refuses() -> None:
    queue = scheduler(queue_limit=2)
    queue.submit(job(HIGH), 0)
    queue.submit(job(HIGH), 0)
    with pytest.raises(ResourceExhaustedTransient, match="2 executions are queued"):
        queue.submit(job(HIGH), 0)
    assert queue.statistics().refused == 1
    assert queue.next(0, ALL) is not None
    queue.submit(job(HIGH), 0)


def test_preempted_job_is_never_refused() -> None:
    queue = scheduler(queue_limit=1)
    preempted = job(LOW)
    queue.submit(preempted, 0)
    assert queue.next(0, ALL) is preempted
    queue.submit(job(LOW), 0)
    queue.requeue(preempted, 0)
    assert queue.next(0, ALL) is preempted


def test_deadline_in_the_past_is_refused_and_costs_the_estimate_nothing() -> None:
    queue = scheduler()
    late = job(MEDIUM, 5, floor_ns=3.0)
    with pytest.raises(MissedDeadlinePersistent, match="had passed"):
        queue.submit(late, 5)
    assert late.estimate.floor_ns == 3.0
    assert queue.next(0, ALL) is None


@given(
    st.integers(1, 4),
    st.lists(st.tuples(priorities, st.integers(0, 30))),
    priorities,
    st.integers(0, 40),
    st.integers(1, 60),
)
def test_refused_exactly_if_the_optimistic_sum_is_too_long(
    servers: int,
    ahead: list[tuple[Priority, int]],
    priority: Priority,
    floor_ns: int,
    remaining_ns: int,
) -> None:
    queue = scheduler(servers=servers)
    for other, cost_ns in ahead:
        queue.submit(job(other, floor_ns=float(cost_ns)), 0)
    above = sum(cost for other, cost in ahead if other > priority)
    meets = above + floor_ns * servers <= remaining_ns * servers
    candidate = job(priority, 100 + remaining_ns, floor_ns=float(floor_ns))
    if meets:
        queue.submit(candidate, 100)
        assert candidate in drain(queue)
    else:
        with pytest.raises(MissedDeadlinePersistent, match="needs at least"):
            queue.submit(candidate, 100)
        assert candidate not in drain(queue)


def test_backlog_is_given_back_when_jobs_leave() -> None:
    queue = scheduler(servers=1)
    heavy, withdrawn, expiring = (job(HIGH, 30, floor_ns=10.0) for _ in range(3))
    for each in (heavy, withdrawn, expiring):
        queue.submit(each, 0)
    with pytest.raises(MissedDeadlinePersistent):
        queue.submit(job(LOW, 29), 0)
    assert queue.next(0, ALL) is heavy
    queue.withdraw(withdrawn)
    queue.submit(job(LOW, 29), 0)
    with pytest.raises(MissedDeadlinePersistent):
        queue.submit(job(LOW, 9), 0)
    queue.next(30, (HIGH,))
    queue.submit(job(LOW, 9), 0)


def test_refused_model_is_tried_again() -> None:
    """One unlucky measurement must not lock a model out for good."""
    estimate = Estimate()
    estimate.observe(100 * MS)
    queue = scheduler()
    refusals = 0
    while True:
        try:
            queue.submit(Job(MEDIUM, estimate, 50 * MS), 0)
            break
        except MissedDeadlinePersistent:
            refusals += 1
    assert refusals == math.ceil(math.log(0.5) / math.log(0.95))


# -- everything together, against a model that sorts a list


class Naive(RuleBasedStateMachine):
    """Any sequence of calls agrees with a sorted list."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 12
        self.queue = scheduler(queue_limit=self.limit)
        self.now_ns = 0
        self.waiting: dict[Job, int] = {}
        self.expired: list[Job] = []
        self.arrivals: dict[Job, int] = {}
        self.counts = dict.fromkeys(
            (
                "submitted",
                "dispatched",
                "requeued",
                "withdrawn",
                "expired",
                "displaced",
                "refused",
                "missed",
            ),
            0,
        )
        self.begun: set[Job] = set()

    submitted: Bundle[Job] = Bundle("submitted")
    running: Bundle[Job] = Bundle("running")
    withdrawn: Bundle[Job] = Bundle("withdrawn")

    def _submit(self, wanted: Job) -> bool:
        full = len(self.waiting) >= self.limit
        late = wanted.deadline_ns <= self.now_ns
        lower = [each for each in self.waiting if each.priority < wanted.priority]
        try:
            given = self.queue.submit(wanted, self.now_ns)
        except ResourceExhaustedTransient:
            assert full
            assert not lower
            self.counts["refused"] += 1
            return False
        except MissedDeadlinePersistent:
            assert late
            assert lower or not full
            self.counts["missed"] += 1
            return False
        assert not late
        assert (given is not None) == full
        if given is not None:
            lower.sort(key=lambda each: (each.priority, each in self.begun, -self.arrivals[each]))
            assert given.priority == lower[0].priority
            assert given in self.begun or given is lower[0]
            del self.waiting[given]
            self.counts["displaced"] += 1
        self.counts["submitted"] += 1
        self.waiting[wanted] = self.arrivals[wanted] = self.counts["submitted"]
        return True

    @rule(target=submitted, priority=priorities, in_ns=st.one_of(st.none(), st.integers(-3, 20)))
    def submit(self, priority: Priority, in_ns: int | None) -> MultipleResults[Job] | Job:
        wanted = job(priority, NEVER_NS if in_ns is None else self.now_ns + in_ns)
        return wanted if self._submit(wanted) else multiple()

    @rule(target=submitted, wanted=consumes(withdrawn))
    def submit_again(self, wanted: Job) -> MultipleResults[Job] | Job:
        return wanted if self._submit(wanted) else multiple()

    @rule(target=running, asked=st.sampled_from([ALL, (HIGH, MEDIUM), (LOW,)]))
    def take(self, asked: tuple[Priority, ...]) -> MultipleResults[Job] | Job:
        handed = self.queue.next(self.now_ns, asked)
        order = sorted(
            (each for each in self.waiting if each.priority in asked),
            key=lambda each: (-each.priority, each.deadline_ns, self.arrivals[each]),
        )
        for each in order:
            del self.waiting[each]
            if each.deadline_ns > self.now_ns:
                self.counts["dispatched"] += 1
                assert handed is each
                return handed
            self.counts["expired"] += 1
            self.expired.append(each)
        assert handed is None
        return multiple()

    @rule(preempted=consumes(running))
    def requeue(self, preempted: Job) -> None:
        self.queue.requeue(preempted, self.now_ns)
        self.begun.add(preempted)
        self.waiting[preempted] = self.arrivals[preempted]
        self.counts["requeued"] += 1

    @rule(target=withdrawn, wanted=consumes(submitted))
    def withdraw(self, wanted: Job) -> MultipleResults[Job] | Job:
        waited = self.waiting.pop(wanted, None) is not None
        assert self.queue.withdraw(wanted) == waited
        self.counts["withdrawn"] += waited
        return wanted if waited else multiple()

    @rule(by_ns=st.integers(1, 10))
    def pass_time(self, by_ns: int) -> None:
        self.now_ns += by_ns

    @rule()
    def take_expired(self) -> None:
        assert self.queue.take_expired() == self.expired
        self.expired = []

    @invariant()
    def counts_agree(self) -> None:
        found = self.queue.statistics()
        assert {name: getattr(found, name) for name in self.counts} == self.counts
        came = found.submitted + found.requeued
        left = found.dispatched + found.withdrawn + found.expired + found.displaced
        assert came == left + sum(found.queued)
        assert found.waiting == len(self.waiting)
        for priority in ALL:
            waiting = sum(each.priority is priority for each in self.waiting)
            assert found.queued[priority] == waiting == self.queue.queued((priority,))

    @invariant()
    def heap_is_bounded(self) -> None:
        assert entries(self.queue) <= 2 * len(self.waiting) + 3 * 64

    def teardown(self) -> None:
        """Whatever is left comes out, each job once."""
        left = [each for each in self.waiting if each.deadline_ns > self.now_ns]
        assert sorted(map(id, drain(self.queue, self.now_ns))) == sorted(map(id, left))


TestAgainstASortedList = Naive.TestCase
TestAgainstASortedList.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
