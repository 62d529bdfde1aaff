"""Waits between attempts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.streaming import Backoff


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=0.5, longest_s=5)
    assert [backoff.wait_s(n, 0.0) for n in range(1, 7)] == [0.5, 1, 2, 4, 5, 5]


def test_jitter_takes_a_share_away() -> None:
    assert Backoff(first_s=1, jitter=0.25).wait_s(1, 1.0) == 0.75


def test_attempts_come_to_an_end() -> None:
    backoff = Backoff(attempts=2)
    assert backoff.wait_s(1, 0) is not None
    assert backoff.wait_s(2, 0) is None


@given(
    st.floats(0.001, 1e6),
    st.floats(1, 1e6),
    st.floats(1, 1e9),
    st.floats(0, 1),
    st.integers(1, 10**9),
    st.floats(0, 1),
)
def test_every_wait_is_within_its_limits(
    first: float, times: float, factor: float, jitter: float, failures: int, uniform: float
) -> None:
    backoff = Backoff(first_s=first, longest_s=first * times, factor=factor, jitter=jitter)
    wait_s = backoff.wait_s(failures, uniform)
    assert wait_s is not None
    assert first * (1 - jitter) * 0.999 <= wait_s <= first * times


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("first_s", 0),
        ("first_s", 31),
        ("longest_s", float("inf")),
        ("factor", 0.5),
        ("jitter", 1.5),
        ("attempts", 0),
        ("first_s", float("nan")),
    ],
)
def test_numbers_out_of_range(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=field):
        Backoff(**{field: value})
