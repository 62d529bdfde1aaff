"""Heads of exported YOLO networks, with and without objectness, either way round."""

from __future__ import annotations

import numpy as np
import pytest

from nnasync.errors import InvalidArgument
from nnasync.vision import YoloHead

SIZE = (320, 640)
PLACES = [[100, 50, 40, 20], [300, 200, 10, 100]] + [[0, 0, 0, 0]] * 8


def test_version_8_has_boxes_in_columns() -> None:
    scores = np.zeros((10, 3))
    scores[0], scores[1] = (0.1, 0.9, 0.2), (0.6, 0.1, 0.1)
    output = np.concatenate([PLACES, scores], axis=1).T[None]
    found = YoloHead().decode([output], SIZE, 0.5)
    assert found.corners.tolist() == [[80, 40, 120, 60], [295, 150, 305, 250]]
    assert found.labels.tolist() == [1, 0]
    assert found.scores == pytest.approx([0.9, 0.6])


def test_version_5_multiplies_with_objectness() -> None:
    scores = np.zeros((10, 4))
    scores[0], scores[1] = (0.5, 0.1, 0.9, 0.2), (0.9, 0.8, 0.1, 0.1)
    output = np.concatenate([np.array(PLACES) / (640, 320, 640, 320), scores], axis=1)[None]
    found = YoloHead(has_objectness=True, relative=True).decode([output], SIZE, 0.5)
    assert found.corners == pytest.approx(np.array([[295, 150, 305, 250]]), abs=1e-3)
    assert found.scores == pytest.approx([0.72])


@pytest.mark.parametrize("shape", [(1, 10, 4), (2, 10, 8), (10,)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"4 \+ classes"):
        YoloHead().decode([np.zeros(shape)], SIZE, 0.5)
