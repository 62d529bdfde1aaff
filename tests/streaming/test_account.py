"""The account of a stream: its invariant, its histogram, its refusals."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from nnasync.errors import BadState, InvalidArgument
from nnasync.streaming.account import Account, Entry, Histogram, Ledger, Outcome


def total(account: Account) -> int:
    return (
        account.completed
        + account.missed
        + account.dropped
        + account.cancelled
        + account.failed
        + account.pending
        + account.passed
        + account.filtered
        + account.merged
    )


class LedgerMachine(RuleBasedStateMachine):
    pending = Bundle("pending")
    settled = Bundle("settled")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.expected = dict.fromkeys(Outcome, 0)
        self.open = 0

    @rule(target=pending, has_deadline=st.booleans())
    def submit(self, has_deadline: bool) -> Entry:
        self.open += 1
        return self.ledger.submit(has_deadline=has_deadline)

    @rule(
        target=settled,
        entry=consumes(pending),
        outcome=st.sampled_from(Outcome),
        latency_ns=st.none() | st.integers(-5, 10**12),
    )
    def settle(self, entry: Entry, outcome: Outcome, latency_ns: int | None) -> Entry:
        entry.settle(outcome, latency_ns=latency_ns)
        self.expected[outcome] += 1
        self.open -= 1
        return entry

    @rule(entry=settled, outcome=st.sampled_from(Outcome))
    def settle_again(self, entry: Entry, outcome: Outcome) -> None:
        with pytest.raises(BadState, match="cannot be settled again"):
            entry.settle(outcome)

    @invariant()
    def balances(self) -> None:
        account = self.ledger.account
        assert account.submitted == total(account)
        assert account.pending == self.open
        assert {o: getattr(account, o.value) for o in Outcome} == self.expected

    @invariant()
    def hits_are_within_deadlines(self) -> None:
        statistics = self.ledger.statistics()
        assert 0 <= statistics.hits <= statistics.deadlines <= statistics.account.submitted
        assert 0.0 <= statistics.hit_rate <= 1.0

    def teardown(self) -> None:
        self.ledger.close()
        account = self.ledger.account
        assert account.pending == 0
        assert account.submitted == total(account)
        assert account.cancelled == self.expected[Outcome.CANCELLED] + self.open


TestLedger = LedgerMachine.TestCase


def test_closed_ledger_takes_nothing() -> None:
    ledger = Ledger()
    ledger.submit()
    ledger.close()
    ledger.close()
    with pytest.raises(BadState, match="closed"):
        ledger.submit()
    assert ledger.account == Account(submitted=1, cancelled=1)


def test_hit_rate_counts_only_items_that_had_a_deadline() -> None:
    ledger = Ledger()
    for outcome in Outcome:
        ledger.submit(has_deadline=True).settle(outcome, latency_ns=7)
        ledger.submit().settle(outcome, latency_ns=9)
    statistics = ledger.statistics()
    assert (statistics.deadlines, statistics.hits) == (3, 1)
    assert statistics.hit_rate == pytest.approx(1 / 3)
    assert (statistics.latency.count, statistics.latency.max_ns) == (2, 9)


def test_hit_rate_without_deadlines_is_one() -> None:
    assert Ledger().statistics().hit_rate == 1.0


@given(
    st.lists(st.integers(0, 10**13), min_size=1, max_size=200),
    st.floats(0, 100),
)
def test_percentile_is_within_its_error(values: list[int], percent: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]
    assert exact <= histogram.percentile(percent) <= exact * (1 + 2**-6)
    assert histogram.largest == max(values)


def test_memory_follows_from_the_range_alone() -> None:
    """A stream that runs for days has as many different latencies as it has items."""
    histogram = Histogram()
    for value in (10**6, 64 * 10**6):
        histogram.add(value)
    size = sys.getsizeof(histogram._counts)
    for value in range(10**6, 64 * 10**6, 9973):
        histogram.add(value)
    assert sys.getsizeof(histogram._counts) == size < 8192


def test_percentile_bounds() -> None:
    histogram = Histogram()
    assert histogram.percentile(50) == 0
    for percent in (-1.0, 100.5, math.nan):
        with pytest.raises(InvalidArgument, match="percent is"):
            histogram.percentile(percent)


def test_what_was_lost_before_it_could_be_submitted_is_in_the_account() -> None:
    ledger = Ledger()
    ledger.submit().settle(Outcome.PASSED)
    ledger.lost(Outcome.DROPPED, 3)
    ledger.close()
    ledger.lost(Outcome.FAILED, 1)
    assert ledger.account == Account(submitted=5, passed=1, dropped=3, failed=1)
