"""Pictures in another size, in numpy alone.

Bilinear, with a filter that widens where a picture becomes smaller, so that every pixel of the
source counts (Pillow and TensorFlow call that antialiasing). A pixel of the result is a weighted
sum of a few rows, then of a few columns; which ones, and their weights, depends on the two sizes
only and is kept.
"""

from __future__ import annotations

import functools

import numpy as np

from nnasync._core.arguments import check_size, told
from nnasync.errors import InvalidArgument
from nnasync.hal import Array


def resized(pixels: Array, size: tuple[int, int]) -> Array:
    """Pixels [h, w] or [h, w, c], uint8 or float32, in `size` (height, width).

    The same array where it has that size already. Raises InvalidArgument for other arrays, and for
    a size that is none.
    """
    is_array = isinstance(pixels, np.ndarray) and pixels.ndim in (2, 3) and pixels.size
    if not is_array or pixels.dtype not in (np.uint8, np.float32):
        raise InvalidArgument(
            "a picture is a uint8 or float32 array [height, width] or [height, width, channels], "
            f"not {told(pixels)}"
        )
    check_size("size", size)
    height, width = size
    if pixels.shape[:2] == (height, width):
        return pixels
    rows = pixels if pixels.shape[0] == height else _blended(pixels, height, axis=0)
    both = rows if rows.shape[1] == width else _blended(rows, width, axis=1)
    if pixels.dtype == np.uint8:
        return (both + np.float32(0.5)).astype(np.uint8)
    return both


def _blended(pixels: Array, size: int, axis: int) -> Array:
    """Float32, `size` long along an axis (0 or 1)."""
    indexes, weights = _taps(pixels.shape[axis], size)
    around = (-1,) + (1,) * (pixels.ndim - 1 - axis)
    total: Array | None = None
    for index, weight in zip(indexes, weights, strict=True):
        part = np.take(pixels, index, axis) * weight.reshape(around)
        total = part if total is None else np.add(total, part, out=total)
    if total is None:
        raise InvalidArgument(f"a picture of {size} pixels has nothing to be made of")
    return total


@functools.lru_cache(maxsize=64)
def _taps(before: int, after: int) -> tuple[Array, Array]:
    """Returns which pixels count, int [taps, after], and how much, float32 [taps, after]."""
    scale = before / after
    reach = max(scale, 1.0)
    centers = (np.arange(after) + 0.5) * scale - 0.5
    first = np.floor(centers - reach).astype(np.int64) + 1
    indexes = first + np.arange(int(np.ceil(reach)) * 2)[:, None]
    weights = np.maximum(1 - np.abs(indexes - centers) / reach, 0)
    weights[(indexes < 0) | (indexes >= before)] = 0
    weights /= weights.sum(axis=0)
    return np.clip(indexes, 0, before - 1), weights.astype(np.float32)
