"""Bound calls: numpy functions with their arguments, and what keeps a pass over memory fast.

A step is a short list of calls on views that are made once. Three facts about numpy shape it: a
ufunc pays for every inner loop, and copies a row that it repeats if several fit into its buffer, so
a row of few channels is joined until it is long; `clip` is vectorized against scalars where
`maximum` is not; `ndarray.dot` costs a third of `matmul` on tiny matrices. Work on large arrays
goes through blocks that stay in the second-level cache.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, FusedActivationFunc
from nnasync.kernels.fixed_point import single
from nnasync.kernels.operation import Step, Tensor, quantized_range

_umath = importlib.import_module("numpy._core.umath")
clip: Callable[..., Any] = getattr(_umath, "clip", np.clip)
"""`clip(array, lower, upper, out)`: the ufunc beneath `numpy.clip`, whose own overhead is large."""

Call = tuple[Callable[..., Any], tuple[Any, ...]]

BLOCK_ELEMENTS = 1 << 18
"""Elements of one block of float32 work: 1 MiB, about half of a core's second-level cache.

Smaller blocks cost more than they gain: every call takes the interpreter lock anew, and where
other threads want it too, each taking may cost as much as the block itself.
"""
_MOST_PIECES = 256
"""Pieces of work whose calls are kept; a piece has about ten calls, each a few hundred bytes."""
_ROW_ELEMENTS = (4096, 16384)
"""A row longer than the first is not copied, and up to the second it stays in the first cache."""
_FLOAT_BOUNDS: dict[int, tuple[float, float]] = {
    FusedActivationFunc.NONE: (-math.inf, math.inf),
    FusedActivationFunc.RELU: (0.0, math.inf),
    FusedActivationFunc.RELU1: (-1.0, 1.0),
    FusedActivationFunc.RELU6: (0.0, 6.0),
}


def nothing() -> None:
    """The step of an operation that has nothing to do."""


def sequence(calls: Sequence[Call]) -> Step:
    """One step of several calls."""
    if not calls:
        return nothing
    if len(calls) == 1:
        return _one(*calls[0])
    if len(calls) == 2:
        return _two(calls[0], calls[1])
    bound = tuple(calls)

    def step() -> None:
        for function, arguments in bound:
            function(*arguments)

    return step


def pieces(count: int, make: Callable[[], Iterable[Call]]) -> Step:
    """One step of the calls of `count` pieces of work, such as blocks of the images of a batch.

    The calls of many pieces would take more memory than the arrays: they are made at each run.
    """
    if count <= _MOST_PIECES:
        return sequence(list(make()))

    def step() -> None:
        for function, arguments in make():
            function(*arguments)

    return step


def _one(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Step:
    def step() -> None:
        function(*arguments)

    return step


def _two(one: Call, two: Call) -> Step:
    (first, first_arguments), (second, second_arguments) = one, two

    def step() -> None:
        first(*first_arguments)
        second(*second_arguments)

    return step


def copy(target: Array, source: Array) -> Call:
    """The call that copies, converting the type as C does (floats are cut towards zero)."""
    return np.copyto, (target, source, "unsafe")


def repeats(rows: int, channels: int) -> int:
    """Returns how many rows to join into a long one.

    A divisor of `rows`, or all if they are few.
    """
    shortest, longest = (limit // max(channels, 1) for limit in _ROW_ELEMENTS)
    if rows <= longest:
        return rows
    counts = [count for count in range(1, longest + 1) if rows % count == 0]
    return next((count for count in counts if count > shortest), counts[-1] if counts else 1)


def tiled(array: Array, row: Array) -> tuple[Array, Array]:
    """An array of rows and a row that broadcasts over them, both reshaped to long rows.

    `array` is C-contiguous with the channels last; `row` has one element per channel, or just one.
    """
    if row.size == 1:
        return array, row.reshape(())
    channels = row.size
    rows = array.size // channels
    count = repeats(rows, channels)
    if rows == count:
        return array.reshape(-1), np.tile(row.reshape(-1), count)
    return array.reshape(rows // count, count * channels), np.tile(row.reshape(-1), count)


def add_rows(function: Callable[..., Any], array: Array, row: Array) -> Call:
    """The call of a binary ufunc on an array and a row of channels, in place."""
    long, long_row = tiled(array, row)
    return function, (long, long_row, long)


def blocks(rows: int, row_elements: int, limit: int = BLOCK_ELEMENTS) -> Iterator[slice]:
    """Slices over rows such that each has about `limit` elements and all are nearly equal."""
    size = max(1, limit // max(row_elements, 1))
    count = max(1, -(-rows // size))
    size = -(-rows // count)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def float_bounds(activation: int) -> tuple[float, float]:
    """Smallest and largest float that a fused activation lets through; raises KeyError."""
    return _FLOAT_BOUNDS[activation]


def quantized_bounds(activation: int, output: Tensor) -> tuple[int, int]:
    """Smallest and largest quantized value that a fused activation lets through."""
    lowest, highest = quantized_range(output.type)
    lower, upper = float_bounds(activation)

    def quantized(value: float) -> int:
        steps = single(abs(value) / single(output.scale))
        return output.zero_point + int(math.copysign(math.floor(steps + 0.5), value))

    return (
        lowest if math.isinf(lower) else max(lowest, quantized(lower)),
        highest if math.isinf(upper) else min(highest, quantized(upper)),
    )
