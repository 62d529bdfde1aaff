"""What both ends of a message queue share: making and joining one, waiting, yielding, closing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Generic, NoReturn, Self, TypeVar

from nnasync.clock import now_ns
from nnasync.errors import (
    BadState,
    DeviceDied,
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedTransient,
)
from nnasync.memory import Pool
from nnasync.message_queue.handover import Handover
from nnasync.message_queue.ring import (
    HEADER_BYTES,
    MAX_CAPACITY,
    Consumer,
    Producer,
    check_capacity,
    prepare,
    read_capacity,
)
from nnasync.message_queue.wake import Bell, Ringer, open_pipe, reopen
from nnasync.wakeup import checkpoint_if_cancelled, yield_now

__all__ = ["STALL_BUDGET_NS", "QueueEnd"]

STALL_BUDGET_NS = 1_000_000
"""How long a task may keep its event loop without letting it turn."""

_IDLE_RINGS = 64
FOREVER_NS = 2**62

_Side = TypeVar("_Side", Producer, Consumer)


class QueueEnd(Generic[_Side]):
    """An end of a queue, with its side of the ring, a bell to wait on and one to ring."""

    __slots__ = (
        "__weakref__",
        "_bell",
        "_closed",
        "_lock",
        "_progress",
        "_resumed_ns",
        "_ring",
        "_ringer",
        "_rings",
        "stall_budget_ns",
    )

    _side: Callable[[memoryview, int], _Side]
    _rings_data: ClassVar[bool]

    def __init__(
        self,
        ring: _Side,
        ringer: Ringer,
        bell: Bell,
        *,
        stall_budget_ns: int,
    ) -> None:
        self._ring: _Side = ring
        self._ringer = ringer
        self._bell = bell
        self._lock = threading.Lock()
        self._closed = False
        self._progress = 0
        self._rings = 0
        self._resumed_ns = 0
        self.stall_budget_ns = stall_budget_ns

    @classmethod
    def create(
        cls,
        capacity: int,
        *,
        stall_budget_ns: int = STALL_BUDGET_NS,
    ) -> tuple[Self, Handover]:
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
                fds += open_pipe()
                fds.append(os.dup(pool.fd))
        except OSError as error:
            _close_all(fds)
            raise ResourceExhaustedTransient(f"no descriptors for a queue: {error}") from error
        except BaseException:
            _close_all(fds)
            raise
        heard_data, rung_data, heard_space, rung_space, memory = fds
        if cls._rings_data:
            rung, heard, handed = rung_data, heard_space, (memory, heard_data, rung_space)
        else:
            rung, heard, handed = rung_space, heard_data, (memory, rung_data, heard_space)
        ring = cls._side(view, capacity)
        end = cls(ring, Ringer(rung), Bell(heard), stall_budget_ns=stall_budget_ns)
        return end, Handover(handed)

    @classmethod
    def attach(
        cls,
        handover: Handover,
        *,
        stall_budget_ns: int = STALL_BUDGET_NS,
    ) -> Self:
        """The other end of a queue that a peer made; closes the handover in any case.

        Raises InvalidArgument for what is not a queue of this version in sealed memory with two
        pipes, BadState for a handover that is closed, ResourceExhaustedTransient where memory or
        descriptors are short. A peer that is gone already is noticed by what is called next.
        """
        fds: list[int] = []
        with handover:
            if not handover.descriptors:
                raise BadState("this handover of a message queue is closed, or attached already")
            memory, data, space = handover.descriptors
            view = _mapped(memory)
            ring = cls._side(view, read_capacity(view))
            rung, heard = (data, space) if cls._rings_data else (space, data)
            try:
                fds.append(reopen(rung, writing=True))
                fds.append(reopen(heard, writing=False))
            except BaseException:
                _close_all(fds)
                raise
        return cls(ring, Ringer(fds[0]), Bell(fds[1]), stall_budget_ns=stall_budget_ns)

    @property
    def capacity(self) -> int:
        """Bytes that the queue holds, each packet's length of 8 bytes and filling included."""
        return self._ring.capacity

    @property
    def closed(self) -> bool:
        """Whether this end was closed, by `close` or because the peer broke the queue."""
        return self._closed

    def close(self) -> None:
        """End the queue for both sides, waking who waits on either; idempotent, from any thread.

        What was written can still be read, on both sides; after it DeviceDied is raised. The memory
        and the descriptors are given back.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._ring.close()
            self._keep()
            self._ring.detach()
        self._ringer.close()
        self._bell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _keep(self) -> None:
        """Take what is worth keeping out of the memory before it goes."""

    def _gone(self) -> bool:
        return self._closed or self._bell.hung_up or self._ringer.hung_up

    async def _turn(self) -> None:
        """Give the loop its turn where this end has kept it for the budget."""
        if now_ns() - self._resumed_ns >= self.stall_budget_ns:
            await yield_now()
            self._resumed_ns = now_ns()
        else:
            await checkpoint_if_cancelled()

    def _sleep(self, until_ns: int) -> None:
        """Park this thread until it rings, or the time is over."""
        if self._park(until_ns):
            self._count_ring()

    def _park(self, until_ns: int) -> bool:
        """The same; whether it rang, which is to be counted unless it was for something."""
        if until_ns == FOREVER_NS:
            return self._bell.wait(None)
        return self._bell.wait(max(0, until_ns - now_ns()) * 1e-9)

    async def _sleep_async(self) -> None:
        """Park this task until it rings."""
        await self._bell.wait_async()
        self._resumed_ns = now_ns()
        self._count_ring()

    def _count_ring(self) -> None:
        """Break with a peer that rings and rings, and never moves."""
        progress = self._ring.progress
        if progress != self._progress:
            self._progress, self._rings = progress, 0
        self._rings += 1
        if self._rings > _IDLE_RINGS and not self._gone():
            self.close()
            self._ring.break_off("it rings without moving")


def until(timeout_s: float | None) -> int:
    """The end of a timeout, in nanoseconds of the clock; None never ends."""
    if timeout_s is None:
        return FOREVER_NS
    if not timeout_s >= 0:
        raise InvalidArgument(f"a timeout is a number of seconds from 0 on, not {timeout_s}")
    return now_ns() + int(min(timeout_s, FOREVER_NS * 1e-10) * 1e9)


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
