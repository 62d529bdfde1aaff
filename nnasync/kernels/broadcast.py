"""Two operands of different shapes: their common shape, and the rows in which numpy walks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, Shape
from nnasync.kernels.operation import Arguments, Kernel, Step
from nnasync.kernels.steps import BLOCK_ELEMENTS, Call, blocks, sequence


def broadcast(arguments: Arguments, first: int, second: int) -> Shape:
    """The common shape of two arguments, aligned at the last dimension."""
    a, b = arguments.tensor(first), arguments.tensor(second)
    try:
        return np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise arguments.error(
            second, f"has shape {b.shape}, which does not broadcast with {a.shape}"
        ) from None


def long_rows(a: Array, b: Array, target: Array) -> tuple[Array, Array, Array]:
    """The operands reshaped so that equal shapes are one long row."""
    if a.shape == b.shape:
        return a.reshape(-1), b.reshape(-1), target.reshape(-1)
    return a, b, target


def ufunc_kernel(function: Callable[..., Any], *, raw: bool = False) -> Kernel:
    """The kernel of a ufunc of two operands; with `raw` it gets their bytes."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        a, b = (array.view(np.uint8) if raw else array for array in inputs[:2])
        call: Call = (function, long_rows(a, b, outputs[0]))
        return sequence([call])

    return Kernel(bind)


class BroadcastLayout:
    """Shapes of two operands and a result with the dimensions joined that need not be apart.

    `parts` are slices over the rows of the result of about `limit` elements, the first of them the
    largest; an operand has as many rows, or a single one.
    """

    __slots__ = ("a", "b", "output", "parts")

    def __init__(self, a: Shape, b: Shape, output: Shape, limit: int = BLOCK_ELEMENTS) -> None:
        rank = len(output)
        a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
        joined: list[list[int]] = []
        for sizes in zip(a, b, output, strict=True):
            kind = (sizes[0] == sizes[2], sizes[1] == sizes[2])
            last = joined[-1] if joined else None
            if last is not None and (
                sizes == (1, 1, 1) or kind == (last[0] == last[2], last[1] == last[2])
            ):
                for index in range(3):
                    last[index] *= sizes[index]
            else:
                joined.append(list(sizes))
        if joined and joined[0] == [1, 1, 1] and len(joined) > 1:
            joined = joined[1:]
        if a == b and joined:
            joined = [[size, size, size] for size in _split(joined[0][0])]
        self.a, self.b, self.output = (tuple(sizes[i] for sizes in joined) for i in range(3))
        row_elements = int(np.prod(self.output[1:]))
        self.parts = tuple(blocks(self.output[0], row_elements, limit))

    @staticmethod
    def is_row(shape: Shape) -> bool:
        """Returns whether an operand has a single row, which all parts use."""
        return shape[0] == 1

    def largest(self, shape: Shape) -> Shape:
        """Shape of the largest part of an operand or of the result."""
        return (min(self.parts[0].stop, shape[0]), *shape[1:])


def _split(elements: int) -> tuple[int, int]:
    """One long row as rows that are long enough for numpy."""
    size = max(count for count in range(1, min(elements, 4096) + 1) if elements % count == 0)
    return elements // size, size
