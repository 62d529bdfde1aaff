"""Samples in overlapping windows, and windows as samples again, while they arrive.

A `Framer` takes samples in pieces of any length and gives every window that is full: the same
windows as if all samples had come at once. `OverlapAdd` is its reverse: it adds what comes back of
windows where they overlap, and gives the samples that no later window can change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nnasync._core.arguments import check_whole, numbers
from nnasync.errors import InvalidArgument
from nnasync.hal import Array

MOST_SAMPLES = 1 << 31
"""The longest window: more than a day of sound at 16 kHz."""


def hann(size: int, *, periodic: bool = True) -> Array:
    """Returns the raised cosine window, float64 [size], which is 0 at its first sample.

    The periodic one adds up to a constant at a hop of half its size, or of a whole part of that;
    the symmetric one ends with 0 too. Raises InvalidArgument for a size below 1.
    """
    check_whole("size", size, 1, MOST_SAMPLES)
    steps = size if periodic else max(size - 1, 1)
    window: Array = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / steps)
    return window


def samples_of(samples: Any, dtype: npt.DTypeLike) -> Array:
    """Returns samples as one row; raises InvalidArgument for what is none, infinite ones and NaN.

    Such a sample would never leave what follows the sound, such as the noise or a spectrum's mean.
    """
    array = np.asarray(samples)
    if array.ndim == 2 and 1 in array.shape:
        array = array.reshape(-1)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise InvalidArgument(
            f"samples are one row of numbers, not {array.dtype} {list(array.shape)}: give one "
            "channel"
        )
    # What is finite may be too large for a type that is narrower.
    with np.errstate(over="ignore", invalid="ignore"):
        row = array.astype(dtype, copy=False)
    if array.dtype.kind == "f" and not (np.isfinite(array).all() and np.isfinite(row).all()):
        raise InvalidArgument("samples are finite numbers, these have NaN or infinite ones")
    return row


def _sample_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"dtype is {dtype!r}, which numpy does not know: {error}") from error
    if found.kind not in "iuf":
        raise InvalidArgument(f"dtype is {found}, it must be one of numbers, such as np.float32")
    return found


class Framer:
    """Windows of `size` samples, one every `hop`; it keeps the samples of later ones."""

    def __init__(self, size: int, hop: int, *, dtype: npt.DTypeLike = np.float32) -> None:
        """Raises InvalidArgument for a size or a hop below 1, and for a dtype of no numbers."""
        check_whole("size", size, 1, MOST_SAMPLES)
        check_whole("hop", hop, 1, MOST_SAMPLES)
        self.size = size
        self.hop = hop
        self._dtype = _sample_dtype(dtype)
        self._kept = np.zeros(0, self._dtype)
        self._skip = 0

    @property
    def pending(self) -> int:
        """Samples that wait for more."""
        return len(self._kept)

    def feed(self, samples: Any) -> Array:
        """Returns the windows that are full now, [n, size]; a view where that is possible."""
        row = samples_of(samples, self._dtype)
        if self._skip:
            row, self._skip = row[self._skip :], max(self._skip - len(row), 0)
        joined = np.concatenate([self._kept, row]) if len(self._kept) else row
        count = max((len(joined) - self.size) // self.hop + 1, 0)
        end = count * self.hop
        self._skip += max(end - len(joined), 0)
        self._kept = joined[end:].copy()
        if not count:
            return np.zeros((0, self.size), self._dtype)
        return np.lib.stride_tricks.sliding_window_view(joined, self.size)[: end : self.hop]

    def reset(self) -> None:
        """Begin anew, as after a gap."""
        self._kept, self._skip = np.zeros(0, self._dtype), 0


class OverlapAdd:
    """Windows of `size` samples every `hop` added up to samples, float32."""

    def __init__(self, size: int, hop: int) -> None:
        """Raises InvalidArgument unless 1 <= hop <= size."""
        check_whole("size", size, 1, MOST_SAMPLES)
        check_whole("hop", hop, 1, size)
        self.size = size
        self.hop = hop
        self._sum = np.zeros(size, np.float32)

    def feed(self, windows: Any) -> Array:
        """Returns the samples that windows [n, size] or [size] complete: `hop` for each window.

        Raises InvalidArgument for windows of another size, and for what are no numbers.
        """
        given = np.atleast_2d(numbers("windows", windows))
        if given.ndim != 2 or given.shape[1] != self.size:
            raise InvalidArgument(
                f"windows are numbers [n, {self.size}], not {given.dtype} {list(given.shape)}"
            )
        rows = given.astype(np.float32, copy=False)
        done = np.empty((len(rows), self.hop), np.float32)
        for place, row in zip(done, rows, strict=True):
            self._sum += row
            place[:] = self._sum[: self.hop]
            self._sum[: -self.hop] = self._sum[self.hop :]
            self._sum[-self.hop :] = 0
        return done.reshape(-1)

    def finish(self) -> Array:
        """Returns the `size - hop` samples that are left, and begins anew."""
        rest = self._sum[: self.size - self.hop].copy()
        self._sum[:] = 0
        return rest
