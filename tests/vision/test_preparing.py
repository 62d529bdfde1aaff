"""Pictures as inputs of networks: types, layouts, normalization, bars, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnasync import Port
from nnasync.errors import InvalidArgument
from nnasync.memory import ImageFormat, Pool, to_rgb
from nnasync.vision import IMAGENET, MINUS_ONE_TO_ONE, Picture, PictureInput, prepare


def port(shape: tuple[int, ...], dtype: str = "float32", scale: float = 0, zero: int = 0) -> Port:
    return Port("image", shape, np.dtype(dtype), scale, zero, 0)


@pytest.fixture
def photo() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (12, 20, 3), np.uint8)


def test_floats_are_zero_to_one_in_both_layouts(photo: np.ndarray) -> None:
    last, where = prepare(photo, port((1, 12, 20, 3)))
    first = prepare(photo, port((1, 3, 12, 20))).input
    assert last == pytest.approx(photo[None] / 255, abs=1e-6)
    assert np.array_equal(first, last.transpose(0, 3, 1, 2))
    assert where.target == (0, 0, 20, 12)


@pytest.mark.parametrize(("dtype", "low"), [("uint8", 0), ("int8", -128)])
@pytest.mark.parametrize("scale", [0.0, 0.0078125])
def test_an_input_of_8_bits_has_the_bytes(
    photo: np.ndarray, dtype: str, low: int, scale: float
) -> None:
    found = prepare(photo, port((1, 12, 20, 3), dtype, scale, low + 128)).input
    assert found.dtype == dtype
    assert np.array_equal(found[0].astype(int), photo.astype(int) + low)


def test_a_normalization_is_quantized_with_the_ports_own_scale(photo: np.ndarray) -> None:
    target = port((1, 12, 20, 3), "int8", 0.02, -3)
    found = prepare(photo, target, normalization=IMAGENET).input
    mean, deviation = np.array(IMAGENET.mean), np.array(IMAGENET.deviation)
    assert np.array_equal(found[0], target.quantize((photo - mean) / deviation))
    real = prepare(photo, port((1, 12, 20, 3)), normalization=MINUS_ONE_TO_ONE).input
    assert real[0] == pytest.approx(photo / 127.5 - 1, abs=1e-6)


def test_bars_are_gray_and_the_picture_between_them(photo: np.ndarray) -> None:
    found, where = prepare(photo, port((1, 20, 20, 3), "uint8", 1.0), fill=7)
    assert where.target == (0, 4, 20, 16)
    assert np.array_equal(found[0, 4:16], photo)
    assert (found[0, :4] == 7).all()
    assert (found[0, 16:] == 7).all()
    first = prepare(photo, port((1, 3, 20, 20), "uint8", 1.0), fill=7).input
    assert np.array_equal(first, found.transpose(0, 3, 1, 2))


def test_gray_networks_get_luma_and_color_networks_gray_three_times(photo: np.ndarray) -> None:
    gray = prepare(photo, port((1, 12, 20, 1), "uint8", 1.0)).input[0, ..., 0]
    assert gray == pytest.approx(photo @ [0.299, 0.587, 0.114], abs=0.51)
    color = prepare(photo[..., 0], port((1, 12, 20, 3), "uint8", 1.0)).input[0]
    assert all(np.array_equal(color[..., channel], photo[..., 0]) for channel in range(3))
    alpha = np.concatenate([photo, photo[..., :1]], 2)
    assert np.array_equal(prepare(alpha, port((1, 12, 20, 3), "uint8", 1.0)).input[0], photo)


def test_images_in_shared_memory_are_pictures() -> None:
    with Pool.image(ImageFormat.YCBCR_420, 20, 12) as image:
        for number, plane in enumerate(image.planes):
            plane[...] = np.arange(plane.size).reshape(plane.shape) % 200 + number
        color = prepare(image, port((1, 12, 20, 3), "uint8", 1.0)).input[0]
        gray = prepare(image, port((1, 12, 20, 1), "uint8", 1.0)).input[0, ..., 0]
        assert np.array_equal(color, to_rgb(image))
        assert np.array_equal(gray, image.planes[0])


def test_frames_of_pyav_are_pictures(photo: np.ndarray) -> None:
    av = pytest.importorskip("av", reason="PyAV comes with the extra `media`")
    frame = av.VideoFrame.from_ndarray(photo, format="rgb24")
    target = port((1, 12, 20, 3), "uint8", 1.0)
    assert np.array_equal(prepare(frame, target).input[0], photo)
    window = (2, 4, 14, 10)
    part = prepare(frame, port((1, 6, 12, 3), "uint8", 1.0), window=window).input[0]
    assert np.array_equal(part, photo[4:10, 2:14])
    wide = prepare(frame.reformat(format="yuv420p"), port((1, 40, 40, 3), "uint8", 1.0))
    assert wide.placement.target == (0, 8, 40, 32)


def test_a_part_of_a_picture_fills_the_input(photo: np.ndarray) -> None:
    found, where = prepare(photo, port((1, 4, 6, 3), "uint8", 1.0), window=(3, 2, 9, 6))
    assert np.array_equal(found[0], photo[2:6, 3:9])
    assert where.source == (3, 2, 9, 6)


def test_out_is_written_in_place_of_a_new_array(photo: np.ndarray) -> None:
    out = np.zeros((1, 12, 20, 3), np.float32)
    assert prepare(photo, port((1, 12, 20, 3)), out=out).input is out
    assert out.any()
    for wrong in (out[:, :4], out.astype(np.float64)):
        with pytest.raises(InvalidArgument, match="writable float32 array of shape"):
            prepare(photo, port((1, 12, 20, 3)), out=wrong)


def test_inputs_of_open_size_take_the_size_that_is_asked_for(photo: np.ndarray) -> None:
    anything = port((0, 0, 0, 3))
    assert prepare(photo, anything, size=(6, 8)).input.shape == (1, 6, 8, 3)
    with pytest.raises(InvalidArgument, match=r"any size: say which, size="):
        prepare(photo, anything)
    with pytest.raises(InvalidArgument, match=r"takes \(12, 20\)"):
        prepare(photo, port((1, 12, 20, 3)), size=(6, 8))


@pytest.mark.parametrize("shape", [(1, 12, 20, 4), (2, 12, 20, 3), (1, 40), ()])
def test_inputs_that_take_no_picture_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="a picture needs an input"):
        PictureInput.of(port(shape))


@pytest.mark.parametrize(
    "thing",
    [np.zeros((4, 4)), np.zeros((4, 4, 2), np.uint8), np.zeros((0, 3), np.uint8), "x.png", None],
)
def test_what_is_no_picture_is_refused(thing: Picture) -> None:
    with pytest.raises(InvalidArgument, match="picture"):
        prepare(thing, port((1, 4, 4, 3)))


@pytest.mark.parametrize(
    ("shape", "dtype", "hint"),
    [
        ((3, 12, 20), "uint8", r"np\.moveaxis\(picture, 0, 2\) puts its channels last"),
        ((1, 12, 20, 3), "uint8", r"picture\[0\]"),
        ((12, 20, 3), "float32", r"\(picture \* 255\)\.astype\(np\.uint8\)"),
        ((12, 20, 2), "uint8", r"uint8 \[12, 20, 2\]$"),
    ],
)
def test_an_array_that_nearly_is_a_picture(shape: tuple[int, ...], dtype: str, hint: str) -> None:
    with pytest.raises(InvalidArgument, match=hint):
        prepare(np.zeros(shape, dtype), port((1, 12, 20, 3)))


def test_other_things_are_told_with_what_is_wanted(photo: np.ndarray) -> None:
    words: Any = "imagenet"
    with pytest.raises(InvalidArgument, match="normalization is 'imagenet'.*IMAGENET"):
        prepare(photo, port((1, 12, 20, 3)), normalization=words)
    with pytest.raises(InvalidArgument, match="a compiled network or a Port, not for a str"):
        prepare(photo, words)
    pillow = pytest.importorskip("PIL.Image", reason="Pillow comes with the extra `demo`")
    image: Any = pillow.fromarray(photo)
    with pytest.raises(InvalidArgument, match=r"np\.asarray\(picture\) makes one"):
        prepare(image, port((1, 12, 20, 3)))
