"""How far a fuzzing process is, in memory that it shares with its parent.

A line for each input would cost both sides more than many an input does, and would have to be out
before the input is tried. A number in shared memory is there as soon as it is written, and still
there when the process is not.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from contextlib import ExitStack

from nnasync.memory.mapping import anonymous_file
from nnasync.suites.fuzz.verdicts import Ending

__all__ = ["Board", "board_file"]

_NUMBER, _PART, _IS_BUSY, _FIRST_ENDING = range(4)
_ENDINGS = tuple(Ending)


class Board:
    """The number of the input that is tried, and how many ended in which way; no lock is needed."""

    def __init__(self, fd: int) -> None:
        """Map the memory behind a descriptor, which stays its owner's."""
        self._stack = ExitStack()
        mapping = self._stack.enter_context(mmap.mmap(fd, mmap.PAGESIZE))
        self._words = self._stack.enter_context(memoryview(mapping).cast("q"))

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *exception: object) -> None:
        """Let go of the memory."""
        self._stack.close()

    # -- the process

    def begin(self, number: int, part: int) -> None:
        """Say that an input is tried from now on."""
        words = self._words
        words[_NUMBER], words[_PART], words[_IS_BUSY] = number, part, 1

    def end(self, ending: Ending | None) -> None:
        """Say that it is over; None for one that is told in another way."""
        if ending is not None:
            self._words[_FIRST_ENDING + _ENDINGS.index(ending)] += 1
        self._words[_IS_BUSY] = 0

    # -- its parent

    @property
    def place(self) -> tuple[int, int]:
        """The number and part of the input that began last."""
        return self._words[_NUMBER], self._words[_PART]

    @property
    def is_busy(self) -> bool:
        """Returns whether that input is not over."""
        return bool(self._words[_IS_BUSY])

    def endings(self) -> Counter[Ending]:
        """Returns how many inputs ended in which way, since the process began."""
        counts = self._words[_FIRST_ENDING : _FIRST_ENDING + len(_ENDINGS)]
        return Counter(dict(zip(_ENDINGS, counts, strict=True)))


def board_file(stack: ExitStack) -> int:
    """A descriptor of zeroed memory for a board, until the stack is closed."""
    fd = anonymous_file(mmap.PAGESIZE)
    stack.callback(os.close, fd)
    return fd
