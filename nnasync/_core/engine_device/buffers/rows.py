"""Memory of small buffers: those of one prepared model lie side by side, in the order of its roles.

An engine that copies states in and out has them one behind the other as well, and copies what is
adjacent on both sides at once. A row goes on with the buffer of the next input, or output, that is
allocated; where that place is taken, as by the first of two buffers for each state, there is
another row. Its memory ends with the last of its buffers.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array
from nnasync.memory import ALIGNMENT

Role = tuple[object, str, int]
"""A prepared model, "input" or "output", and which one."""

MOST_BYTES = 2 << 10
"""What is larger has memory of its own: to copy it costs more than to begin a copy."""
ROW_BYTES = 8 << 10
_PADDING = ALIGNMENT
"""Engines may read a vector past the end of a tensor."""


class Rows:
    """Gives buffers of one prepared model memory in rows, one behind the other; needs a lock."""

    def __init__(self) -> None:
        self._rows: weakref.WeakKeyDictionary[object, list[_Row]] = weakref.WeakKeyDictionary()

    def piece(self, roles: Sequence[Role], nbytes: int) -> Array:
        """Returns zeroed memory for a buffer in these roles; raises MemoryError, ValueError."""
        if not roles or not 0 < nbytes <= MOST_BYTES:
            return zeros(nbytes)
        owner, kind, index = roles[0]
        rows = [row for row in self._rows.get(owner, ()) if row.is_alive]
        self._rows[owner] = rows
        for row in rows:
            piece = row.piece(kind, index, nbytes)
            if piece is not None:
                return piece
        memory = zeros(ROW_BYTES)
        rows.append(_Row(memory, kind, index + 1, nbytes))
        return memory[:nbytes]


class _Row:
    """A piece of memory that its buffers keep alive, and which role may have the rest of it."""

    __slots__ = ("_end", "_limit", "_memory", "_next")

    def __init__(self, memory: Array, kind: str, index: int, nbytes: int) -> None:
        """`nbytes` are taken by the buffer before this role."""
        # Slices of slices keep what has the memory, and nothing in between.
        whole: Any = memory.base
        self._memory: weakref.ref[Array] = weakref.ref(whole)
        start: int = memory.ctypes.data - whole.ctypes.data
        self._limit = start + memory.size
        self._end = start + _aligned(nbytes)
        self._next = (kind, index)

    @property
    def is_alive(self) -> bool:
        """Returns whether a buffer has memory here."""
        return self._memory() is not None

    def piece(self, kind: str, index: int, nbytes: int) -> Array | None:
        """Returns memory for the buffer of this role, if it is the next one and fits."""
        memory, start = self._memory(), self._end
        if memory is None or self._next != (kind, index) or start + nbytes > self._limit:
            return None
        self._end, self._next = start + _aligned(nbytes), (kind, index + 1)
        return memory[start : start + nbytes]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def zeros(nbytes: int) -> Array:
    """Returns zeroed bytes that begin at a multiple of the alignment, with some behind them."""
    if not nbytes:
        return np.empty(0, np.uint8)
    raw = np.zeros(nbytes + ALIGNMENT + _PADDING, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]
