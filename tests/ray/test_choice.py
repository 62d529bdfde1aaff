"""Which replicas a request is offered to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.hal import Priority
from nnasync.ray import app
from nnasync.ray.choice import Wish, backlog_of, ranked, wish_of

seconds = st.floats(0, 10)


@given(st.lists(seconds, max_size=9), st.none() | st.floats(-1, 10))
def test_everybody_is_offered_it_once_and_who_can_make_it_first(
    backlogs: list[float], left_s: float | None
) -> None:
    groups = ranked(backlogs, Wish(left_s, Priority.MEDIUM))
    flat = [place for group in groups for place in group]
    assert sorted(flat) == list(range(len(backlogs)))
    assert [backlogs[place] for place in flat] == sorted(backlogs)
    assert all(1 <= len(group) <= 2 for group in groups)
    if left_s is not None:
        for group in groups:
            assert len({backlogs[place] < left_s for place in group}) == 1


def test_who_can_make_it_is_not_asked_beside_who_cannot() -> None:
    assert ranked([0.5, 0.0, 0.3], Wish(0.2, Priority.LOW)) == [[1], [2, 0]]
    assert ranked([0.5, 0.0, 0.3], Wish(None, Priority.LOW)) == [[1, 2], [0]]


def test_time_that_passed_is_gone() -> None:
    headers = {"x-request-timeout": "2s", "x-request-priority": "high"}
    assert wish_of(headers, 0.5) == Wish(1.5, Priority.HIGH)
    assert wish_of({}, 0.5) == Wish(None, Priority.MEDIUM)
    assert wish_of({"x-request-timeout": "soon"}, 0.5) == Wish(None, Priority.MEDIUM)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, 0.0),
        ([1.0, 2.0], 0.0),
        ("abc", 0.0),
        ([3.0, 2.0, 1.0], 1.0),
        ((3, 2, "x"), 0.0),
        ([0.0, 0.0, -1.0], 0.0),
        ([0.0, 0.0, float("nan")], 0.0),
    ],
)
def test_what_a_replica_tells_is_not_trusted(told: Sequence[object], expected: float) -> None:
    assert backlog_of(told, Priority.HIGH) == expected


@pytest.mark.parametrize("wrong", [{"cores": 0}, {"max_ongoing": 0}, {"max_queued": 0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match="at least 1"):
        app(lambda cores: cores, **wrong)  # type: ignore[arg-type]  # They are numbers.
