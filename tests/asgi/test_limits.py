"""What a request gets of what it asks for: defaults and cuts."""

from __future__ import annotations

from typing import Any

import pytest

from nnasync._core.request_headers import PRIORITY_HEADER, TIMEOUT_HEADER
from nnasync.asgi import Networks
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


@pytest.mark.parametrize(
    "given", [{"timeout_s": "1"}, {"timeout_s": True}, {"priority": "high"}, {"max_priority": 2}]
)
def test_what_is_no_time_and_no_priority(given: Any) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(given))):
        Limits(**given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sources": ["x"]}, "sources is .* a dict of networks by name"),
        ({"sources": {"x": 3}}, "x is 3, it must be a file, a model"),
        ({"sources": {}, "runtime": "cpu"}, "runtime is 'cpu'"),
    ],
)
def test_what_makes_no_networks(given: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        Networks(**given)


def test_limits_of_a_call_are_limits() -> None:
    limits: Any = 30.0
    with pytest.raises(InvalidArgument, match=r"limits is 30\.0, it must be Limits"):
        Networks({"x": "x.tflite"}).call("x", limits=limits)
