"""Confidence intervals: the quantiles of Student, and how often the truth lies within."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.experiments.intervals import interval, student_t


@pytest.mark.parametrize(
    ("confidence", "degrees", "t"),
    [  # from the tables of Student's distribution
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 9, 2.262),
        (0.95, 10, 2.228),
        (0.99, 4, 4.604),
        (0.99, 5, 4.032),
        (0.90, 30, 1.697),
        (0.95, 1000, 1.962),
    ],
)
def test_quantiles_of_student(confidence: float, degrees: int, t: float) -> None:
    assert student_t(confidence, degrees) == pytest.approx(t, abs=6e-4)


def test_no_values_and_one() -> None:
    assert interval([]) is None
    one = interval([3.0])
    assert one is not None
    assert (one.mean, one.half, one.low, one.high) == (3.0, None, 3.0, 3.0)


def test_by_hand() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found is not None
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.3027 / math.sqrt(3), abs=1e-3)


def test_true_means_lie_within_as_often_as_said() -> None:
    samples = np.random.default_rng(3).normal(10.0, 2.0, (4000, 5))
    found = [interval(row) for row in samples.tolist()]
    hits = sum(each is not None and each.low <= 10.0 <= each.high for each in found)
    assert hits / len(found) == pytest.approx(0.95, abs=0.012)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8), st.floats(-1e6, 1e6))
def test_moved_values_have_a_moved_interval(values: list[float], offset: float) -> None:
    found, moved = interval(values), interval([value + offset for value in values])
    assert found is not None
    assert moved is not None
    assert moved.mean == pytest.approx(found.mean + offset, abs=1e-3)
    assert moved.half == pytest.approx(found.half, abs=1e-2)
    assert found.overlaps(moved) == moved.overlaps(found)
