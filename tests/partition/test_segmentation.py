"""Segments: within the quantum, cut where little crosses, in order of execution."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnasync as nn
from nnasync._core.partition import cut, segments
from nnasync._core.partition.crossing import crossing_bytes
from nnasync._core.partition.segmentation import _BORDER_BYTES, _best_starts
from nnasync.errors import InvalidArgument
from nnasync.hal import Model
from tests.partition.models import chain, in_parts, on_reference, row, summed


def starts(model: Model, weights: list[float], quantum: float) -> list[int]:
    return [group.operations[0] for group in segments(model, weights, quantum)]


def test_what_fits_in_the_quantum_is_not_cut() -> None:
    assert starts(chain(4), [1, 1, 1, 1], 4) == [0]


def test_segments_keep_to_the_quantum() -> None:
    assert starts(chain(6), [1] * 6, 2) == [0, 2, 4]


def test_an_operation_beyond_the_quantum_stands_alone() -> None:
    assert starts(chain(3), [1, 9, 1], 2) == [0, 1, 2]


def test_the_cut_is_where_little_crosses() -> None:
    builder = nn.ModelBuilder("hourglass")
    value = builder.input("x", (1, 100_000))
    value = builder.add(value, value)
    value = builder.mul(value, value)
    value = builder.mean(value, [1], keep_dims=True)
    value = builder.add(value, value)
    builder.output("y", value)
    model = builder.build()
    assert crossing_bytes(model) == [0, 400_000, 400_000, 4, 0]
    assert starts(model, [1, 1, 1, 1], 3) == [0, 3]


def test_a_value_that_cannot_be_stored_is_not_cut() -> None:
    borders = [0, math.inf, math.inf, 5, 0]
    assert _best_starts([0, 1, 2, 3, 4], borders, 1)[3:] == [0, 3]


def test_segments_give_the_same() -> None:
    model = summed([(0, 0), (1, 0), (2, 1), (3, 3), (4, 2)], shown=[2])
    partitioned = cut(model, segments(model, [1] * 5, 1, device=0))
    assert [step.operations for step in partitioned.steps] == [(0,), (1,), (2,), (3,), (4,)]
    expected = on_reference(model, [row()])
    assert [list(y[0]) for y in in_parts(partitioned, [row()])] == [list(y[0]) for y in expected]


@pytest.mark.parametrize(
    ("weights", "quantum", "text"),
    [
        ([1.0], 1.0, "for each of 2 operations"),
        ([1.0, -1.0], 1.0, "from 0 on"),
        ([1.0, math.inf], 1.0, "from 0 on"),
        ([1.0, 1.0], 0.0, "above 0"),
        ([1.0, 1.0], math.nan, "above 0"),
    ],
)
def test_bad_arguments(weights: list[float], quantum: float, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        segments(chain(2), weights, quantum)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 12), st.data())
def test_no_other_cuts_are_better(weights: list[int], quantum: int, data: st.DataObject) -> None:
    count = len(weights)
    pairs = [(data.draw(st.integers(0, n)), data.draw(st.integers(0, n))) for n in range(count)]
    model = summed(pairs)
    borders = [nbytes + _BORDER_BYTES for nbytes in crossing_bytes(model)]

    def badness(cuts: tuple[int, ...]) -> tuple[float, float]:
        parts = [sum(weights[a:b]) for a, b in pairwise((0, *cuts, count))]
        beyond = sum(max(0, part - quantum) for part in parts)
        return beyond, sum(borders[index] for index in cuts)

    ways = [cuts for number in range(count) for cuts in combinations(range(1, count), number)]
    found = tuple(starts(model, list(weights), quantum)[1:])
    assert badness(found) == min(map(badness, ways))
