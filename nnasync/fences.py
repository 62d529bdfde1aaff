"""Sync fences: a one-shot signal that tasks await, threads wait for, and processes pass on.

A fence is pending until its producer signals it or fails it with an error; the first one wins.
Callbacks run on the signaling thread, so a chain of dependent work needs no event loop; a loop is
woken only for a task that awaits. If one raises, the others are still called (`callbacks`).

Between processes a fence travels as the read end of a pipe, one pipe per recipient. The producer
writes one byte and closes when the fence is signaled, and closes without the byte on an error: so a
producer that dies is an error by itself. Nobody reads the byte, hence a duplicate of the descriptor
sees the same. A process that forks without exec hands the write ends on to its child and takes away
their recipients' way to notice its death.
"""

from __future__ import annotations

import array
import enum
import fcntl
import logging
import os
import select
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

from nnasync import errors
from nnasync._core.callbacks import after_raise
from nnasync._core.deferred import deferred
from nnasync._core.wakeup import Waiter

if TYPE_CHECKING:
    import copy
    import termios
else:
    copy = deferred("copy")
    termios = deferred("termios")

__all__ = ["Fence", "FenceStatus", "fresh", "merge", "signaled"]

logger = logging.getLogger(__name__)


class FenceStatus(enum.Enum):
    """State of a fence; the last two are final."""

    PENDING = "pending"
    SIGNALED = "signaled"
    ERROR = "error"


_PENDING = FenceStatus.PENDING
_SIGNALED = FenceStatus.SIGNALED
_ERROR = FenceStatus.ERROR


class Fence:
    """A one-shot signal. Read `status`, `error` and `signaled_at_ns`; only the methods write them.

    `error` is the exception of a failed fence, else None. `signaled_at_ns` is when it became
    signaled or failed, in nanoseconds of CLOCK_MONOTONIC; 0 while it is pending.
    """

    __slots__ = ("__weakref__", "_callbacks", "_lock", "error", "signaled_at_ns", "status")

    def __init__(self) -> None:
        self.status = _PENDING
        self.error: Exception | None = None
        self.signaled_at_ns = 0
        self._callbacks: list[Callable[[Fence], object]] | None = None
        self._lock = _new_lock()

    def __repr__(self) -> str:
        return f"<Fence {self.status.value} at {id(self):#x}>"

    @property
    def done(self) -> bool:
        """Returns whether the fence is signaled or failed, for good."""
        return self.status is not _PENDING

    def signal(self) -> bool:
        """Mark the work as done, from any thread; False if the fence was final already."""
        return self._settle(_SIGNALED, None)

    def fail(self, error: Exception) -> bool:
        """Mark the work as failed, from any thread; False if the fence was final already."""
        if not isinstance(error, Exception):
            raise errors.InvalidArgument(f"a fence fails with an Exception, got {error!r}")
        return self._settle(_ERROR, error)

    def add_callback(self, callback: Callable[[Fence], object]) -> None:
        """Have `callback(fence)` called on the signaling thread; at once if the fence is final."""
        with self._lock:
            if self.status is _PENDING:
                if self._callbacks is None:
                    self._callbacks = [callback]
                else:
                    self._callbacks.append(callback)
                return
        raised = _call(callback, self)
        if raised is not None:
            raise raised

    def remove_callback(self, callback: Callable[[Fence], object]) -> bool:
        """Take one registration back; False if there is none, or it is being called."""
        with self._lock:
            if self._callbacks is None or callback not in self._callbacks:
                return False
            self._callbacks.remove(callback)
            return True

    def __await__(self) -> Generator[Any, Any, None]:
        if self.status is _PENDING:
            waiter = Waiter()
            self.add_callback(waiter.wake)
            try:
                yield from waiter.__await__()
            except BaseException:
                self.remove_callback(waiter.wake)
                raise
        if self.error is not None:
            raise fresh(self.error) from self.error.__cause__ or self.error

    def wait_blocking(self, timeout_s: float | None = None) -> None:
        """Block the calling thread until the fence is final; raises the error of a failed fence.

        Raises MissedDeadlineTransient if it is still pending after `timeout_s` seconds.
        """
        if timeout_s is not None and not timeout_s >= 0:
            raise errors.InvalidArgument(f"timeout_s must be 0 or more, got {timeout_s}")
        if self.status is _PENDING:
            gate = _Gate()
            self.add_callback(gate.open)
            if not gate.wait(timeout_s):
                self.remove_callback(gate.open)
                raise errors.MissedDeadlineTransient(f"fence still pending after {timeout_s} s")
        if self.error is not None:
            raise fresh(self.error) from self.error.__cause__ or self.error

    def export_fd(self) -> int:
        """File descriptor for one recipient in another process; the caller owns and closes it.

        Raises ResourceExhaustedTransient if the process has no descriptors left.
        """
        try:
            read_fd, write_fd = os.pipe()
        except OSError as error:
            raise errors.ResourceExhaustedTransient(f"no pipe for a fence: {error}") from error
        self.add_callback(_Export(write_fd))
        return read_fd

    @staticmethod
    def import_fd(fd: int) -> Fence:
        """The fence behind a descriptor made by `export_fd`; takes the descriptor over.

        It fails with DeviceDied when the producer closes its end without signaling. Raises
        InvalidArgument, and closes the descriptor, if it is not the read end of a pipe.
        """
        _check_import(fd)
        fence = Fence()
        if (status := _poll(fd)) is not _PENDING:
            os.close(fd)
            _settle_import(fence, status)
        else:
            _watcher.watch(fd, fence)
        return fence

    def _settle(self, status: FenceStatus, error: Exception | None) -> bool:
        with self._lock:
            if self.status is not _PENDING:
                return False
            self.signaled_at_ns = time.monotonic_ns()
            self.error = error
            self.status = status
            callbacks = self._callbacks
            self._callbacks = None
        if callbacks is not None:
            raised = None
            for callback in callbacks:
                raised = _call(callback, self) or raised
            if raised is not None:
                raise raised
        return True


