"""Non-maximum suppression, compared with the plain loops of its definition."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.vision import Box, Boxes, overlaps, suppressed

box = st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 8), st.integers(1, 8))
found = st.lists(st.tuples(box, st.sampled_from([0.1, 0.25, 0.5, 0.6, 0.9]), st.integers(0, 2)))
shares = st.sampled_from([0.0, 0.2, 0.5, 1.0])


def boxes_of(entries: list[tuple[tuple[int, int, int, int], float, int]]) -> Boxes:
    corners = [(x, y, x + w, y + h) for (x, y, w, h), _, _ in entries]
    return Boxes.of(corners, [score for _, score, _ in entries], [label for *_, label in entries])


def overlap_of(a: Box, b: Box) -> float:
    corners = [np.array([[c.left, c.top, c.right, c.bottom]], np.float32) for c in (a, b)]
    return float(overlaps(*corners)[0, 0])


def rivals(a: Box, b: Box, *, per_class: bool) -> bool:
    return not per_class or a.label == b.label


@given(found, shares, st.booleans(), st.sampled_from([None, 1, 3]))
def test_hard_suppression_is_the_loop_of_its_definition(
    entries: list[tuple[tuple[int, int, int, int], float, int]],
    overlap: float,
    per_class: bool,
    most: int | None,
) -> None:
    kept: list[Box] = []
    for candidate in sorted(boxes_of(entries), key=lambda each: -each.score):
        if not any(
            rivals(other, candidate, per_class=per_class) and overlap_of(other, candidate) > overlap
            for other in kept
        ):
            kept.append(candidate)
    chosen = suppressed(boxes_of(entries), overlap=overlap, per_class=per_class, most=most)
    assert list(chosen) == kept[:most]


def fading(best: Box, other: Box, per_class: bool) -> float:
    rival = rivals(best, other, per_class=per_class)
    return other.score * float(np.exp(-(overlap_of(best, other) ** 2) / 0.5)) ** rival


@given(found, st.booleans(), st.sampled_from([0.0, 0.2]))
def test_soft_suppression_is_the_loop_of_its_definition(
    entries: list[tuple[tuple[int, int, int, int], float, int]], per_class: bool, threshold: float
) -> None:
    left = [each for each in boxes_of(entries).sorted() if each.score >= threshold]
    expected: list[float] = []
    while left:
        best = max(left, key=lambda each: each.score)
        left.remove(best)
        expected.append(best.score)
        faded = [
            msgspec.structs.replace(each, score=fading(best, each, per_class)) for each in left
        ]
        left = [each for each in faded if each.score >= threshold]
    chosen = suppressed(boxes_of(entries), soft_sigma=0.5, per_class=per_class, threshold=threshold)
    assert sorted(each.score for each in chosen) == pytest.approx(sorted(expected), abs=1e-5)


def test_two_things_side_by_side_are_both_found_by_the_soft_form_only() -> None:
    pair = Boxes.of([[0, 0, 10, 10], [2, 0, 12, 10]], [0.9, 0.8])
    assert len(suppressed(pair)) == 1
    assert suppressed(pair, soft_sigma=0.5, threshold=0.1).scores.tolist() == pytest.approx(
        [0.9, 0.8 * np.exp(-((2 / 3) ** 2) / 0.5)]
    )


def test_boxes_below_the_threshold_go_and_no_boxes_are_none() -> None:
    pair = Boxes.of([[0, 0, 1, 1], [5, 5, 6, 6]], [0.3, 0.7])
    assert len(suppressed(pair, threshold=0.5)) == 1
    assert len(suppressed(Boxes.of())) == len(suppressed(Boxes.of(), soft_sigma=1)) == 0


@pytest.mark.parametrize("options", [{"overlap": 1.5}, {"overlap": -1}, {"soft_sigma": 0}])
def test_shares_that_are_none_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        suppressed(Boxes.of(), **options)  # type: ignore[arg-type]  # each value is of its type
