"""What writes items to a file: on a thread, in order, and finished whatever ends the graph.

A file is made when the first item comes. Closing writes what its format needs at the end, so that a
recording of a graph that was cancelled can be played.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Protocol

import anyio
import anyio.to_thread

from nnasync._core.arguments import check_function, path_of
from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    InvalidArgument,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.streaming.item import Item

CLOSE_S = 10.0
"""How long closing waits for a disk that does not answer."""


class Writer(Protocol):
    """A file that is open; its methods block, and raise OSError."""

    def write(self, item: Item) -> None:
        """Write an item; raises InvalidArgument for data that this file cannot have."""

    def close(self) -> None:
        """Finish the file."""


class FileSink:
    """A sink that writes a file; for `Stream.sink`, which closes it with the graph.

    Calling it raises InvalidArgument for a file that cannot be made or data that it cannot have,
    ResourceExhaustedTransient when the disk is full, BadState after the end. One sink may be the
    end of several streams.
    """

    def __init__(self, path: str | os.PathLike[str], begin: Callable[[str, Item], Writer]) -> None:
        check_function("begin", begin, "a function of a path and an Item that returns a Writer")
        self._path = path_of("path", path)
        self.name = os.path.basename(self._path)
        self.written = 0
        """How many items the file took; some may reach the disk only when it is closed."""
        self._begin = begin
        self._writer: Writer | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    async def __call__(self, item: Item) -> None:
        """Write one item."""
        await anyio.to_thread.run_sync(self._write, item, abandon_on_cancel=True)

    async def aclose(self) -> None:
        """Finish the file; harmless when repeated.

        Raises what writing does, and DeviceUnavailable where the disk does not answer in time.
        """
        if self._is_closed:
            return
        with anyio.move_on_after(CLOSE_S, shield=True) as limit:
            await anyio.to_thread.run_sync(self._close, abandon_on_cancel=True)
        if limit.cancelled_caught:
            raise DeviceUnavailable(
                f"{self._path} is not finished: it could not be written for {CLOSE_S:g} s"
            )

    def _write(self, item: Item) -> None:
        with self._lock:
            if self._is_closed:
                raise BadState(f"{self._path} is closed")
            try:
                if self._writer is None:
                    self._writer = self._begin(self._path, item)
                self._writer.write(item)
            except OSError as error:
                raise self._failure(error) from error
            self.written += 1

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            writer, self._writer = self._writer, None
            try:
                if writer is not None:
                    writer.close()
            except OSError as error:
                raise self._failure(error) from error

    def _failure(self, error: OSError) -> NNError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return ResourceExhaustedTransient(
                f"the disk is full: {self._path} has {self.written} items"
            )
        reason = error.strerror or str(error)
        return InvalidArgument(f"cannot write {self._path}: {reason}")
