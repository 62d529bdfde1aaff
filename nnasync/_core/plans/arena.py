"""Where the arrays of a plan lie: those that are not alive at the same time share memory.

The planner is pure. It places the largest array first, each at the lowest offset at which it
overlaps no array that is alive at the same time.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence

import numpy as np

from nnasync.errors import ResourceExhaustedTransient
from nnasync.hal import Array, Struct

ALIGNMENT = 64
"""Every array begins at a multiple of this many bytes: a cache line, and a vector register."""

_MADV_POPULATE_WRITE = 23
"""Linux 5.14: take all pages in one call, which costs half of taking them one fault at a time."""


class Block(Struct, frozen=True):
    """A block of memory that is needed from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


class Layout(Struct, frozen=True):
    """The offset of each block, and the size of all of them together."""

    offsets: tuple[int, ...]
    total: int


class PlannedBlock(Struct, frozen=True):
    """A named piece of the memory of an execution, needed from step `first` to step `last`.

    Step -1 is before the first operation, where inputs are written.
    """

    name: str
    nbytes: int
    first: int
    last: int
    offset: int


class MemoryPlan(Struct, frozen=True):
    """The memory of one execution in bytes: as laid out, without sharing, and the least possible.

    The former two with what alignment takes, the last without.

    `operations` are the names of the steps; those that only change a shape are none.
    """

    blocks: tuple[PlannedBlock, ...]
    operations: tuple[str, ...]
    total: int
    unshared: int
    lower_bound: int


def lower_bound(blocks: Sequence[Block]) -> int:
    """Returns the largest sum of blocks that are needed at the same time."""
    steps = {block.first for block in blocks}
    return max(
        (sum(b.nbytes for b in blocks if b.first <= step <= b.last) for step in steps), default=0
    )


def lay_out(blocks: Sequence[Block]) -> Layout:
    """Places blocks so that no two that are alive at the same time overlap."""
    offsets = [0] * len(blocks)
    placed: list[tuple[int, int, Block]] = []
    total = 0
    for index in sorted(range(len(blocks)), key=lambda i: (-blocks[i].nbytes, blocks[i].first)):
        block = blocks[index]
        start = _lowest_gap(block, placed)
        end = start + aligned(block.nbytes)
        offsets[index] = start
        placed.append((start, end, block))
        placed.sort(key=lambda entry: entry[0])
        total = max(total, end)
    return Layout(offsets=tuple(offsets), total=total)


def _lowest_gap(block: Block, placed: Sequence[tuple[int, int, Block]]) -> int:
    start, size = 0, aligned(block.nbytes)
    for begin, end, other in placed:
        if other.last < block.first or block.last < other.first:
            continue
        if begin - start >= size:
            break
        start = max(start, end)
    return start


def aligned(nbytes: int) -> int:
    """Returns the bytes that so much memory takes, as every block begins at an `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Arena:
    """Zeroed memory that can give its pages back; large ones take pages only as they are used.

    Raises ResourceExhaustedTransient when there is not so much memory.
    """

    def __init__(self, nbytes: int) -> None:
        try:
            # Pages of a shared mapping would survive MADV_DONTNEED.
            self._map = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise ResourceExhaustedTransient(
                f"an execution needs {nbytes} bytes of memory, which are not to be had"
            ) from error
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._populated = False

    def populate(self) -> None:
        """Takes all pages now; if that fails, they come one by one as they are used."""
        if not self._populated:
            self._populated = True
            with contextlib.suppress(OSError, AttributeError):
                self._map.madvise(_MADV_POPULATE_WRITE)

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Returns the array at an offset; several may share memory."""
        nbytes = int(np.prod(shape)) * dtype.itemsize
        return self._bytes[offset : offset + nbytes].view(dtype).reshape(shape)

    def trim(self) -> None:
        """Gives the pages back to the system; what the arrays held is lost."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._populated = False
            self._map.madvise(mmap.MADV_DONTNEED)
