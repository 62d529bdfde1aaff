"""A typed piece of a pool as a numpy array, and how blocks lie in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Shape

if TYPE_CHECKING:
    import numpy.typing as npt

    from nnasync.memory.pool import Pool

__all__ = ["ALIGNMENT", "Region", "layout"]

ALIGNMENT = 64
"""Default alignment of tensors inside a pool, in bytes: a cache line, and the widest vector."""


class Region:
    """A typed piece of a pool; `array` is a numpy view of it, never a copy."""

    __slots__ = ("__weakref__", "array", "dtype", "length", "offset", "pool", "shape")

    def __init__(
        self, pool: Pool, offset: int, length: int, *, dtype: npt.DTypeLike, shape: Shape
    ) -> None:
        self.pool = pool
        self.offset = offset
        self.length = length
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.shape = tuple(shape)
        self.array: Array = pool.array(self.dtype, self.shape, offset)
        if self.array.nbytes != length:
            raise InvalidArgument(
                f"region at offset {offset} of {pool!r}: {length} bytes given, but {self.dtype} "
                f"{list(self.shape)} takes {self.array.nbytes}"
            )

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if dtype is not None and np.dtype(dtype) != self.dtype:
            if copy is False:
                raise ValueError(f"a {self.dtype} region cannot be seen as {dtype} without a copy")
            return self.array.astype(dtype)
        return self.array.copy() if copy else self.array

    def __repr__(self) -> str:
        return f"Region({self.dtype} {list(self.shape)} at {self.offset} of {self.pool!r})"


def layout(sizes: Sequence[int], alignment: int = ALIGNMENT) -> tuple[list[int], int]:
    """Offsets that put blocks of these sizes one after the other, each aligned, and the total size.

    The total is a multiple of the alignment, which is a power of two.
    """
    if alignment < 1 or alignment & (alignment - 1):
        raise InvalidArgument(f"an alignment must be a power of two, not {alignment}")
    offsets = []
    end = 0
    for index, size in enumerate(sizes):
        if size < 0:
            raise InvalidArgument(f"block {index} has a negative size, {size}")
        offsets.append(end)
        end = (end + size + alignment - 1) & -alignment
    return offsets, end
