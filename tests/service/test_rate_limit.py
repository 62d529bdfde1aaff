"""Messages of a client take their share of the interpreter, and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.service.rate_limit import (
    ACTIVE_NS,
    CREDIT_NS,
    LONGEST_REST_NS,
    ClientBuckets,
    TokenBucket,
)

MS = 1_000_000

costs = st.lists(st.integers(1, 5 * MS), min_size=1, max_size=300)


@given(costs, st.integers(1, 63))
def test_who_rests_as_told_gets_no_more_than_a_share(work: list[int], others: int) -> None:
    bucket, now_ns, spent = TokenBucket(0), 0, 0
    for cost_ns in work:
        now_ns += cost_ns
        spent += cost_ns
        rest_ns = bucket.spend(cost_ns, now_ns, others)
        assert 0 <= rest_ns <= LONGEST_REST_NS
        now_ns += rest_ns
        assert spent <= CREDIT_NS + now_ns / (1 + others) + 1


@given(costs, st.integers(1, 63))
def test_who_stays_within_the_share_never_rests(work: list[int], others: int) -> None:
    bucket, now_ns = TokenBucket(0), 0
    for cost_ns in work:
        now_ns += cost_ns * (1 + others)
        assert bucket.spend(cost_ns, now_ns, others) == 0


@given(costs)
def test_who_is_alone_never_rests(work: list[int]) -> None:
    bucket = TokenBucket(0)
    assert [bucket.spend(cost_ns, 0, 0) for cost_ns in work] == [0] * len(work)


def test_a_debt_is_forgotten_in_the_end() -> None:
    bucket = TokenBucket(0)
    assert bucket.spend(10**12, 0, 3) == LONGEST_REST_NS
    assert bucket.spend(0, LONGEST_REST_NS, 3) == 0


def test_a_clock_that_goes_back_is_no_gain() -> None:
    bucket = TokenBucket(100 * MS)
    bucket.spend(2 * CREDIT_NS, 100 * MS, 1)
    rests = [bucket.spend(0, at_ns, 1) for at_ns in (0, 100 * MS, 0)]
    assert rests == [2 * CREDIT_NS] * 3


def test_those_count_who_were_active_lately() -> None:
    buckets = ClientBuckets()
    first, second = buckets.join(0), buckets.join(0)
    assert buckets.others(first, ACTIVE_NS) == 1
    assert buckets.others(first, ACTIVE_NS + 1) == 0
    second.seen_ns = ACTIVE_NS
    assert buckets.others(first, ACTIVE_NS + 1) == 1
    buckets.leave(second)
    buckets.leave(second)
    assert buckets.others(first, ACTIVE_NS + 1) == 0
