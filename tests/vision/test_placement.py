"""Where a picture lies in an input: inside, and back again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.vision import Boxes, Fit, placement

sides = st.integers(1, 2000)
fits = st.sampled_from(["letterbox", "crop", "stretch"])


@given(sides, sides, st.integers(1, 640), st.integers(1, 640), fits)
def test_source_and_target_lie_inside(w: int, h: int, rows: int, columns: int, fit: Fit) -> None:
    found = placement(w, h, (rows, columns), fit=fit)
    for (left, top, right, bottom), (across, down) in (
        (found.source, (w, h)),
        (found.target, (columns, rows)),
    ):
        assert 0 <= left < right <= across
        assert 0 <= top < bottom <= down
    assert (found.source == (0, 0, w, h)) or fit == "crop"
    assert (found.target == (0, 0, columns, rows)) or fit == "letterbox"


@given(sides, sides, st.integers(1, 640), st.integers(1, 640), fits, st.data())
def test_the_way_to_the_input_and_back(
    w: int, h: int, rows: int, columns: int, fit: Fit, data: st.DataObject
) -> None:
    found = placement(w, h, (rows, columns), fit=fit)
    x = sorted(data.draw(st.tuples(st.floats(0, w), st.floats(0, w))))
    y = sorted(data.draw(st.tuples(st.floats(0, h), st.floats(0, h))))
    corners = np.array([[x[0], y[0], x[1], y[1]]], np.float32)
    back = found.to_picture(found.to_input(Boxes.of(corners)))
    assert back.corners == pytest.approx(corners, abs=1e-2 * max(w, h) / 100)


def test_a_letterbox_has_bars_on_two_sides_and_a_crop_cuts_two() -> None:
    wide = placement(640, 480, (160, 160))
    assert wide.target == (0, 20, 160, 140)
    assert placement(640, 480, (160, 160), fit="crop").source == (80, 0, 560, 480)
    assert wide.to_input(Boxes.of([[0, 0, 640, 480]])).corners.tolist() == [[0, 20, 160, 140]]
    outside = wide.to_picture(Boxes.of([[-10, 0, 200, 160]]))
    assert outside.corners.tolist() == [[0, 0, 640, 480]]


def test_a_part_of_a_picture_is_placed_like_a_picture() -> None:
    found = placement(640, 480, (50, 100), window=(100, 200, 300, 300))
    assert found.source == (100, 200, 300, 300)
    assert found.to_picture(Boxes.of([[0, 0, 100, 50]])).corners.tolist() == [[100, 200, 300, 300]]


@pytest.mark.parametrize("window", [(0, 0, 641, 10), (-1, 0, 5, 5), (5, 5, 5, 9), (0, 9, 9, 8)])
def test_windows_outside_are_refused(window: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidArgument, match="no part of a picture of 640 by 480"):
        placement(640, 480, (10, 10), window=window)
