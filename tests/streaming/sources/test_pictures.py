"""Decoded frames as arrays, whatever their size and format."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from nnasync.errors import InvalidArgument
from nnasync.memory import ImageFormat, ImageLayout, Pool
from nnasync.streaming.sources.pictures import Pictures, frame_of

av: Any = pytest.importorskip("av", reason="the extra media is not installed")


def colors(height: int, width: int) -> Any:
    """A frame whose columns and rows can be told apart."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[..., 0] = np.linspace(0, 250, width, dtype=np.uint8)
    picture[..., 1] = np.linspace(0, 250, height, dtype=np.uint8)[:, None]
    return av.VideoFrame.from_ndarray(picture, format="rgb24")


@pytest.mark.parametrize("source", ["rgb24", "yuv420p", "gray", "nv12", "yuyv422"])
@pytest.mark.parametrize("pixels", ["gray", "rgb24"])
@pytest.mark.parametrize("size", [None, (31, 17), (64, 64)])
def test_it_is_what_the_scaler_of_pyav_makes(source: str, pixels: Any, size: Any) -> None:
    frame = colors(48, 50).reformat(format=source)
    found = Pictures(size, pixels).picture(frame)
    height, width = size or (48, 50)
    expected = frame.to_ndarray(format=pixels, height=height, width=width)
    assert found.dtype == np.uint8
    assert np.array_equal(found, expected)


def test_size_and_format_may_change_from_frame_to_frame() -> None:
    pictures = Pictures(None, "rgb24")
    first = pictures.picture(colors(48, 64).reformat(format="yuv420p"))
    second = pictures.picture(colors(20, 30))
    assert (first.shape, second.shape) == ((48, 64, 3), (20, 30, 3))
    third = pictures.picture(colors(48, 64).reformat(format="yuv420p"))
    assert np.array_equal(first, third)


def test_nobody_else_has_the_memory() -> None:
    frame = colors(48, 64)
    picture = Pictures(None, "rgb24").picture(frame)
    before = frame.to_ndarray()
    picture[:] = 0
    assert np.array_equal(frame.to_ndarray(), before)


@pytest.mark.parametrize("source", ["rgb24", "yuv420p"])
@pytest.mark.parametrize("size", [None, (31, 17)])
def test_an_image_has_what_an_array_has(source: str, size: Any) -> None:
    frame = colors(48, 50).reformat(format=source)
    image = Pictures(size, "image").picture(frame)
    assert image.image_layout == ImageLayout.of(ImageFormat.RGB_888, *(size or (48, 50))[::-1])
    assert np.array_equal(image.planes[0], Pictures(size, "rgb24").picture(frame))


def test_images_share_nothing_and_end_with_their_last_user() -> None:
    pictures = Pictures(None, "image")
    first, second = (pictures.picture(colors(48, 50)) for _ in range(2))
    fds, (pixels,) = (first.fd, second.fd), first.planes
    expected = pixels.copy()
    second.planes[0][...] = 0
    del first, second
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    # Memory that is looked at is not given to the next picture.
    third = pictures.picture(colors(48, 50))
    third.planes[0][...] = 0
    assert np.array_equal(pixels, expected)


def test_images_are_pictures_for_sinks() -> None:
    frame = colors(48, 50)
    image = Pictures(None, "image").picture(frame)
    assert np.array_equal(frame_of(image).to_ndarray(), frame.to_ndarray())
    decoded = Pool.image(ImageFormat.YCBCR_420, 4, 4)
    with decoded, pytest.raises(InvalidArgument, match="an image of RGB_888, not Pool"):
        frame_of(decoded)


def test_decoded_frames_are_left_alone() -> None:
    frame = colors(48, 64)
    assert Pictures(None, "decoded").picture(frame) is frame


def test_a_picture_is_a_frame_and_back() -> None:
    picture = np.arange(48 * 50 * 3, dtype=np.uint8).reshape(48, 50, 3)
    assert np.array_equal(frame_of(picture[::-1]).to_ndarray(), picture[::-1])
    assert np.array_equal(frame_of(picture[..., 0]).to_ndarray(), picture[..., 0])


@pytest.mark.parametrize(
    "wrong", ["text", np.zeros((4, 4)), np.zeros((4, 4, 2), np.uint8), np.zeros(4, np.uint8)]
)
def test_what_is_no_picture(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="a picture is a uint8 array"):
        frame_of(wrong)


@pytest.mark.parametrize(
    ("size", "pixels"), [((0, 4), "gray"), ((4, 4), "decoded"), (None, "bgr"), ((1, 2, 3), "gray")]
)
def test_options_that_are_none(size: Any, pixels: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"size is|pixels is"):
        Pictures(size, pixels)


@pytest.mark.parametrize("is_new", [True, False])
def test_one_thread_scales(is_new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer versions of PyAV start a thread for each core unless they are told not to."""
    asked: list[dict[str, int]] = []
    real = av.video.reformatter.VideoReformatter()

    class Reformatter:
        def reformat(self, *arguments: Any, **options: int) -> Any:
            if options and not is_new:
                raise TypeError("reformat() got an unexpected keyword argument 'threads'")
            asked.append(options)
            return real.reformat(*arguments)

    monkeypatch.setattr(av.video.reformatter, "VideoReformatter", Reformatter)
    frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
    assert Pictures((24, 32), "gray").picture(frame).shape == (24, 32)
    assert asked[-1] == ({"threads": 1} if is_new else {})
