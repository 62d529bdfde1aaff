"""How blocks lie in a pool."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync.errors import InvalidArgument

ALIGNMENT = 64
"""Default alignment of tensors inside a pool, in bytes: a cache line, and the widest vector."""


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
