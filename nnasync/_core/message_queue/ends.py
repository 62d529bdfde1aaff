"""What both ends of a message queue share: making and joining one, and closing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import ClassVar, Generic, NoReturn, Self, TypeVar

from nnasync._core.message_queue.doorbell import Doorbell, DoorbellWaiter, open_pipe, reopen
from nnasync._core.message_queue.handover import Handover
from nnasync._core.message_queue.ring import (
    HEADER_BYTES,
    MAX_CAPACITY,
    Consumer,
    Producer,
    check_capacity,
    prepare,
    read_capacity,
)
from nnasync.errors import (
    BadState,
    DeviceDied,
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedTransient,
)
from nnasync.memory import Pool

_Side = TypeVar("_Side", Producer, Consumer)
_Waker = TypeVar("_Waker", Doorbell, DoorbellWaiter)


class QueueEnd(Generic[_Side, _Waker]):
    """An end of a queue: its side of the ring, and its end of the pipe that wakes the reader."""

    __slots__ = ("__weakref__", "_lock", "_ring", "_waker", "closed")

    _side: Callable[[memoryview, int], _Side]
    _end: Callable[[int], _Waker]
    _writes: ClassVar[bool]

    def __init__(self, ring: _Side, waker: _Waker) -> None:
        self._ring: _Side = ring
        self._waker: _Waker = waker
        self._lock = threading.Lock()
        self.closed = False
        """Whether this end was closed, by `close` or because the peer broke the queue."""

    @classmethod
    def create(cls, capacity: int) -> tuple[Self, Handover]:
        """This end of a new queue for `capacity` bytes, and what `attach` needs for the other.

        Each packet takes 8 bytes more than it has, rounded up to 8. Raises InvalidArgument for a
        capacity that is no multiple of 8 or out of range, ResourceExhaustedTransient where
        memory or descriptors are short.
        """
        check_capacity(capacity)
        fds: list[int] = []
        try:
            with Pool.allocate(HEADER_BYTES + capacity) as pool:
                view = pool.view
                prepare(view, capacity)
                fds += open_pipe()
                fds.append(os.dup(pool.fd))
        except OSError as error:
            _close_all(fds)
            raise ResourceExhaustedTransient(f"no descriptors for a queue: {error}") from error
        except BaseException:
            _close_all(fds)
            raise
        heard, rung, memory = fds
        ours, theirs = (rung, heard) if cls._writes else (heard, rung)
        return cls(cls._side(view, capacity), cls._end(ours)), Handover((memory, theirs))

    @classmethod
    def attach(cls, handover: Handover) -> Self:
        """The other end of a queue that a peer made; closes the handover in any case.

        Raises InvalidArgument for what is not a queue of this version in sealed memory with a
        pipe, BadState for a handover that is closed, ResourceExhaustedTransient where memory or
        descriptors are short. A peer that is gone already is noticed by what is called next.
        """
        with handover:
            if not handover.descriptors:
                raise BadState("this handover of a message queue is closed, or attached already")
            memory, pipe = handover.descriptors
            view = _mapped(memory)
            ring = cls._side(view, read_capacity(view))
            return cls(ring, cls._end(reopen(pipe, writing=cls._writes)))

    @property
    def capacity(self) -> int:
        """Bytes that the queue holds, each packet's length of 8 bytes and filling included."""
        return self._ring.capacity

    def close(self) -> None:
        """End the queue for both sides, waking the reader; idempotent, from any thread.

        What was written can still be read, on both sides; after it DeviceDied is raised. The memory
        and the descriptors are given back.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._ring.close()
            self._keep()
            self._ring.detach()
        self._waker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _keep(self) -> None:
        """Take what is worth keeping out of the memory before it goes."""


def died(fault: str | None) -> NoReturn:
    """Raise that nothing more comes, or what broke the queue."""
    if fault is not None:
        raise GeneralFailure(fault)
    raise DeviceDied("the message queue is closed: the other process ended, or one side closed it")


def _mapped(fd: int) -> memoryview:
    """A peer's memory; raises InvalidArgument where it could shrink under us."""
    try:
        size = min(os.fstat(fd).st_size, HEADER_BYTES + MAX_CAPACITY)
    except (OSError, OverflowError) as error:
        raise InvalidArgument(
            f"no memory of a message queue in descriptor {fd}: {error}"
        ) from error
    with Pool.from_fd(fd, size, require_sealed=True) as pool:
        return pool.view


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
