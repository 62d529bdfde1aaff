"""A bell between two processes: a pipe, one end rings, the other waits.

A ring is a byte that never blocks; a full pipe has rung enough. An end whose peer is gone says so:
`peer_closed`. The waiting end serves one thread at a time, and blocks in its read only for one
without a timeout, which saves the poll before it. Closing it from elsewhere wakes the waiter, and
the descriptor goes when the waiter has left.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import threading

from nnasync.errors import BadState, InvalidArgument, ResourceExhaustedTransient

_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_DRAIN_BYTES = 4096
_LONGEST_S = 1e6


class Doorbell:
    """The ringing end; takes its descriptor over."""

    __slots__ = ("_fd", "_lock", "peer_closed")

    # At the end of the interpreter a module is gone before its last object.
    _close_fd = staticmethod(os.close)

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self.peer_closed = False

    def ring(self) -> None:
        """Wake who waits at the other end, or the next to wait; nothing once closed."""
        with self._lock:
            if self._fd < 0:
                return
            try:
                os.write(self._fd, b"\1")
            except BlockingIOError:
                pass
            except OSError:
                self.peer_closed = True

    def close(self) -> None:
        """Hang up; idempotent."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            self._close_fd(fd)

    __del__ = close


class DoorbellWaiter:
    """The waiting end; takes its descriptor over."""

    __slots__ = ("_blocking", "_closed", "_fd", "_lock", "_poll", "_waiting", "peer_closed")

    _close_fd = staticmethod(os.close)

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._blocking = False
        self._waiting = False
        self._closed = False
        self.peer_closed = False

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until it rings, the peer hangs up or we close, or `timeout_s` (if any) is over.

        Returns whether it rang or hung up. Raises BadState if somebody else waits.
        """
        if not self._enter(blocking=timeout_s is None):
            return False
        try:
            if timeout_s is None:
                self.peer_closed = not os.read(self._fd, _DRAIN_BYTES)
                return True
            return bool(self._poll.poll(min(timeout_s, _LONGEST_S) * 1e3)) and self._drain()
        finally:
            self._leave()

    def close(self) -> None:
        """Give the descriptor back, after waking who waits on it; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._waiting:
                self._close_fd(self._fd)
                return
            with contextlib.suppress(OSError):
                own = os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | _FLAGS)
                with contextlib.suppress(BlockingIOError):
                    os.write(own, b"\1")
                os.close(own)

    def __del__(self) -> None:
        self.close()

    def _drain(self) -> bool:
        try:
            self.peer_closed = not os.read(self._fd, _DRAIN_BYTES)
        except BlockingIOError:
            return False
        return True

    def _enter(self, *, blocking: bool) -> bool:
        with self._lock:
            if self._waiting:
                raise BadState("somebody waits on this end of the message queue already")
            if self._closed:
                return False
            if blocking is not self._blocking:
                os.set_blocking(self._fd, blocking)
                self._blocking = blocking
            self._waiting = True
            return True

    def _leave(self) -> None:
        with self._lock:
            self._waiting = False
            if self._closed:
                os.close(self._fd)


def open_pipe() -> tuple[int, int]:
    """Descriptors of a new pipe, the waiting and the ringing end."""
    try:
        return os.pipe2(_FLAGS)
    except OSError as error:
        raise ResourceExhaustedTransient(f"no descriptors for a message queue: {error}") from error


def reopen(fd: int, *, writing: bool) -> int:
    """A descriptor of our own for the pipe that a peer sent; theirs stays open.

    Raises InvalidArgument for what is no pipe, ResourceExhaustedTransient without descriptors.
    """
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            raise InvalidArgument(f"file descriptor {fd} of a message queue is not a pipe")
        mode = os.O_WRONLY if writing else os.O_RDONLY
        return os.open(f"/proc/self/fd/{fd}", mode | _FLAGS)
    except OSError as error:
        raise _refusal(error, fd) from error


def _refusal(error: OSError, fd: int) -> Exception:
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return ResourceExhaustedTransient(f"no descriptors for a message queue: {error}")
    return InvalidArgument(f"file descriptor {fd} of a message queue cannot be opened: {error}")
