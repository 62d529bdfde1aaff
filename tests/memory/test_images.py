"""Images: how their planes lie, what is no image, and YCbCr as RGB."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import BadState, InvalidArgument
from nnasync.memory import IMAGE, ImageFormat, ImageLayout, Pool, to_rgb

RGB, RGBA, YCBCR = ImageFormat.RGB_888, ImageFormat.RGBA_8888, ImageFormat.YCBCR_420


@pytest.mark.parametrize(("format", "channels"), [(RGB, 3), (RGBA, 4)])
@pytest.mark.parametrize("padding", [0, 1, 13])
def test_one_plane_of_pixels(format: ImageFormat, channels: int, padding: int) -> None:
    stride = 5 * channels + padding
    with Pool.image(format, 5, 7, row_stride=stride) as image:
        assert (image.name, image.size) == (IMAGE, 7 * stride)
        (pixels,) = image.planes
        assert pixels.shape == (7, 5, channels)
        assert pixels.flags.c_contiguous is not bool(padding)
        pixels[2, 3, 1] = 9
        assert image.view[2 * stride + 3 * channels + 1] == 9
        pixels[...] = 255
        assert sum(image.view) == 255 * pixels.size


@pytest.mark.parametrize(("width", "height"), [(4, 6), (5, 7), (1, 1)])
@pytest.mark.parametrize("padding", [0, 3])
def test_planes_of_ycbcr(width: int, height: int, padding: int) -> None:
    with Pool.image(YCBCR, width, height, row_stride=width + padding) as image:
        luma, blue, red = image.planes
        assert luma.shape == (height, width)
        assert blue.shape == red.shape == ((height + 1) // 2, (width + 1) // 2)
        for value, plane in enumerate((luma, blue, red), 1):
            plane[...] = value
        assert [int(plane.min()) for plane in image.planes] == [1, 2, 3]
        assert [int(plane.max()) for plane in image.planes] == [1, 2, 3]
        assert sum(map(bool, image.view)) == luma.size + blue.size + red.size


def test_planes_outlive_their_pool() -> None:
    with Pool.image(RGB, 2, 2) as image:
        (pixels,) = image.planes
    pixels[...] = 7
    assert pixels.sum() == 84
    with pytest.raises(BadState):
        image.planes  # noqa: B018 - it raises


def test_the_same_image_through_its_descriptor() -> None:
    with Pool.image(RGB, 3, 2, row_stride=16) as image:
        image.planes[0][1, 2] = (1, 2, 3)
        layout = image.image_layout
        with Pool.from_fd(image.fd, image.size, kind=IMAGE, image_layout=layout) as same:
            assert same.planes[0][1, 2].tolist() == [1, 2, 3]
            assert repr(same) == "<RGB_888 image of 3x2 pixels>"


@pytest.mark.parametrize(
    ("width", "height", "stride"),
    [(0, 1, None), (1, 0, None), (-1, 4, None), (4, 4, 11), (4, 4, -12), (1 << 17, 1, None)],
)
def test_what_is_no_image(width: int, height: int, stride: int | None) -> None:
    with pytest.raises(InvalidArgument):
        Pool.image(RGB, width, height, row_stride=stride)


def test_too_large_and_unknown() -> None:
    with pytest.raises(InvalidArgument, match="too large"):
        Pool.image(RGBA, 1 << 16, 1 << 16)
    with pytest.raises(InvalidArgument, match="RGBA_8888"):
        Pool.image(7, 1, 1)  # type: ignore[arg-type]  # what a caller may get wrong


def test_kinds_and_layouts_belong_together() -> None:
    layout = ImageLayout.of(RGB, 2, 2)
    with Pool.allocate(64) as pool:
        for size, kind, given_layout in (
            (12, "ashmem", layout),
            (12, IMAGE, None),
            (13, IMAGE, layout),
            (12, IMAGE, ImageLayout(RGB, 2, 2, 5)),
        ):
            with pytest.raises(InvalidArgument):
                Pool.from_fd(pool.fd, size, kind=kind, image_layout=given_layout)
        with pytest.raises(InvalidArgument, match="no image"):
            pool.planes  # noqa: B018 - it raises


numbers = st.integers(-(2**63), 2**63 - 1)


@given(st.sampled_from(ImageFormat), numbers, numbers, numbers)
def test_whatever_a_peer_says(format: ImageFormat, width: int, height: int, stride: int) -> None:
    """It is refused, or its planes lie within its size, one behind the other."""
    layout = ImageLayout(format, width, height, stride)
    try:
        layout.check()
    except InvalidArgument:
        return
    end = 0
    for plane in layout.planes:
        assert plane.offset == end
        assert plane.row_stride >= math.prod(plane.shape[1:])
        end += plane.shape[0] * plane.row_stride
    assert end == layout.size < 2**32


def per_pixel(luma: int, blue: int, red: int) -> list[int]:
    """The formula of BT.601, full range, in exact numbers."""
    y, cb, cr = Fraction(luma), Fraction(blue) - 128, Fraction(red) - 128
    values = (
        y + Fraction("1.402") * cr,
        y - Fraction("0.344136") * cb - Fraction("0.714136") * cr,
        y + Fraction("1.772") * cb,
    )
    return [min(max(math.floor(value + Fraction(1, 2)), 0), 255) for value in values]


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_ycbcr_as_rgb(width: int, height: int, padding: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    with Pool.image(YCBCR, width, height, row_stride=width + padding) as image:
        for plane in image.planes:
            plane[...] = random.integers(0, 256, plane.shape)
        luma, blue, red = image.planes
        expected = [
            [
                per_pixel(
                    int(luma[row, column]),
                    int(blue[row // 2, column // 2]),
                    int(red[row // 2, column // 2]),
                )
                for column in range(width)
            ]
            for row in range(height)
        ]
        assert to_rgb(image).tolist() == expected


def test_all_values_of_chroma() -> None:
    with Pool.image(YCBCR, 512, 512) as image:
        luma, blue, red = image.planes
        luma[...] = 128
        blue[...] = np.arange(256)
        red[...] = np.arange(256)[:, np.newaxis]
        found = to_rgb(image)[::2, ::2]
    for cb in range(0, 256, 5):
        for cr in range(0, 256, 3):
            assert found[cr, cb].tolist() == per_pixel(128, cb, cr)


def test_gray_is_gray_and_red_is_red() -> None:
    with Pool.image(YCBCR, 2, 2) as image:
        luma, blue, red = image.planes
        luma[...], blue[...], red[...] = 77, 128, 128
        assert (to_rgb(image) == 77).all()
        luma[...], blue[...], red[...] = 76, 85, 255
        assert to_rgb(image)[0, 0].tolist() == [254, 0, 0]


def test_rgb_into_another_image() -> None:
    with Pool.image(YCBCR, 4, 2) as image, Pool.image(RGB, 4, 2, row_stride=64) as target:
        image.planes[0][...] = 50
        image.planes[1][...] = image.planes[2][...] = 128
        assert to_rgb(image, out=target.planes[0]) is not None
        assert (target.planes[0] == 50).all()
        for wrong in (np.empty((4, 2, 3), np.uint8), np.empty((2, 4, 3), np.float32)):
            with pytest.raises(InvalidArgument, match="out must be"):
                to_rgb(image, out=wrong)
        with pytest.raises(InvalidArgument, match="YCbCr"):
            to_rgb(target)
