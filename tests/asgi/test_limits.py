"""What a request gets of what it asks for: defaults and cuts."""

from __future__ import annotations

import pytest

from nnasync._core.request_headers import PRIORITY_HEADER, TIMEOUT_HEADER
from nnasync.asgi.limits import NO_LIMITS, Limits, Wishes, wishes_of
from nnasync.errors import InvalidArgument
from nnasync.hal import Priority


def test_who_says_nothing_gets_the_defaults() -> None:
    limits = Limits(timeout_s=2, priority=Priority.LOW)
    assert wishes_of({}, limits) == Wishes(2_000_000_000, Priority.LOW)
    assert wishes_of({}, NO_LIMITS) == Wishes(None, None)


def test_wishes_are_cut_to_the_limits() -> None:
    limits = Limits(timeout_s=1, max_timeout_s=5, max_priority=Priority.MEDIUM)
    headers = {TIMEOUT_HEADER: "60", PRIORITY_HEADER: "high"}
    assert wishes_of(headers, limits) == Wishes(5_000_000_000, Priority.MEDIUM)
    headers = {TIMEOUT_HEADER: "3", PRIORITY_HEADER: "low"}
    assert wishes_of(headers, limits) == Wishes(3_000_000_000, Priority.LOW)


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"max_timeout_s": -1},
        {"timeout_s": 61},
        {"timeout_s": None},
        {"priority": Priority.HIGH, "max_priority": Priority.LOW},
    ],
)
def test_limits_that_contradict_themselves_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        Limits(**wrong)  # type: ignore[arg-type]  # The values are wrong on purpose.
