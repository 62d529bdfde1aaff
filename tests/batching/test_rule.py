"""The rule of batching: who goes with whom, and when."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from nnasync.batching.rule import (
    MARGIN_NS,
    Costs,
    Together,
    Until,
    Waiting,
    earliest_end_ns,
    latest_start_ns,
    next_step,
)

MS = 1_000_000
NOW = 1000 * MS

requests = st.builds(
    Waiting,
    st.integers(1, 5),
    st.integers(NOW - 20 * MS, NOW),
    st.one_of(st.just(math.inf), st.integers(NOW - 5 * MS, NOW + 100 * MS)),
)
queues = st.lists(requests, min_size=1, max_size=12)
prices = st.tuples(st.integers(0, 20 * MS), st.integers(0, 5 * MS))


def linear(price: tuple[int, int]) -> Costs:
    """A fixed price, and one for each row."""
    costs = Costs()
    for rows in range(1, 80):
        costs.observe(rows, price[0] + price[1] * rows)
    return costs


@given(queues, prices, st.integers(0, 50 * MS), st.integers(1, 16))
def test_the_most_urgent_one_goes_and_nobody_is_made_late(
    waiting: list[Waiting], price: tuple[int, int], window_ns: int, most_rows: int
) -> None:
    cost_of = linear(price)
    step = next_step(waiting, NOW, cost_of, window_ns, most_rows)
    urgent = min(range(len(waiting)), key=lambda n: (waiting[n].deadline_ns, waiting[n].arrived_ns))
    if isinstance(step, Until):
        assert step.at_ns > NOW
        assert step.at_ns <= min(each.arrived_ns for each in waiting) + 20 * MS + window_ns
        assert step.at_ns <= waiting[urgent].deadline_ns - MARGIN_NS
        return
    members = [waiting[place] for place in step.members]
    assert len(set(step.members)) == len(step.members)
    assert step.members[0] == urgent
    rows = sum(each.rows for each in members)
    if len(members) > 1:
        assert rows <= most_rows
        assert all(NOW + cost_of(rows) <= each.deadline_ns for each in members)


@given(queues, prices, st.integers(0, 50 * MS), st.integers(1, 16))
def test_waiting_ends(
    waiting: list[Waiting], price: tuple[int, int], window_ns: int, most_rows: int
) -> None:
    cost_of = linear(price)
    step, now = next_step(waiting, NOW, cost_of, window_ns, most_rows), NOW
    for _ in waiting:
        if isinstance(step, Together):
            break
        now = math.ceil(step.at_ns)
        step = next_step(waiting, now, cost_of, window_ns, most_rows)
    assert isinstance(step, Together)


def test_a_full_batch_goes_at_once() -> None:
    waiting = [Waiting(1, NOW)] * 5
    assert next_step(waiting, NOW, Costs(), 10 * MS, 4) == Together((0, 1, 2, 3))
    assert next_step(waiting[:3], NOW, Costs(), 10 * MS, 4) == Until(NOW + 10 * MS)
    assert next_step(waiting[:3], NOW, Costs(), 0, 4) == Together((0, 1, 2))


def test_a_request_larger_than_a_batch_goes_alone() -> None:
    assert next_step([Waiting(9, NOW), Waiting(1, NOW)], NOW, Costs(), MS, 4) == Together((0,))


def test_who_is_late_anyway_makes_nobody_else_late() -> None:
    waiting = [Waiting(1, NOW), Waiting(1, NOW, NOW + MS)]
    assert next_step(waiting, NOW, linear((2 * MS, 0)), 0, 4) == Together((1,))


def test_slack_is_spent_before_the_window() -> None:
    waiting = [Waiting(1, NOW, NOW + 20 * MS)]
    assert next_step(waiting, NOW, linear((3 * MS, 0)), 50 * MS, 4) == Until(NOW + 14 * MS)
    assert latest_start_ns([], 5, 7) == 7
    assert latest_start_ns([100 * MS], 0, math.inf) == 100 * MS - MARGIN_NS


def test_the_earliest_end_counts_full_batches_ahead() -> None:
    cost_of = linear((0, MS))
    assert earliest_end_ns(1, NOW, 0, cost_of, 4, 1) == NOW + MS
    assert earliest_end_ns(1, NOW, 3, cost_of, 4, 1) == NOW + MS
    assert earliest_end_ns(1, NOW, 9, cost_of, 4, 1) == NOW + 9 * MS
    assert earliest_end_ns(1, NOW, 9, cost_of, 4, 2) == NOW + 5 * MS


@given(st.dictionaries(st.integers(1, 64), st.integers(1, 10**9), min_size=1), st.integers(1, 64))
def test_costs_lie_between_what_is_known(known: dict[int, int], rows: int) -> None:
    costs = Costs()
    for each, cost_ns in known.items():
        costs.observe(each, cost_ns)
    assert all(costs(each) == cost_ns for each, cost_ns in known.items())
    if min(known) <= rows <= max(known):
        assert min(known.values()) <= costs(rows) <= max(known.values())
    assert costs(rows) > 0


def test_costs_follow_what_runs_take() -> None:
    costs = Costs()
    assert costs(3) == 0
    costs.observe(2, 100)
    assert (costs(1), costs(4)) == (100, 200)
    for _ in range(50):
        costs.observe(2, 300)
    assert 295 < costs(2) <= 300


def test_nobody_waits_into_a_deadline_while_it_is_not_known_how_long_a_run_takes() -> None:
    due = Waiting(1, NOW, NOW + 50 * MS)
    assert next_step([due], NOW, Costs(), 100 * MS, 8) == Together((0,))
    assert isinstance(next_step([Waiting(1, NOW)], NOW, Costs(), 100 * MS, 8), Until)
    assert next_step([due], NOW, linear((MS, 0)), 100 * MS, 8) == Until(NOW + 48 * MS)
