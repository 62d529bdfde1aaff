"""How much longer the slowest of a load are, with an interval that rounds tell."""

from __future__ import annotations

import pytest

from benchmarks._tails import tail_ratio


def test_rounds_that_are_alike_leave_no_doubt() -> None:
    base = [[float(each) for each in range(1, 101)]] * 5
    assert tail_ratio([[2 * each for each in values] for values in base], base) == (2.0, 2.0, 2.0)


def test_one_round_that_differs_is_told_as_doubt() -> None:
    base = [[1.0] * 100] * 5
    middle, low, high = tail_ratio([*base[1:], [1.0] * 90 + [9.0] * 10], base)
    assert middle == pytest.approx(9.0)
    assert low == pytest.approx(1.0)
    assert high == pytest.approx(9.0)


def test_the_same_rounds_give_the_same() -> None:
    base = [[1.0, 2.0 + number, 3.0] for number in range(6)]
    values = [[2.0, 3.0, 7.0 - number] for number in range(6)]
    assert tail_ratio(values, base, 0.5) == tail_ratio(values, base, 0.5)
