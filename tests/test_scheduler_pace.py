"""Admission behind what is queued: what is let in ends in time, also where runs take longer."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import MissedDeadlinePersistent
from nnasync.hal import Priority
from nnasync.scheduler import NEVER_NS, Estimate, Job, Scheduler
from nnasync.scheduler.pace import Pace

LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH
ALL = (HIGH, MEDIUM, LOW)
MS = 1_000_000


def job(priority: Priority = MEDIUM, deadline_ns: int = NEVER_NS, floor_ns: float = MS) -> Job:
    estimate = Estimate()
    estimate.ns = estimate.floor_ns = floor_ns
    made = Job(priority, estimate, deadline_ns)
    made.floor_ns = floor_ns
    return made


def scheduler(servers: int = 1) -> Scheduler:
    return Scheduler(servers=servers, queue_limit=1_000_000)


# -- the pace


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_nothing_is_added_before_something_was_learnt(servers: int) -> None:
    assert Pace(servers).wait_ns(MEDIUM, 12 * MS) == 12 * MS / servers


@pytest.mark.parametrize("factor", [1, 2, 5])
def test_what_leaves_at_a_pace_tells_how_long_others_wait(factor: int) -> None:
    pace = Pace(2)
    for number in range(1, 300):
        pace.handed_out(job(), number * factor * MS // 2, left=1)
    assert pace.wait_ns(MEDIUM, 10 * MS) == pytest.approx(1.25 * factor * 5 * MS, rel=0.01)
    assert pace.wait_ns(HIGH, 10 * MS) == 5 * MS


def test_pauses_in_which_nothing_waits_do_not_count() -> None:
    pace = Pace(1)
    for number in range(1, 100):
        pace.handed_out(job(), number * 1000 * MS, left=1)
        pace.handed_out(job(), (number * 1000 + 2) * MS, left=0)
    assert pace.wait_ns(MEDIUM, MS) == pytest.approx(2.5 * MS, rel=0.05)


def test_who_goes_on_after_giving_way_was_counted_already() -> None:
    pace, resumed = Pace(1), job()
    resumed.has_begun = True
    for number in range(1, 300):
        pace.handed_out(job(), number * 4 * MS, left=1)
        pace.handed_out(resumed, (number * 4 + 1) * MS, left=1)
    assert pace.wait_ns(MEDIUM, MS) == pytest.approx(1.25 * 4 * MS, rel=0.01)


def test_what_was_learnt_long_ago_is_no_reason_to_refuse() -> None:
    pace = Pace(2)
    for number in range(1, 300):
        pace.handed_out(job(), number * 5 * MS, left=1)
    pace.handed_out(job(), 1500 * MS, left=0)
    waits = []
    for second in range(20):
        pace.grow_old(MEDIUM, (1500 + 1000 * second) * MS)
        waits.append(pace.wait_ns(MEDIUM, MS))
    assert waits[0] == pytest.approx(1.25 * 5 * MS, rel=0.01)
    assert waits[1] == pytest.approx(1.25 * 2.75 * MS, rel=0.01)
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] == pytest.approx(1.25 * MS / 2, rel=0.01)


def test_a_queue_that_does_not_move_is_news() -> None:
    pace = Pace(2)
    for number in range(1, 300):
        pace.handed_out(job(), number * 5 * MS, left=1)
    pace.grow_old(MEDIUM, 60_000 * MS)
    assert pace.wait_ns(MEDIUM, MS) == pytest.approx(1.25 * 5 * MS, rel=0.01)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_pause_after_the_last_was_withdrawn_or_late_does_not_count(is_late: bool) -> None:
    queue, now_ns = scheduler(), 1
    for _ in range(100):
        queue.submit(job(MEDIUM, now_ns + 50 * MS), now_ns)
        queue.submit(last := job(MEDIUM, now_ns + 100 * MS), now_ns)
        assert queue.next(now_ns + MS, ALL) is not None
        if is_late:
            assert queue.next(now_ns + 200 * MS, ALL) is None
        else:
            queue.withdraw(last)
        now_ns += 10_000 * MS
    assert queue._pace.wait_ns(MEDIUM, MS) == MS


def test_nobody_is_refused_for_ever_for_an_overload_that_is_over() -> None:
    queue, now_ns = scheduler(servers=2), 1
    last = job(MEDIUM)
    queue.submit(last, now_ns)
    for _ in range(300):
        queue.submit(last := job(MEDIUM), now_ns)
        now_ns += 50 * MS
        queue.next(now_ns, ALL)
    queue.withdraw(last)
    refused = 0
    for _ in range(100):
        now_ns += 1000 * MS
        queue.submit(job(MEDIUM, now_ns + 5 * MS), now_ns)
        try:
            queue.submit(job(MEDIUM, now_ns + 10 * MS), now_ns)
        except MissedDeadlinePersistent:
            refused += 1
        while queue.next(now_ns, ALL) is not None:
            pass
    assert refused < 4


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.floats(0, 1e12), st.integers(0, 2))),
    st.floats(0, 1e12),
)
def test_a_wait_is_between_what_it_takes_at_least_and_a_limit(
    left: list[tuple[int, float, int]], least_ns: float
) -> None:
    pace, now_ns = Pace(2), 1
    for pause_ns, floor_ns, others in left:
        now_ns += pause_ns
        pace.handed_out(job(floor_ns=floor_ns), now_ns, others)
    assert least_ns / 2 <= pace.wait_ns(MEDIUM, least_ns) <= 64 * 1.25 * least_ns / 2


# -- what is refused


def test_what_is_due_no_later_goes_before() -> None:
    queue = scheduler()
    for _ in range(3):
        queue.submit(job(MEDIUM, 30 * MS, 8 * MS), 0)
    with pytest.raises(MissedDeadlinePersistent, match=r"24\.000 ms after what goes before it"):
        queue.submit(job(MEDIUM, 30 * MS, 8 * MS), 0)
    queue.submit(job(MEDIUM, 32 * MS, 8 * MS), 0)


def test_what_is_due_earlier_than_others_does_not_wait_for_them() -> None:
    queue = scheduler()
    queue.submit(job(MEDIUM, 100 * MS, 40 * MS), 0)
    queue.submit(job(MEDIUM, 10 * MS, 8 * MS), 0)
    queue.submit(job(MEDIUM, NEVER_NS, 40 * MS), 0)
    queue.submit(job(MEDIUM, 110 * MS, 40 * MS), 0)


def test_what_left_the_queue_is_not_waited_for() -> None:
    queue = scheduler()
    gone = [job(MEDIUM, 30 * MS, 10 * MS) for _ in range(3)]
    for each in gone:
        queue.submit(each, 0)
    for each in gone:
        queue.withdraw(each)
    queue.submit(job(MEDIUM, 11 * MS, 10 * MS), 0)


def test_a_refusal_behind_others_costs_the_estimate_nothing() -> None:
    queue = scheduler()
    queue.submit(job(MEDIUM, 10 * MS, 10 * MS), 0)
    refused = job(MEDIUM, 12 * MS, 8 * MS)
    with pytest.raises(MissedDeadlinePersistent):
        queue.submit(refused, 0)
    assert refused.estimate.floor_ns == 8 * MS


@given(st.lists(st.integers(1, 10**10), max_size=40), st.integers(1, 10**9))
def test_who_finds_nothing_queued_is_let_in_whatever_was_learnt(
    pauses: list[int], floor_ns: int
) -> None:
    queue, now_ns = scheduler(), 1
    queue.submit(job(MEDIUM, floor_ns=MS), now_ns)
    for pause_ns in pauses:
        queue.submit(job(MEDIUM, floor_ns=MS), now_ns)
        now_ns += pause_ns
        queue.next(now_ns, ALL)
    while queue.next(now_ns, ALL) is not None:
        pass
    queue.submit(job(MEDIUM, now_ns + floor_ns, float(floor_ns)), now_ns)


# -- overload


def overloaded(
    *, load: float, floor_ms: float, run_ms: float, deadline_ms: float, seed: int = 1
) -> tuple[int, int, int, float]:
    """Submitted, let in, in time, and the share of two servers that was busy, of 20 seconds."""
    chance, queue = random.Random(seed), scheduler(servers=2)
    ends: list[int] = []
    at_ns, submitted, admitted, in_time, busy_ns = 1, 0, 0, 0, 0

    def serve(until_ns: int) -> None:
        nonlocal in_time, busy_ns
        while len(ends) < 2 or ends[0] <= until_ns:
            now_ns = heapq.heappop(ends) if len(ends) == 2 else until_ns
            found = queue.next(now_ns, ALL)
            if found is None:
                return
            run_ns = int(chance.uniform(0.7, 1.3) * run_ms * MS)
            heapq.heappush(ends, now_ns + run_ns)
            in_time += now_ns + run_ns <= found.deadline_ns
            busy_ns += run_ns

    while at_ns < 20_000 * MS:
        serve(at_ns)
        submitted += 1
        try:
            due_ns = at_ns + int(deadline_ms * MS)
            queue.submit(job(MEDIUM, due_ns, floor_ms * MS), at_ns)
            admitted += 1
        except MissedDeadlinePersistent:
            pass
        at_ns += int(chance.expovariate(load * 2 / run_ms) * MS) + 1
    serve(at_ns)
    return submitted, admitted, in_time, busy_ns / (2 * at_ns)


@pytest.mark.parametrize("slower", [1.0, 1.7, 4.0])
@pytest.mark.parametrize("load", [1.3, 2.0, 5.0])
def test_nearly_all_that_is_let_in_ends_in_time_and_no_core_idles(
    load: float, slower: float
) -> None:
    submitted, admitted, in_time, busy = overloaded(
        load=load, floor_ms=3 / slower, run_ms=3, deadline_ms=100
    )
    assert in_time > 0.97 * admitted
    assert in_time > 0.95 * submitted / load
    assert busy > 0.98


def test_nothing_is_refused_that_does_not_have_to_wait_for_long() -> None:
    submitted, admitted, in_time, _ = overloaded(load=0.6, floor_ms=2, run_ms=3, deadline_ms=100)
    assert submitted == admitted
    assert in_time >= submitted - 2  # Those that come last still wait or run.
