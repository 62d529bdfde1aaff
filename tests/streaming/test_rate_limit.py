"""At most so many items a second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.streaming.rate_limit import RateLimit

MS = 1_000_000


@given(st.floats(0.1, 1000), st.lists(st.integers(0, 10**9), max_size=100))
def test_the_rate_is_never_exceeded_for_long(rate_hz: float, steps: list[int]) -> None:
    limit, at, taken = RateLimit(rate_hz), 0, []
    for step in steps:
        at += step
        if limit.takes(at):
            taken.append(at)
    for first in range(len(taken)):
        for last in range(first + 1, len(taken)):
            assert last - first <= (taken[last] - taken[first]) * rate_hz / 1e9 + 1 + 1e-6


@given(st.floats(0.1, 1000), st.lists(st.integers(0, 10**9), max_size=100))
def test_a_second_limit_of_the_same_rate_takes_what_the_first_took(
    rate_hz: float, steps: list[int]
) -> None:
    first, second, at = RateLimit(rate_hz), RateLimit(rate_hz), 0
    for step in steps:
        at += step
        if first.takes(at):
            assert second.takes(at)


def test_jitter_costs_no_items() -> None:
    limit = RateLimit(10)
    times = [index * 100 * MS + (index * 7 % 5) * MS for index in range(100)]
    assert sum(limit.takes(at) for at in times) >= 98


@pytest.mark.parametrize("rate_hz", [0, -1, float("inf"), float("nan")])
def test_rates_that_are_none(rate_hz: float) -> None:
    with pytest.raises(InvalidArgument, match="rate_hz"):
        RateLimit(rate_hz)
