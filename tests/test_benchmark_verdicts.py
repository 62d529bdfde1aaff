"""What paired rounds say of a limit, and when they cannot tell."""

from __future__ import annotations

import math

import pytest

from benchmarks._verdicts import differences, ratios, told, verdict


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(-0.5, 0.4, "holds"), (-1.5, 0.4, "cannot tell"), (-3.0, -1.5, "does not hold")],
)
def test_a_limit_from_below(low: float, high: float, said: str) -> None:
    assert verdict(low, high, at_least=-1.0) == said


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.9, 1.5, "holds"), (1.2, 1.6, "cannot tell"), (1.6, 2.0, "does not hold")],
)
def test_a_limit_from_above(low: float, high: float, said: str) -> None:
    assert verdict(low, high, at_most=1.5) == said


def test_differences_are_those_of_each_round() -> None:
    found = differences([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    assert found.mean == pytest.approx(2.0)
    assert found.half == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)


def test_ratios_are_those_of_each_round() -> None:
    middle, low, high = ratios([2.0, 8.0], [1.0, 2.0])
    assert middle == pytest.approx(math.sqrt(8))
    assert low < middle < high


def test_ratios_of_nothing_are_told_in_short() -> None:
    assert told(*ratios([2.0, 4.5], [1.0, 2.0])) == "2.12 (1.00 to 4.48)"
    assert len(told(*ratios([5.0, 0.0], [0.0, 7.0]))) < 30


def test_one_round_tells_nothing() -> None:
    found = differences([3.0], [1.0])
    assert verdict(found.low, found.high, at_least=0.0) == "cannot tell"
