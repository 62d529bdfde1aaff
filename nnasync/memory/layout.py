"""How blocks lie in a pool."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.arguments import is_whole, told
from nnasync.errors import InvalidArgument

ALIGNMENT = 64
"""Default alignment of tensors inside a pool, in bytes: a cache line, and the widest vector."""


def layout(sizes: Sequence[int], alignment: int = ALIGNMENT) -> tuple[list[int], int]:
    """Offsets that put blocks of these sizes one after the other, each aligned, and the total size.

    The total is a multiple of the alignment, which is a power of two.
    """
    if not is_whole(alignment) or alignment < 1 or alignment & (alignment - 1):
        raise InvalidArgument(f"an alignment must be a power of two, not {told(alignment)}")
    offsets = []
    end = 0
    for index, size in enumerate(sizes):
        if not is_whole(size) or size < 0:
            raise InvalidArgument(f"block {index} has the size {told(size)}, at least 0 is needed")
        offsets.append(end)
        end = (end + size + alignment - 1) & -alignment
    return offsets, end
