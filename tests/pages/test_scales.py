"""Scales of charts: order, ends and ticks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.pages.scales import (
    Linear,
    Logarithmic,
    Nines,
    Scale,
    scale_of,
)

ENDS = st.tuples(st.floats(1e-6, 1e6), st.floats(1.01, 1e6)).map(lambda p: (p[0], p[0] * p[1]))


@given(ENDS, st.sampled_from([Linear, Logarithmic]))
def test_ticks_are_few_round_and_in_order(
    ends: tuple[float, float], form: type[Linear | Logarithmic]
) -> None:
    scale = form(*ends)
    ticks = scale.ticks()
    places = [place for place, _ in ticks]
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)
    assert len(ticks) <= 14
    if form is Linear:
        assert len(ticks) >= 2
        assert len({label for _, label in ticks}) == len(ticks)


@given(ENDS, st.lists(st.floats(1e-6, 1e12), min_size=2))
def test_larger_values_never_come_before(ends: tuple[float, float], values: list[float]) -> None:
    scale: Scale
    for scale in (Linear(*ends), Logarithmic(*ends)):
        places = [scale.at(value) for value in sorted(values)]
        assert places == sorted(places)
        assert scale.at(ends[0]) == pytest.approx(0)
        assert scale.at(ends[1]) == pytest.approx(1)


def test_each_nine_takes_as_much_room() -> None:
    scale = Nines(3)
    assert [scale.at(share) for share in (0.0, 0.9, 0.99, 0.999, 1.0)] == pytest.approx(
        [0, 1 / 3, 2 / 3, 1, 1]
    )
    assert [label for _, label in scale.ticks()] == ["0 %", "50 %", "90 %", "99 %", "99.9 %"]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.3, 0.9], ["0.3", "0.9"]),
        ([8, 1, 2], ["1", "2", "8"]),
        ([0, 100], ["0", "100"]),
        (["fifo", "edf"], ["fifo", "edf"]),
        ([1, "never"], ["1", "never"]),
        ([2], ["2"]),
    ],
)
def test_each_value_of_a_sweep_has_a_place_and_a_tick(
    values: Sequence[float | str], ticks: Sequence[str]
) -> None:
    scale = scale_of(values)
    places = [scale.at(value) for value in values]
    assert all(0 <= place <= 1 for place in places)
    assert len(set(places)) == len(places)
    assert [label for _, label in scale.ticks()] == ticks


def test_doubling_takes_as_much_room_everywhere_where_values_are_far_apart() -> None:
    scale = scale_of([1, 2, 4, 8])
    places = [scale.at(value) for value in (1, 2, 4, 8)]
    assert places[1] - places[0] == pytest.approx(places[3] - places[2])
    even = scale_of([1, 2, 3])
    assert even.at(2) - even.at(1) == pytest.approx(even.at(3) - even.at(2))
