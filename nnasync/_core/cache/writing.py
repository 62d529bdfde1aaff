"""An entry while it is written: descriptors for the driver to fill, and what became of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Self

from nnasync._core.cache.outcome import Rejected
from nnasync._core.cache.sealed import memory_file


class Writing:
    """Made by `Store.write`; a driver fills `model_fds` and `data_fds`, and does not close them.

    They are empty files in memory, open for reading and writing; none where the entry cannot be
    written. `reason` says why nothing is stored, and is empty as long as nothing went wrong.
    `stored` becomes true when the block of `Store.write` was left and the entry counts;
    `generation` then names this writing of it.
    """

    def __init__(self) -> None:
        self.model_fds: tuple[int, ...] = ()
        self.data_fds: tuple[int, ...] = ()
        self.reason = ""
        self.stored = False
        self.generation = b""

    @property
    def fds(self) -> tuple[int, ...]:
        """Returns all descriptors."""
        return self.model_fds + self.data_fds

    def abandon(self, reason: str) -> None:
        """Store nothing, for this reason."""
        self.reason = self.reason or reason or "abandoned"

    def open(self, counts: tuple[int, int]) -> None:
        """Make the files; raises Rejected where there are no descriptors left."""
        for _ in range(counts[0]):
            self.model_fds += (memory_file(),)
        for _ in range(counts[1]):
            self.data_fds += (memory_file(),)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Closes the files if the block fails, and keeps the error as the reason."""
        try:
            yield
        except Rejected as error:
            self.reason = str(error)
        except OSError as error:
            self.reason = f"the cache directory cannot be written: {error.strerror}"
        if self.reason:
            self.close()

    def close(self) -> None:
        """Close the descriptors; may be called any number of times."""
        fds = self.fds
        self.model_fds = self.data_fds = ()
        for fd in fds:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
