"""Deadlines and priorities in headers: what is meant, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.request_headers import (
    PRIORITY_HEADER,
    TIMEOUT_HEADER,
    priority_of,
    timeout_ns_of,
)
from nnasync.errors import InvalidArgument
from nnasync.hal import Priority


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("", None),
        ("2", 2_000_000_000),
        ("0.05", 50_000_000),
        (".5", 500_000_000),
        ("50ms", 50_000_000),
        ("50 ms", 50_000_000),
        ("1.5s", 1_500_000_000),
        ("500us", 500_000),
    ],
)
def test_times_are_seconds_or_have_a_unit(text: str, expected_ns: int | None) -> None:
    assert timeout_ns_of(text) == expected_ns


@pytest.mark.parametrize(
    "text",
    ["0", "0ms", "-1", "1e3", "nan", "inf", "1m", "ms", ".", "1,5", "1" * 10, "١", "1\n", " 1"],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=TIMEOUT_HEADER):
        timeout_ns_of(text)


@given(st.text(max_size=20))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    try:
        time_ns = timeout_ns_of(text)
    except InvalidArgument:
        return
    assert time_ns is None or 0 < time_ns < 10**19


@given(st.integers(1, 10**9 - 1), st.sampled_from([("s", 10**9), ("ms", 10**6), ("us", 10**3)]))
def test_whole_numbers_are_exact(number: int, unit: tuple[str, int]) -> None:
    assert timeout_ns_of(f"{number}{unit[0]}") == number * unit[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("0", None),
        ("1", Priority.HIGH),
        ("medium", Priority.MEDIUM),
        ("Low", Priority.LOW),
        ("3", Priority.LOW),
    ],
)
def test_priorities_have_names_and_numbers(text: str, expected: Priority | None) -> None:
    assert priority_of(text) == expected


@pytest.mark.parametrize("text", ["4", "-1", "urgent", "u=1", "high, low"])
def test_what_is_no_priority_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=PRIORITY_HEADER):
        priority_of(text)
