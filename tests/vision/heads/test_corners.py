"""Heads of networks that decode their boxes themselves."""

from __future__ import annotations

import numpy as np
import pytest

from nnasync.errors import InvalidArgument
from nnasync.vision import CornerHead, PostprocessHead

SIZE = (100, 200)


def test_corners_are_shares_or_pixels_in_either_order() -> None:
    scores = np.array([[[0.1, 0.9], [0.8, 0.2]]])
    shares = np.array([[[0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1]]])
    found = CornerHead(background=0).decode([shares, scores], SIZE, 0.5)
    assert found.corners == pytest.approx(np.array([[20, 20, 60, 40]]), abs=1e-4)
    assert found.labels.tolist() == [0]
    pixels = CornerHead("yxyx", relative=False).decode([shares * 100, scores], SIZE, 0.5)
    assert pixels.corners == pytest.approx(np.array([[20, 10, 40, 30], [0, 0, 100, 100]]))
    assert pixels.labels.tolist() == [1, 0]


@pytest.mark.parametrize(("count", "kept"), [(2, 1), (0, 0), (1, 1), (99, 2), (-3, 0)])
def test_detection_postprocess_says_how_many_there_are(count: int, kept: int) -> None:
    places = np.array([[[0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1], [0, 0, 0.5, 0.5]]])
    outputs = [places, np.array([[3, 4, 5]]), np.array([[0.9, 0.2, 0.8]]), np.array([count])]
    found = PostprocessHead().decode(outputs, SIZE, 0.5)
    assert len(found) == kept
    if kept:
        assert found.labels[0] == 3
        assert found.corners[0] == pytest.approx([40, 10, 80, 30], abs=1e-4)


def test_outputs_that_do_not_fit_are_refused() -> None:
    good = [np.zeros((1, 3, 4)), np.zeros((1, 3)), np.zeros((1, 3)), np.zeros(1)]
    for number, wrong in ((0, np.zeros((1, 2, 4))), (1, np.zeros((1, 2))), (3, np.zeros(2))):
        with pytest.raises(InvalidArgument, match="not those of one picture"):
            PostprocessHead().decode([*good[:number], wrong, *good[number + 1 :]], SIZE, 0.5)
    with pytest.raises(InvalidArgument, match="do not go with"):
        CornerHead().decode([np.zeros((1, 3, 4)), np.zeros((1, 2, 4))], SIZE, 0.5)


def test_numbers_that_are_none_are_refused() -> None:
    good = [np.zeros((1, 3, 4)), np.zeros((1, 3)), np.zeros((1, 3)), np.full(1, 3)]
    for number, wrong in ((1, np.full((1, 3), np.nan)), (3, np.array([np.nan]))):
        with pytest.raises(InvalidArgument, match="labels of boxes|that there are nan boxes"):
            PostprocessHead().decode([*good[:number], wrong, *good[number + 1 :]], SIZE, 0.5)
