"""Heads without anchors: boxes go to distances and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.vision import DistanceHead

SIZE = (64, 96)
CELLS = (8, 16)
COUNT = 8 * 12 + 4 * 6


@given(st.integers(0, 7), st.integers(0, 11), st.lists(st.floats(0, 5), min_size=4, max_size=4))
def test_a_cell_says_where_its_box_is(row: int, column: int, distances: list[float]) -> None:
    boxes, scores = np.zeros((1, COUNT, 4), np.float32), np.zeros((1, COUNT, 3), np.float32)
    boxes[0, row * 12 + column], scores[0, row * 12 + column, 2] = distances, 0.75
    (box,) = DistanceHead(CELLS).decode([boxes, scores], SIZE, 0.5)
    x, y = column * 8 + 4, row * 8 + 4
    left, top, right, bottom = (8 * distance for distance in distances)
    expected = (x - left, y - top, x + right, y + bottom)
    assert (box.left, box.top, box.right, box.bottom) == pytest.approx(expected, abs=1e-4)
    assert (box.label, box.score) == (2, 0.75)


def test_later_cells_are_those_of_the_coarse_map_and_logits_are_understood() -> None:
    boxes, scores = np.ones((COUNT, 4), np.float32), np.full((COUNT, 1), -1000, np.float32)
    scores[8 * 12 + 1] = 0.0
    (box,) = DistanceHead(CELLS, scores="logits").decode([boxes, scores], SIZE, 0.4)
    assert (box.left, box.top, box.right, box.bottom) == (8, -8, 40, 24)
    assert box.score == 0.5


@pytest.mark.parametrize(
    ("boxes", "scores", "message"),
    [
        ((1, COUNT, 5), (1, COUNT, 3), r"distances have shape .*\[1, n, 4\]"),
        ((1, COUNT, 4), (1, COUNT - 1, 3), "do not go with"),
        ((1, 9, 4), (1, 9, 3), f"into {COUNT}, the network gives 9"),
        ((2, COUNT, 4), (2, COUNT, 3), "distances have shape"),
    ],
)
def test_other_shapes_are_refused(
    boxes: tuple[int, ...], scores: tuple[int, ...], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        DistanceHead(CELLS).decode([np.zeros(boxes), np.zeros(scores)], SIZE, 0.5)
