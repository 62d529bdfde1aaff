"""Nothing below HIGH is starved for ever, and HIGH is put off once in a bound at most."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from nnasync.hal import Priority
from nnasync.scheduler import NEVER_NS, Estimate, Job, Scheduler

LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH
ALL = (HIGH, MEDIUM, LOW)

deadlines = st.one_of(st.just(NEVER_NS), st.integers(1, 50))


def job(priority: Priority, deadline_ns: int = NEVER_NS) -> Job:
    return Job(priority, Estimate(), deadline_ns)


AGING = 100


def aging(*, servers: int = 1) -> Scheduler:
    return Scheduler(servers=servers, queue_limit=1_000_000, aging_ns=AGING)


def take(queue: Scheduler, now_ns: int, asked: Sequence[Priority] = ALL) -> Job:
    found = queue.next(now_ns, asked)
    assert found is not None
    return found


@given(
    st.lists(st.sampled_from([LOW, MEDIUM]), min_size=1, max_size=12),
    st.lists(st.integers(0, AGING - 1), min_size=1, max_size=12),
    st.integers(1, 2 * AGING),
)
def test_nothing_is_starved_by_high(
    waiting: list[Priority], arrivals: list[int], dispatch_every_ns: int
) -> None:
    """The n-th of its priority comes within n bounds and 2 n dispatches, in a flood of HIGH."""
    queue = aging()
    at = sorted(arrivals[number % len(arrivals)] for number in range(len(waiting)))
    jobs = [job(priority) for priority in waiting]
    for each, now_ns in zip(jobs, at, strict=True):
        queue.submit(each, now_ns)
    handed: dict[Job, int] = {}
    now_ns = AGING
    while len(handed) < len(jobs):
        queue.submit(job(HIGH), now_ns)
        best = take(queue, now_ns)
        if best in jobs:
            handed[best] = now_ns
        now_ns += dispatch_every_ns
    for priority in (LOW, MEDIUM):
        same = [each for each in jobs if each.priority is priority]
        assert sorted(same, key=handed.__getitem__) == same
        for place, each in enumerate(same, 1):
            bound = place * (AGING + 2 * dispatch_every_ns)
            assert AGING <= handed[each] - each.since_ns <= bound
    assert queue.statistics().aged == len(jobs)


@given(st.lists(deadlines, min_size=1), st.integers(0, 12), st.integers(1, AGING))
def test_of_high_only_one_in_each_bound_is_put_off(
    wanted: list[int], low: int, every_ns: int
) -> None:
    """And HIGH keeps its own order."""
    queue = aging()
    for _ in range(low):
        queue.submit(job(LOW), 0)
    urgent = [job(HIGH, NEVER_NS if each == NEVER_NS else 10**6 + each) for each in wanted]
    for each in urgent:
        queue.submit(each, 0)
    order, aged_ns, now_ns = [], [], 0
    while queue.queued((HIGH,)):
        best = take(queue, now_ns)
        if best.priority is HIGH:
            order.append(best)
        else:
            aged_ns.append(now_ns)
        now_ns += every_ns
    assert order == sorted(urgent, key=lambda each: each.deadline_ns)
    assert all(later - earlier >= AGING for earlier, later in itertools.pairwise([0, *aged_ns]))


def test_what_is_due_is_shielded_and_what_is_not_is_not() -> None:
    queue = aging()
    early, late, urgent = job(LOW), job(LOW), job(HIGH)
    queue.submit(early, 0)
    queue.submit(late, 50)
    queue.submit(urgent, 99)
    assert queue.due_ns(LOW) == 100
    assert take(queue, 99) is urgent
    assert take(queue, 100) is early
    assert (early.shielded_until_ns, urgent.shielded_until_ns) == (105, 0)
    assert queue.due_ns(LOW) == 200
    assert take(queue, 199) is late
    assert late.shielded_until_ns == 0
    assert queue.due_ns(LOW) == NEVER_NS


def test_a_priority_that_is_served_is_not_due() -> None:
    """A long queue of LOW that moves is no reason to put HIGH off."""
    queue = aging()
    for _ in range(50):
        queue.submit(job(LOW), 0)
    queue.submit(job(HIGH), 0)
    for now_ns in range(0, 1000, 50):
        assert take(queue, now_ns, (LOW,)).shielded_until_ns == 0
    assert queue.statistics().aged == 0


def test_an_impatient_stream_does_not_starve_the_patient() -> None:
    queue = aging()
    patient = job(LOW)
    queue.submit(patient, 0)
    for now_ns in range(0, 200, 10):
        queue.submit(job(LOW, 10_000 + now_ns), now_ns)
        if take(queue, now_ns) is patient:
            break
    assert now_ns == AGING


def test_a_preempted_job_keeps_its_age_and_waits_for_the_next_bound() -> None:
    queue = aging()
    old, young = job(LOW), job(LOW)
    queue.submit(old, 0)
    queue.submit(young, 10)
    assert take(queue, 100, (LOW,)) is old
    queue.requeue(old, 105)
    queue.submit(job(HIGH), 105)
    assert queue.due_ns(LOW) == 205
    assert take(queue, 204).priority is HIGH
    queue.submit(job(HIGH), 205)
    assert take(queue, 205) is old


def test_expired_jobs_are_not_handed_out_for_their_age() -> None:
    queue = aging()
    late, patient = job(LOW, 150), job(LOW)
    queue.submit(late, 0)
    queue.submit(patient, 0)
    queue.submit(job(HIGH), 0)
    assert take(queue, 150) is patient
    assert queue.take_expired() == [late]


def test_high_does_not_age_and_aging_can_be_off() -> None:
    queue = aging()
    queue.submit(job(HIGH), 0)
    assert queue.due_ns(HIGH) == NEVER_NS
    never = Scheduler(servers=1, queue_limit=9, aging_ns=NEVER_NS)
    never.submit(job(LOW), 0)
    never.submit(job(HIGH), 0)
    assert take(never, NEVER_NS - 1).priority is HIGH


def test_a_job_that_left_is_not_kept_alive() -> None:
    """Its memory would be that of a whole execution."""

    class Watched(Job):
        __slots__ = ("__weakref__",)

    queue = aging()
    queue.submit(job(LOW), 0)
    references = []
    for deadline_ns in (50, 60, NEVER_NS):
        urgent = Watched(LOW, Estimate(), deadline_ns)
        references.append(weakref.ref(urgent))
        queue.submit(urgent, 0)
        if deadline_ns == NEVER_NS:
            queue.withdraw(urgent)
        else:
            assert take(queue, 0) is urgent
    del urgent
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


@given(st.integers(10, 300))
@settings(max_examples=10)
def test_ages_of_what_left_leave_the_memory(count: int) -> None:
    queue = aging()
    jobs = [job(MEDIUM, 1000 + number) for number in range(count)]
    for each in jobs:
        queue.submit(each, 0)
    for each in reversed(jobs):
        queue.withdraw(each)
        assert queue._lanes[0].age_entries <= 2 * queue.queued(ALL) + 64
