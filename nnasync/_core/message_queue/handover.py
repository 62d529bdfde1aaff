"""What one process sends to the other so that it can join a message queue."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Self

from nnasync.errors import InvalidArgument


class Handover:
    """Two open descriptors: the memory, and the peer's end of the pipe that wakes the reader.

    They are to be closed here once they are sent: an end that is open in two processes hides the
    death of one. A context manager; `close` may be called any number of times.
    """

    __slots__ = ("descriptors",)

    COUNT = 2
    """Descriptors of one queue."""

    # At the end of the interpreter a module is gone before its last object.
    _close_fd = staticmethod(os.close)

    def __init__(self, fds: Sequence[int]) -> None:
        """Take received descriptors over, in the order of `descriptors`.

        Raises InvalidArgument for another number of them, having closed them all.
        """
        self.descriptors = tuple(fds)
        """Memory and pipe; none once closed."""
        if len(self.descriptors) != self.COUNT:
            self.close()
            raise InvalidArgument(
                f"a message queue comes as {self.COUNT} file descriptors, not {len(fds)}"
            )

    def close(self) -> None:
        """Close the descriptors."""
        fds, self.descriptors = self.descriptors, ()
        for fd in fds:
            try:
                self._close_fd(fd)
            except (OSError, OverflowError):  # what a peer claims to have sent need not be open
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    __del__ = close
