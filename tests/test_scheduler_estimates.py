"""What an execution takes is learnt from runs, few of which decide alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.workers.admission import may_hold_loop
from nnasync.scheduler import Estimate

MS = 1_000_000


durations = st.integers(1, 10**10)


@given(st.lists(durations, min_size=1))
def test_estimate_stays_between_the_fastest_and_the_slowest(measured: list[int]) -> None:
    estimate = Estimate()
    for duration in measured:
        estimate.observe(duration)
    assert estimate.samples == len(measured)
    slack = 1e-9 * max(measured)
    assert min(measured) - slack <= estimate.ns <= max(measured) + slack
    assert min(measured) - slack <= estimate.floor_ns <= estimate.ns + slack


def test_estimate_follows_a_model_that_becomes_faster_or_slower() -> None:
    estimate = Estimate()
    for duration in [10 * MS] * 20 + [MS] * 60:
        estimate.observe(duration)
    assert estimate.ns == pytest.approx(MS, rel=0.1)
    for duration in [10 * MS] * 400:
        estimate.observe(duration)
    assert estimate.ns == pytest.approx(10 * MS, rel=0.1)
    assert estimate.floor_ns == pytest.approx(10 * MS, rel=0.2)


def test_disturbed_runs_hardly_move_the_estimate() -> None:
    estimate = Estimate()
    for number in range(300):
        estimate.observe(50 * MS if number % 10 == 9 else MS)
    assert estimate.ns < 1.5 * MS


@pytest.mark.parametrize(("every", "rises"), [(20, False), (5, True)])
def test_the_high_quantile_is_what_one_run_in_ten_exceeds(every: int, rises: bool) -> None:
    estimate = Estimate()
    highs = []
    for number in range(2000):
        estimate.observe(20 * MS if number % every == every - 1 else MS)
        highs.append(estimate.high_ns)
    usual = sorted(highs[-1000:])[500]
    assert (usual > 4 * MS) == rises
    assert estimate.best_ns < 2 * MS


def test_one_slow_first_run_is_soon_forgotten() -> None:
    estimate = Estimate()
    assert estimate.high_ns == math.inf
    for duration in [20 * MS] + [MS] * 12:
        estimate.observe(duration)
    assert estimate.high_ns < 2 * MS


def test_runs_on_workers_are_known_apart_and_grow_old() -> None:
    estimate = Estimate()
    estimate.observe(MS)
    for _ in range(40):
        estimate.observe_on_worker(3 * MS)
    assert estimate.worker_ns == pytest.approx(3 * MS, rel=0.01)
    for _ in range(200):
        estimate.observe(MS)
        estimate.try_worker_again()
    assert estimate.worker_ns == pytest.approx(MS, rel=0.1)


def test_runs_on_workers_that_are_slower_there_do_not_keep_it_from_the_loop() -> None:
    """They take 2.5 ms beside others and 1 ms here: two workers would be all that ever runs it."""
    estimate = Estimate()
    for _ in range(20):
        estimate.observe(MS)
        estimate.learn_manner(MS)
    for number in range(200):
        estimate.observe_on_worker(int(2.5 * MS) + number % 3 * MS // 10)
        assert may_hold_loop(estimate.best_ns, estimate.high_ns, 3 * MS, 2 * MS, did=True)
    assert may_hold_loop(estimate.best_ns, estimate.high_ns, 3 * MS, 2 * MS, did=False)


@pytest.mark.parametrize("slower", [1.0, 2.5])
def test_a_length_that_depends_on_the_data_is_seen_on_workers_too(slower: float) -> None:
    estimate = Estimate()
    for _ in range(20):
        estimate.observe(MS)
        estimate.learn_manner(MS)
    allowed = 0
    for number in range(2000):
        estimate.observe_on_worker(int(slower * (40 * MS if number % 5 == 4 else MS)))
        is_late = number > 100
        allowed += is_late and estimate.high_ns <= 2 * MS
    assert allowed == 0


@given(st.integers(1, 10**6), st.floats(20, 10**4))
def test_the_second_run_far_beyond_the_high_quantile_is_believed(quick: int, times: float) -> None:
    estimate = Estimate()
    for _ in range(100):
        estimate.observe(quick)
    estimate.observe(int(quick * times))
    assert estimate.high_ns <= 1.28 * quick  # One may be the operating system's doing.
    estimate.observe(int(quick * times))
    assert estimate.high_ns >= int(quick * times) / 8


def test_far_slower_runs_that_come_seldom_are_taken_for_disturbances() -> None:
    estimate = Estimate()
    for number in range(2000):
        estimate.observe(50 * MS if number % 100 == 99 else MS)
        assert estimate.high_ns < 2 * MS


def test_a_length_that_depends_on_the_data_is_seen_after_two_stalls() -> None:
    estimate = Estimate()
    stalls = 0
    for number in range(5000):
        is_slow = number % 12 == 11
        stalls += is_slow and estimate.high_ns <= 2 * MS
        estimate.observe(200 * MS if is_slow else MS // 10)
    assert stalls == 2


@given(st.integers(1, 10**6), st.integers(1, 10**10), st.booleans())
def test_one_run_on_a_worker_at_most_doubles_what_is_known(
    usual: int, slow: int, has_run_there: bool
) -> None:
    estimate = Estimate()
    for _ in range(50):
        estimate.observe(usual)
    if has_run_there:
        estimate.observe_on_worker(usual)
    estimate.observe_on_worker(slow)
    limit = 1.2 if has_run_there else 2.2
    assert estimate.worker_ns <= limit * usual * 1.000001


@given(st.lists(st.integers(1, 10**10), min_size=1))
def test_the_quantiles_stay_in_order_and_within_what_was_seen(durations: list[int]) -> None:
    estimate = Estimate()
    for duration in durations:
        estimate.observe(duration)
        assert min(durations) <= estimate.best_ns <= max(durations) * 1.000001
        assert estimate.high_ns <= max(durations) * 1.000001


def test_what_was_not_done_for_long_is_taken_to_be_quicker() -> None:
    estimate = Estimate()
    estimate.observe(MS)
    estimate.learn_manner(MS)
    assert estimate.alone_ns == MS
    assert estimate.beside_ns == 0
    estimate.is_beside = True
    for _ in range(2000):
        estimate.learn_manner(2 * MS)
    assert estimate.beside_ns == pytest.approx(2 * MS)
    assert 0.3 * MS < estimate.alone_ns < 0.5 * MS
    estimate.is_beside = False
    for _ in range(3):
        estimate.learn_manner(50 * MS)
    assert estimate.alone_ns < 2 * MS  # A few slow runs at most double it each.


def test_the_first_run_of_a_kind_says_little() -> None:
    """It finds cold caches, and threads that sleep; what was wrongly learnt stays for long."""
    estimate = Estimate()
    for _ in range(20):
        estimate.observe(MS)
        estimate.learn_manner(MS)
    estimate.observe_beside(9 * MS)
    estimate.observe_on_worker(9 * MS)
    assert estimate.alone_ns < estimate.beside_ns < 1.5 * MS
    assert estimate.alone_ns < estimate.worker_ns < 1.5 * MS
    for _ in range(30):
        estimate.observe_beside(2 * MS)
    assert estimate.beside_ns == pytest.approx(2 * MS, rel=0.1)
