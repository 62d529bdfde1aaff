"""A blocking reader: its time limits and stop request, for its thread and the waiting task.

A thread reads, a task waits for it. Nobody can end a system call of another thread, so the task
keeps the limits: when one is over it gives up and leaves the thread to itself. A reader that can
stop early looks at `is_stopped`; a pipe does so several times a second, a decoder between its
packets.
"""

from __future__ import annotations

import errno
import math
import os
import select
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from nnasync._core.arguments import check_positive, or_none
from nnasync._core.clock import now_ns
from nnasync.errors import DeviceUnavailable

PATIENCE_S = 10.0
"""How long opening a file or an address may take, and how long nothing may come from it."""

DEVICE_PATIENCE_S = 5.0
"""The same for a camera or a microphone."""

_LOOK_MS = 50


class Reading:
    """Tracks how far the reader of one source is, and when it is overdue; None is no limit.

    Raises InvalidArgument for limits that are not positive.
    """

    def __init__(
        self, name: str, *, open_timeout_s: float | None, read_timeout_s: float | None
    ) -> None:
        limits = {"open_timeout_s": open_timeout_s, "read_timeout_s": read_timeout_s}
        for limit, value in limits.items():
            or_none(check_positive, limit, value)
        self.name = name
        self.open_timeout_s = open_timeout_s
        self.read_timeout_s = read_timeout_s
        self.is_open = False
        self.is_stopped = False
        self._since_ns = now_ns()

    def progressed(self, *, is_open: bool = False) -> None:
        """Notes that data came, or is asked for from now on.

        `is_open` once the source has opened.
        """
        self._since_ns = now_ns()
        self.is_open = self.is_open or is_open

    def stop(self) -> None:
        """Asks the reader to give up the next time that it looks."""
        self.is_stopped = True

    @property
    def has_limit(self) -> bool:
        """Returns whether a time limit applies to the current operation."""
        return self._limit_s is not None

    @property
    def left_s(self) -> float:
        """Seconds until the reader is overdue; infinite without a limit."""
        limit_s = self._limit_s
        if limit_s is None:
            return math.inf
        return limit_s - (now_ns() - self._since_ns) / 1e9

    @property
    def _limit_s(self) -> float | None:
        return self.read_timeout_s if self.is_open else self.open_timeout_s

    def overdue(self) -> DeviceUnavailable:
        """Returns the error of a reader from which nothing came in time."""
        if self.is_open:
            return DeviceUnavailable(
                f"nothing came from {self.name} for {self.read_timeout_s:g} s (read_timeout_s)"
            )
        return DeviceUnavailable(
            f"{self.name} could not be opened within {self.open_timeout_s:g} s (open_timeout_s)"
        )


class Pipe:
    """A named pipe or a character device, read without ever blocking in the system.

    It opens at once, whether somebody writes or not. What its `reading` stops raises OSError.
    """

    def __init__(self, path: str, reading: Reading) -> None:
        self.name = path
        self._reading = reading
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def read(self, count: int) -> bytes:
        """Reads at most `count` bytes; returns none once all writers have closed the pipe."""
        while not self._reading.is_stopped:
            if self._poll.poll(_LOOK_MS):
                try:
                    data = os.read(self._fd, count)
                except BlockingIOError:
                    continue
                self._reading.progressed()
                return data
        raise OSError(errno.ECANCELED, "reading was stopped", self.name)

    def close(self) -> None:
        """Give the descriptor back; harmless when repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def is_pipe(path: str) -> bool:
    """Returns whether reading this file may wait for somebody: a pipe or a character device."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


@contextmanager
def readable(path: str, reading: Reading) -> Iterator[str | Pipe]:
    """Yields what to open in place of `path`.

    That is the path itself, or a `Pipe` where opening it might block.
    """
    if not is_pipe(path):
        yield path
        return
    pipe = Pipe(path, reading)
    try:
        yield pipe
    finally:
        pipe.close()
