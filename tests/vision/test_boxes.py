"""Boxes: their overlap, choices of them, and what is refused."""

from __future__ import annotations

import warnings

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.vision import Box, Boxes, areas, overlaps

corners = hnp.arrays(
    np.float32,
    st.tuples(st.integers(0, 6), st.just(4)),
    elements=st.integers(-20, 20).map(float),
)


def overlap(a: Array, b: Array) -> float:
    """Of two boxes with whole corners, counted pixel by pixel."""
    pixels = [
        {(x, y) for x in range(int(c[0]), int(c[2])) for y in range(int(c[1]), int(c[3]))}
        for c in (a, b)
    ]
    union = pixels[0] | pixels[1]
    return len(pixels[0] & pixels[1]) / len(union) if union else 0.0


@given(corners, corners)
def test_overlaps_are_those_of_the_pixels(a: Array, b: Array) -> None:
    table = overlaps(a, b)
    assert table.shape == (len(a), len(b))
    for row, one in zip(table, a, strict=True):
        assert row == pytest.approx([overlap(one, other) for other in b], abs=1e-6)


def test_boxes_too_large_for_an_area_overlap_nothing() -> None:
    with warnings.catch_warnings(action="error"):
        huge = np.array([[-3e38, -3e38, 3e38, 3e38], [0, 0, 1, 1]], np.float32)
        assert overlaps(huge, huge).tolist() == [[0, 0], [0, 1]]


@given(corners)
def test_an_inside_out_box_has_no_area(boxes: Array) -> None:
    for area, (left, top, right, bottom) in zip(areas(boxes), boxes, strict=True):
        assert area == max(right - left, 0) * max(bottom - top, 0)


def test_boxes_one_by_one_and_by_choice() -> None:
    boxes = Boxes.of(
        [[0, 0, 2, 2], [1, 2, 3, 5], [4, 4, 5, 6]],
        [0.2, 0.9, 0.5],
        [1, 0, 7],
        names=("cat", "dog"),
        identities=[5, 6, 7],
    )
    assert [box.name for box in boxes] == ["dog", "cat", ""]
    assert boxes.sorted().labels.tolist() == [0, 7, 1]
    assert boxes.above(0.5).identities.tolist() == [6, 7]  # type: ignore[union-attr]  # it has them
    assert next(iter(boxes.chosen([2]))) == Box(4, 4, 5, 6, 0.5, 7, "", 7)
    assert len(Boxes.of()) == 0


def test_a_box_can_be_sent_as_json() -> None:
    (box,) = Boxes.of([[1, 2, 3, 4]], names=("zero",))
    assert msgspec.json.decode(msgspec.json.encode(box), type=Box) == box


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1, 2, 3]],), r"\[n, 4\]"),
        (([[1, 2, 3, 4]], [1, 2]), r"scores of 1 boxes"),
        (([[1, 2, 3, 4]], [1], [[1]]), r"labels of 1 boxes"),
        (("boxes",), "no array of numbers"),
        (([[1, 2, 3, 4]], [1], [3e10]), "labels of boxes are from"),
        (([[1, 2, 3, 4]], [1], [2**80]), "labels of boxes are from"),
        (([[1, 2, 3, 4]], [1], np.array([np.nan])), "labels of boxes are from"),
        (([[1, 2, 3, 4]], [1], [None]), "labels of boxes are no array of numbers"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Boxes.of(*arguments)