def signaled() -> Fence:
    """A new fence that is signaled already."""
    fence = Fence()
    # Nobody else knows it yet, so the lock and the callbacks of `signal` are not needed.
    fence.signaled_at_ns = time.monotonic_ns()
    fence.status = _SIGNALED
    return fence


def merge(fences: Iterable[Fence]) -> Fence:
    """A fence that is signaled once all of `fences` are, and fails at once with their first error.

    It keeps none of them alive, and is signaled if there are none.
    """
    fences = tuple(fences)
    merged = Fence()
    join = _Join(merged, len(fences) + 1)
    for fence in fences:
        fence.add_callback(join)
    join.count_down()
    return merged


def fresh(error: Exception) -> Exception:
    """A copy of an exception without its traceback, so that each raise starts with an empty one.

    Raise it `from` the original. An exception that cannot be copied becomes a GeneralFailure.
    """
    try:
        twin = copy.copy(error)
    except Exception:
        return errors.GeneralFailure(f"{type(error).__name__}: {error}")
    if type(twin) is not type(error) or twin is error:
        return errors.GeneralFailure(f"{type(error).__name__}: {error}")
    return twin


_new_lock = threading.Lock


def _call(callback: Callable[[Fence], object], fence: Fence) -> BaseException | None:
    """Run the callback; returns what must be raised after the others have run (`callbacks`)."""
    try:
        callback(fence)
    except BaseException as error:
        return after_raise(error, logger, f"a callback of {fence!r}")
    return None


class _Gate:
    """Lets a thread wait for a callback."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self, _fence: Fence) -> None:
        self._lock.release()

    def wait(self, timeout_s: float | None) -> bool:
        if timeout_s is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))


class _Join:
    """Callback of all inputs of a merge."""

    __slots__ = ("_left", "_lock", "_merged")

    def __init__(self, merged: Fence, count: int) -> None:
        self._merged = merged
        self._left = count
        self._lock = threading.Lock()

    def __call__(self, fence: Fence) -> None:
        if fence.error is not None:
            self._merged.fail(fence.error)
        else:
            self.count_down()

    def count_down(self) -> None:
        with self._lock:
            self._left -= 1
            done = self._left == 0
        if done:
            self._merged.signal()


class _Export:
    """Callback that owns the write end of a recipient's pipe, and closes it with its fence."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __call__(self, fence: Fence) -> None:
        try:
            if fence.status is _SIGNALED:
                os.write(self._fd, b"\0")
        except BrokenPipeError:
            pass
        finally:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self._close()


