"""What all heads refuse alike, and scores of networks that are not finite."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from nnasync.errors import InvalidArgument
from nnasync.vision import AnchorHead, CornerHead, DistanceHead, PostprocessHead, YoloHead

ANCHORS = np.zeros((3, 4), np.float32)


def outputs(classes: int) -> list[Any]:
    return [np.zeros((1, 3, 4), np.float32), np.zeros((1, 3, classes), np.float32)]


@pytest.mark.parametrize(
    "head", [AnchorHead(ANCHORS), CornerHead(), DistanceHead(), PostprocessHead(), YoloHead()]
)
def test_another_number_of_outputs_is_refused(head: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"has {head.outputs} outputs, not 3"):
        head.decode([np.zeros((1, 3, 4))] * 3, (10, 10), 0.5)


@pytest.mark.parametrize(
    ("background", "classes", "message"),
    [(9, 2, "class 9, of 2"), (-3, 2, "class -3"), (0, 0, "class 0"), (0, 1, "at least one class")],
)
def test_a_background_that_is_no_class_is_refused(
    background: int, classes: int, message: str
) -> None:
    for head in (AnchorHead(ANCHORS, background=background), CornerHead(background=background)):
        with pytest.raises(InvalidArgument, match=message):
            head.decode(outputs(classes), (10, 10), 0.5)


@pytest.mark.parametrize("kind", ["probabilities", "logits", "softmax"])
def test_scores_that_are_not_finite_are_below_every_threshold(kind: Any) -> None:
    corners, scores = outputs(2)
    scores[0, 0], scores[0, 1] = np.nan, -np.inf
    with warnings.catch_warnings(action="error"):
        found = CornerHead(scores=kind).decode([corners, scores], (10, 10), 0.6)
    assert len(found) == 0
    with pytest.raises(InvalidArgument, match="at least one class"):
        CornerHead(scores=kind).decode(outputs(0), (10, 10), 0.5)


@pytest.mark.parametrize("cells", [(), (0,), (8, -1)])
def test_cells_without_size_are_refused(cells: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="1 pixel at least"):
        DistanceHead(cells=cells).decode(outputs(2), (10, 10), 0.5)
