"""Drawing: what is painted, what is left alone, and the same in RGB and YCbCr."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.memory import ImageFormat, Pool, to_rgb
from nnasync.vision import PALETTE, Boxes, Canvas, draw

places = st.integers(-30, 60)
RED = (255, 0, 0)


def test_an_outline_is_on_the_inner_side_of_its_box() -> None:
    picture = np.zeros((20, 30, 3), np.uint8)
    Canvas(picture).outline((5, 4, 15, 14), RED, thickness=2)
    painted = picture[..., 0] == 255
    expected = np.zeros((20, 30), bool)
    expected[4:14, 5:15] = True
    expected[6:12, 7:13] = False
    assert np.array_equal(painted, expected)
    assert not picture[..., 1:].any()


@given(places, places, places, places, st.sampled_from([(24, 32), (24, 32, 1), (24, 32, 3)]))
def test_what_is_outside_of_the_picture_is_left_out(
    left: int, top: int, right: int, bottom: int, shape: tuple[int, ...]
) -> None:
    around = np.zeros((shape[0] + 20, shape[1] + 20, *shape[2:]), np.uint8)
    picture = around[10:-10, 10:-10]
    nowhere = [np.nan, 0, np.inf, 5]
    draw(picture, Boxes.of([[left, top, right, bottom], nowhere], names=("word",)))
    picture[...] = 0
    assert not around.any()


def test_the_same_is_drawn_into_rgb_and_ycbcr() -> None:
    boxes = Boxes.of([[4, 12, 40, 50], [30, 20, 60, 44]], [0.9, 0.5], [3, 7])
    color = np.full((64, 64, 3), 128, np.uint8)
    draw(color, boxes)
    with Pool.image(ImageFormat.YCBCR_420, 64, 64) as image:
        for plane in image.planes:
            plane[...] = 128
        draw(image, boxes)
        found = to_rgb(image).astype(int)
    assert np.abs(found.mean(axis=(0, 1)) - color.mean(axis=(0, 1))).max() < 2
    inside = (slice(51, 64), slice(0, 64))
    assert np.array_equal(found[inside], color[inside])


def test_full_color_in_even_places_survives_chroma_of_half_the_size() -> None:
    planes = [np.full(shape, 128, np.uint8) for shape in ((9, 11), (5, 6), (5, 6))]
    Canvas.of_planes(*planes).fill((2, 2, 6, 4), RED)
    assert planes[0][2:4, 2:6].tolist() == [[76] * 4] * 2
    assert planes[1][1, 1:3].tolist() == [85, 85]
    assert planes[2][1, 1:3].tolist() == [255, 255]
    assert (planes[0] != 128).sum() == 8


def test_words_have_the_size_that_was_asked_for_and_two_differ() -> None:
    pictures = [np.zeros((40, 400), np.uint8) for _ in range(3)]
    widths = [
        Canvas(picture).text(0, 0, text, (255, 255, 255), height=27)
        for picture, text in zip(pictures, ("seven", "Seven", "seven é"), strict=True)
    ]
    assert widths[0] == widths[1] < widths[2]
    assert not np.array_equal(pictures[0], pictures[1])
    rows = np.flatnonzero(pictures[1].max(axis=1))
    assert (int(rows[0]), int(rows[-1])) == (3, 23)


def test_colors_go_with_labels_and_before_that_with_identities() -> None:
    picture = np.zeros((60, 200, 3), np.uint8)
    corners = [[10, 20, 50, 50], [70, 20, 110, 50]]
    draw(picture, Boxes.of(corners, labels=[1, 1]), caption=lambda box: "")
    assert [tuple(picture[30, x]) for x in (10, 70)] == [PALETTE[1], PALETTE[1]]
    draw(picture, Boxes.of(corners, labels=[1, 1], identities=[2, 15]), caption=lambda box: "")
    assert [tuple(picture[30, x]) for x in (10, 70)] == [PALETTE[2], PALETTE[3]]


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (np.zeros((4, 4, 3)), "writable uint8 array"),
        (np.broadcast_to(np.uint8(0), (4, 4)), "read-only"),
        (np.zeros((4, 4, 2), np.uint8), "1, 3 or 4"),
        ([[1]], "not a list"),
    ],
)
def test_what_cannot_be_drawn_into_is_refused(picture: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Canvas(picture)
    with pytest.raises(InvalidArgument, match="goes with Cb and Cr"):
        Canvas.of_planes(*(np.zeros((4, 4), np.uint8) for _ in range(3)))


def test_planes_that_are_none_and_no_colors_are_refused() -> None:
    picture: Any = np.zeros((4, 4), np.uint8)
    with pytest.raises(InvalidArgument, match="not a NoneType"):
        Canvas.of_planes(picture, None, None)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(InvalidArgument, match="goes with Cb and Cr|1, 3 or 4"):
        Canvas.of_planes(np.zeros((4, 4, 3), np.uint8), picture, picture)
    with pytest.raises(InvalidArgument, match="at least one color"):
        draw(picture, Boxes.of([[0, 0, 1, 1]]), colors=())


def test_floats_are_rounded_and_what_is_no_window_or_color_is_refused() -> None:
    picture: Any = np.zeros((8, 8), np.uint8)
    canvas = Canvas(picture)
    floats: Any = (0.6, 1.4, 4.6, 5.4)
    canvas.fill(floats, (255, 255, 255))
    assert np.argwhere(picture)[[0, -1]].tolist() == [[1, 1], [4, 4]]
    windows: list[Any] = ["abcd", (0, 0, 1), (0, np.nan, 1, 1), (0, 0, np.inf, 1), None]
    for window in windows:
        with pytest.raises(InvalidArgument, match="four finite numbers"):
            canvas.outline(window, (0, 0, 0))
    colors: list[Any] = [(1, 2), (0, 0, 256), (-1, 0, 0)]
    for color in colors:
        with pytest.raises(InvalidArgument, match="from 0 to 255"):
            canvas.fill((0, 0, 4, 4), color)
