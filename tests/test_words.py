"""Numbers of things, in words."""

from __future__ import annotations

import pytest

from nnasync._core.words import counted


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 networks"), (1, "1 network"), (2, "2 networks")]
)
def test_one_thing_is_in_the_singular(count: int, told: str) -> None:
    assert counted(count, "network") == told
