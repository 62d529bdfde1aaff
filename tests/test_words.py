"""Numbers of things, in words."""

from __future__ import annotations

import pytest

from nnasync._core.words import counted, until_deadline


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 networks"), (1, "1 network"), (2, "2 networks")]
)
def test_one_thing_is_in_the_singular(count: int, told: str) -> None:
    assert counted(count, "network") == told


@pytest.mark.parametrize(
    ("remaining_ns", "told"),
    [
        (1_500_000, "the deadline is 1.500 ms away"),
        (-8_828_000, "the deadline passed 8.828 ms ago"),
    ],
)
def test_a_deadline_is_ahead_or_was_before(remaining_ns: int, told: str) -> None:
    assert until_deadline(remaining_ns) == told
