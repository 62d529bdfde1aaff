"""What is known of a loop's lag: a lower bound, which fades and never keeps work out for good."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.lag import Lag
from nnasync.errors import MissedDeadlinePersistent
from nnasync.hal import Priority
from nnasync.scheduler import Estimate, Job, Scheduler

MS = 1_000_000
S = 1000 * MS

lags = st.integers(0, 10 * S)


def test_one_stall_says_nothing_and_three_do() -> None:
    lag = Lag()
    for count in range(2):
        lag.observe(2 * S, count * 2 * S)
        assert lag.estimate_ns(count * 2 * S) == 0
    lag.observe(S, 5 * S)
    assert lag.estimate_ns(5 * S) == S
    lag.observe(MS, 5 * S)
    assert lag.estimate_ns(5 * S) == MS


def test_it_fades_by_its_own_length() -> None:
    lag = Lag()
    for _ in range(3):
        lag.observe(2 * S, 0)
    assert lag.estimate_ns(2 * S) == S
    assert lag.estimate_ns(6 * S) == pytest.approx(S / 4)
    for _ in range(3):
        lag.observe(MS, 0)
    assert lag.estimate_ns(100 * MS) == MS / 2


@given(st.lists(st.tuples(lags, lags), min_size=1), lags)
def test_it_is_never_more_than_each_of_the_last_three(
    samples: list[tuple[int, int]], later_ns: int
) -> None:
    lag, now_ns = Lag(), 0
    for sample_ns, pause_ns in samples:
        now_ns += pause_ns
        lag.observe(sample_ns, now_ns)
        before = lag.estimate_ns(now_ns)
        assert 0 <= lag.estimate_ns(now_ns + later_ns) <= before
    last = [0, 0, 0, *(sample_ns for sample_ns, _ in samples)][-3:]
    assert before == min(last)


@given(st.lists(lags, min_size=3, max_size=9), st.integers(1, S))
def test_without_another_sample_it_keeps_nobody_out_for_ever(
    samples: list[int], budget_ns: int
) -> None:
    lag = Lag()
    for sample_ns in samples:
        lag.observe(sample_ns, 0)
    assert lag.estimate_ns(40 * max(10 * S, 100 * MS)) < budget_ns


class Loop:
    """A loop in virtual time: a turn takes so long, calls come in each of them."""

    def __init__(self, budget_ns: int) -> None:
        self.lag = Lag()
        self.queue = Scheduler(servers=1, queue_limit=1000)
        self.now_ns = 0
        self.budget_ns = budget_ns
        self.admitted: list[Job] = []
        self.refused = 0

    def turn(self, length_ns: int, calls: int) -> int:
        """What ended, or was refused, is heard of after this turn; how many were let in."""
        posted_ns, measured, admitted = self.now_ns, bool(self.admitted), 0
        self.admitted.clear()
        for _ in range(calls):
            estimate = Estimate()
            estimate.floor_ns = 1.0
            job = Job(Priority.MEDIUM, estimate, self.now_ns + self.budget_ns)
            job.heard_after_ns = self.lag.estimate_ns(self.now_ns)
            try:
                self.queue.submit(job, self.now_ns)
            except MissedDeadlinePersistent:
                self.refused += 1
                measured = True
                assert estimate.floor_ns == 1.0
            else:
                self.queue.withdraw(job)
                self.admitted.append(job)
                admitted += 1
        self.now_ns += length_ns
        if measured or self.admitted:
            self.lag.observe(self.now_ns - posted_ns, self.now_ns)
        return admitted


@given(st.integers(10, 3000), st.integers(1, 200))
def test_a_loop_that_lags_refuses_and_one_that_does_not_any_more_admits(
    slow_ms: int, budget_ms: int
) -> None:
    loop = Loop(budget_ms * MS)
    let_in = [loop.turn(slow_ms * MS, 4) for _ in range(8)]
    assert let_in[:3] == [4, 4, 4]
    assert all(let_in[3:]) == (slow_ms < budget_ms)
    loop.turn(MS // 2, 1)
    assert loop.turn(MS // 2, 4) == 4


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 200))
def test_admission_adds_the_lag_to_the_floor(floor: int, lag: int, remaining: int) -> None:
    queue, estimate = Scheduler(servers=1, queue_limit=9), Estimate()
    estimate.floor_ns = float(floor)
    job = Job(Priority.MEDIUM, estimate, 100 + remaining)
    job.heard_after_ns = float(lag)
    if floor + lag <= remaining:
        queue.submit(job, 100)
        return
    with pytest.raises(MissedDeadlinePersistent, match="needs at least") as caught:
        queue.submit(job, 100)
    assert caught.value.reason == "admission"
    assert ("hears of its end" in str(caught.value)) == (lag > 0)
    assert (estimate.floor_ns < floor) == (floor > remaining)
    assert queue.statistics().missed == 1
