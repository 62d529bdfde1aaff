"""Pictures in another size, compared with Pillow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.vision import resized

sides = st.integers(1, 40)


def noise(height: int, width: int, channels: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (height, width, channels), np.uint8)


@given(sides, sides, sides, sides, st.integers(0, 9))
def test_it_is_what_pillow_makes_of_it(h: int, w: int, rows: int, columns: int, seed: int) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow comes with the extra `demo`")
    pixels = noise(h, w, 3, seed)
    kind = image.Resampling.BILINEAR
    expected = np.asarray(image.fromarray(pixels).resize((columns, rows), kind))
    # Pillow rounds between the two directions.
    assert np.abs(resized(pixels, (rows, columns)).astype(int) - expected).max() <= 1


@given(sides, sides, sides, sides, st.integers(0, 255))
def test_one_gray_stays_that_gray(h: int, w: int, rows: int, columns: int, gray: int) -> None:
    small = resized(np.full((h, w), gray, np.uint8), (rows, columns))
    assert (small == gray).all()
    real = resized(np.full((h, w), gray, np.float32), (rows, columns))
    assert real.dtype == np.float32
    assert real == pytest.approx(gray, rel=1e-5)


def test_half_the_size_is_a_mean_of_neighbors_and_the_same_size_no_copy() -> None:
    ramp = np.arange(64, dtype=np.float32).reshape(1, 64)
    assert resized(ramp, (1, 32))[0, 1:-1] == pytest.approx(2 * np.arange(1, 31) + 0.5)
    assert resized(ramp, (1, 64)) is ramp


@pytest.mark.parametrize("size", [(0, 4), (4, -1), (1 << 17, 4)])
def test_sizes_that_are_none_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgument, match="two whole numbers from 1 to 65536"):
        resized(np.zeros((4, 4), np.uint8), size)


@pytest.mark.parametrize(
    "pixels", [np.zeros((4, 4), np.int32), np.zeros(4, np.uint8), np.zeros((0, 4), np.uint8)]
)
def test_arrays_that_are_no_picture_are_refused(pixels: np.ndarray) -> None:
    with pytest.raises(InvalidArgument, match="height, width"):
        resized(pixels, (2, 2))
