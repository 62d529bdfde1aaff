"""Raw grids of YOLO networks, beside the published formulas written out box by box."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.vision import YoloGridHead

SIZE = (64, 96)
CELLS = (16, 32)
CLASSES = 3
ANCHORS = (((10.0, 13.0), (16.0, 30.0)), ((33.0, 23.0), (30.0, 61.0)))
Found = list[tuple[list[float], float, int]]


def maps(seed: int, spread: float = 3.0) -> list[Array]:
    """Numbers [1, anchors, rows, columns, 5 + classes] of each map."""
    rng = np.random.default_rng(seed)
    shapes = [(1, 2, SIZE[0] // cell, SIZE[1] // cell, 5 + CLASSES) for cell in CELLS]
    return [rng.normal(0, spread, shape) for shape in shapes]


def s(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(
    outputs: list[Array], *, version: Literal[3, 4, 5], spread: float, threshold: float
) -> Found:
    """What the networks' own post-processing does, for one number after the other."""
    found: Found = []
    for output, cell, anchors in zip(outputs, CELLS, ANCHORS, strict=True):
        _, _, rows, columns, _ = output.shape
        for y in range(rows):
            for x in range(columns):
                for a, (anchor_w, anchor_h) in enumerate(anchors):
                    tx, ty, tw, th, anything, *classes = output[0, a, y, x].tolist()
                    if version == 5:
                        center = (s(tx) * 2 - 0.5 + x) * cell, (s(ty) * 2 - 0.5 + y) * cell
                        w, h = (s(tw) * 2) ** 2 * anchor_w, (s(th) * 2) ** 2 * anchor_h
                    else:
                        shift = 0.5 * (spread - 1)
                        center = (
                            (s(tx) * spread - shift + x) * cell,
                            (s(ty) * spread - shift + y) * cell,
                        )
                        w, h = math.exp(tw) * anchor_w, math.exp(th) * anchor_h
                    label = max(range(CLASSES), key=lambda n: classes[n])
                    score = s(anything) * s(classes[label])
                    if score >= threshold:
                        box = [center[0] - w / 2, center[1] - h / 2]
                        found.append(([*box, box[0] + w, box[1] + h], score, label))
    return found


def head(version: int, spread: float | tuple[float, ...], **options: Any) -> YoloGridHead:
    if version == 5:
        return YoloGridHead(ANCHORS, **options)
    return YoloGridHead(ANCHORS, sides="exponential", spread=spread, **options)


@given(
    seed=st.integers(0, 2**32 - 1),
    version=st.sampled_from([(3, 1.0), (4, 1.2), (5, 2.0)]),
    threshold=st.sampled_from([0.05, 0.3, 0.6, 0.999]),
)
def test_it_is_what_the_formulas_say(
    seed: int, version: tuple[Literal[3, 4, 5], float], threshold: float
) -> None:
    outputs = maps(seed)
    expected = by_hand(outputs, version=version[0], spread=version[1], threshold=threshold)
    found = head(*version).decode(outputs, SIZE, threshold)
    assert found.labels.tolist() == [label for _, _, label in expected]
    assert found.scores == pytest.approx(np.array([score for _, score, _ in expected]), abs=1e-5)
    corners = np.array([corners for corners, _, _ in expected]).reshape(-1, 4)
    assert np.allclose(found.corners, corners, rtol=1e-5, atol=1e-3)


def test_a_map_may_lie_in_three_ways() -> None:
    outputs = maps(0)
    expected = head(5, 2.0).decode(outputs, SIZE, 0.3)
    assert len(expected) > 5
    last = [each[0].transpose(1, 2, 0, 3).reshape(1, *each.shape[2:4], -1) for each in outputs]
    first = [each.transpose(0, 3, 1, 2) for each in last]
    for found in (
        head(5, 2.0).decode(last, SIZE, 0.3),
        head(5, 2.0, channels_first=True).decode(first, SIZE, 0.3),
    ):
        assert np.array_equal(found.corners, expected.corners)
        assert np.array_equal(found.scores, expected.scores)


def test_each_map_may_have_a_spread_of_its_own() -> None:
    outputs = maps(1)
    both = head(4, (1.2, 1.05)).decode(outputs, SIZE, 0.3)
    apart = [
        YoloGridHead((anchors,), "exponential", spread).decode([output], SIZE, 0.3)
        for anchors, output, spread in zip(ANCHORS, outputs, (1.2, 1.05), strict=True)
    ]
    assert np.array_equal(both.corners, np.concatenate([each.corners for each in apart]))


def test_numbers_that_overflow_raise_nothing() -> None:
    outputs = maps(2, spread=1e4)
    for version, spread in ((3, 1.0), (5, 2.0)):
        assert np.all(head(version, spread).decode(outputs, SIZE, 0.5).finite().scores >= 0.5)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((1, 2, 4, 6, 5), r"\[1, 2, h, w, 5 \+ classes\]"),
        ((1, 3, 4, 6, 8), r"\[1, 2, h, w, 5 \+ classes\]"),
        ((1, 4, 6, 15), r"\[1, h, w, 2 x \(5 \+ classes\)\]"),
        ((2, 4, 6, 16), "a map has shape"),
        ((1, 2, 6, 4, 8), "4 by 6 cells does not divide an input of 96 by 64 into squares"),
        ((1, 2, 0, 6, 8), "6 by 0 cells"),
    ],
)
def test_other_maps_are_refused(shape: tuple[int, ...], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        head(5, 2.0).decode([np.zeros(shape), maps(0)[1]], SIZE, 0.5)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"sides": "cubed"}, "sides is 'cubed'"),
        ({"spread": (1.0,)}, "1 values for 2 maps"),
        ({"anchors": ANCHORS[:1]}, "2 maps do not go with 1"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        YoloGridHead(**{"anchors": ANCHORS, **options}).decode(maps(0), SIZE, 0.5)
