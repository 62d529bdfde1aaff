"""Average precision: known curves, and what makes it fall."""

from __future__ import annotations

import pytest

from nnasync.errors import InvalidArgument
from nnasync.vision import Boxes, average_precisions, mean_average_precision

HERE, THERE, AWAY = (0, 0, 10, 10), (20, 0, 30, 10), (50, 50, 60, 60)


def test_all_found_is_1_and_nothing_found_0() -> None:
    truth = [Boxes.of([HERE, THERE], labels=[0, 1]), Boxes.of([AWAY], labels=[1])]
    assert mean_average_precision(truth, truth) == 1
    assert average_precisions([Boxes.of()] * 2, truth) == {0: 0, 1: 0}
    assert mean_average_precision([Boxes.of()], [Boxes.of()]) == 0


def test_the_area_under_a_curve_that_is_known() -> None:
    """Right, wrong, right: precision 1 up to half the recall, then 2/3."""
    truth = [Boxes.of([HERE, THERE])]
    found = [Boxes.of([HERE, AWAY, THERE], [0.9, 0.8, 0.7])]
    assert average_precisions(found, truth)[0] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)


def test_a_second_box_of_the_same_thing_is_wrong() -> None:
    truth = [Boxes.of([HERE, THERE])]
    found = [Boxes.of([HERE, HERE, THERE], [0.9, 0.8, 0.7])]
    assert average_precisions(found, truth)[0] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)


def test_surer_boxes_of_another_picture_come_first() -> None:
    truth = [Boxes.of([HERE]), Boxes.of([HERE])]
    found = [Boxes.of([HERE], [0.2]), Boxes.of([AWAY, HERE], [0.9, 0.8])]
    assert average_precisions(found, truth)[0] == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_what_overlaps_too_little_or_has_another_class_is_wrong() -> None:
    truth = [Boxes.of([HERE], labels=[3])]
    assert mean_average_precision([Boxes.of([HERE], labels=[4])], truth) == 0
    half = [Boxes.of([(0, 0, 10, 6)], labels=[3])]
    assert mean_average_precision(half, truth) == 1
    assert mean_average_precision(half, truth, overlap=0.7) == 0


def test_as_many_pictures_are_needed_in_both() -> None:
    with pytest.raises(InvalidArgument, match="1 pictures have boxes, 2 have a truth"):
        mean_average_precision([Boxes.of()], [Boxes.of()] * 2)