def _check_import(fd: int) -> None:
    """Raise InvalidArgument unless `fd` is the read end of a pipe; then close what is open."""
    if type(fd) is not int or fd < 0:
        raise errors.InvalidArgument(f"a fence is imported from a file descriptor, got {fd!r}")
    if _watcher.watches(fd):
        raise errors.InvalidArgument(f"file descriptor {fd} is a fence already imported")
    try:
        mode = os.fstat(fd).st_mode
        access = fcntl.fcntl(fd, fcntl.F_GETFL)
    except OSError as error:
        raise errors.InvalidArgument(f"file descriptor {fd} is not open: {error}") from error
    unreadable = access & os.O_ACCMODE != os.O_RDONLY or access & getattr(os, "O_PATH", 0)
    if unreadable or not stat.S_ISFIFO(mode):
        os.close(fd)
        raise errors.InvalidArgument(f"file descriptor {fd} is not the read end of a pipe")


def _poll(fd: int) -> FenceStatus:
    """State that a pipe's read end shows now; the byte, if there, stays unread."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    for _, events in poller.poll(0):
        if not events & select.POLLIN:
            return _ERROR
        if not events & (select.POLLHUP | select.POLLERR) or _unread_bytes(fd):
            return _SIGNALED
        return _ERROR
    return _PENDING


def _unread_bytes(fd: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def _settle_import(fence: Fence, status: FenceStatus) -> None:
    if status is _SIGNALED:
        fence.signal()
    else:
        fence.fail(errors.DeviceDied("the process that owned the fence ended, or failed its work"))


_LINGER_S = 0.05


class _Watcher:
    """Watches all pending imported fences on one thread, which ends soon after the last of them.

    It keeps a pending imported fence alive. Descriptors are closed under the lock, and a reported
    descriptor is looked at again under the lock: by then its number may belong to another fence.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fences: dict[int, Fence] = {}
        self._poller: Any = None
        self._wake_fds = (-1, -1)
        self.thread: threading.Thread | None = None

    def watches(self, fd: int) -> bool:
        return fd in self._fences

    def watch(self, fd: int, fence: Fence) -> None:
        with self._lock:
            try:
                if self.thread is None:
                    self._open()
                self._poller.register(fd, select.POLLIN)
            except (OSError, RuntimeError) as error:
                os.close(fd)
                raise errors.ResourceExhaustedTransient(f"cannot watch a fence: {error}") from error
            self._fences[fd] = fence
            if not hasattr(select, "epoll"):
                self._rouse()
        fence.add_callback(_Unwatch(fd))

    def unwatch(self, fd: int) -> None:
        with self._lock:
            if self._fences.pop(fd, None) is None:
                return
            self._poller.unregister(fd)
            os.close(fd)
            if not self._fences and threading.current_thread() is not self.thread:
                self._rouse()

    def _open(self) -> None:
        self._wake_fds = os.pipe()
        try:
            os.set_blocking(self._wake_fds[1], False)
            self._poller = select.epoll() if hasattr(select, "epoll") else select.poll()
            self._poller.register(self._wake_fds[0], select.POLLIN)
            thread = threading.Thread(target=self._run, name="nnasync-fences", daemon=True)
            thread.start()
        except (OSError, RuntimeError):
            self._close()
            raise
        self.thread = thread

    def _close(self) -> None:
        for fd in self._wake_fds:
            os.close(fd)
        if hasattr(self._poller, "close"):
            self._poller.close()
        self._poller = self.thread = None

    def _rouse(self) -> None:
        try:
            os.write(self._wake_fds[1], b"\0")
        except BlockingIOError:
            pass

    def _run(self) -> None:
        unit = 1 if hasattr(select, "epoll") else 1000
        while True:
            timeout = None if self._fences else _LINGER_S * unit
            events = self._poller.poll(timeout)
            for fd, _ in events:
                if fd == self._wake_fds[0]:
                    os.read(fd, 4096)
                else:
                    self._settle(fd)
            with self._lock:
                if not events and not self._fences:
                    self._close()
                    return

    def _settle(self, fd: int) -> None:
        with self._lock:
            fence = self._fences.get(fd)
            status = _PENDING if fence is None else _poll(fd)
        if fence is not None and status is not _PENDING:
            _settle_import(fence, status)


class _Unwatch:
    """Callback that stops watching an imported fence once anything has made it final."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __call__(self, _fence: Fence) -> None:
        _watcher.unwatch(self._fd)


_watcher = _Watcher()


def _forget_after_fork() -> None:
    global _watcher
    _watcher = _Watcher()


os.register_at_fork(after_in_child=_forget_after_fork)
