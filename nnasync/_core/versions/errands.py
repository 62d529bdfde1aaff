"""Calls of a device's coroutines that are answered once: by the call, its deadline, or a cancel.

A device of an older version knows neither deadlines nor cancelling, and any device may be slow to
heed them. So each call runs in a task of its own, owned by the runtime, and whoever waits for it
waits for its answer, a fence. At the deadline the answer is there; the call is cancelled, but its
memory stays with it until it has really ended, and its late result is discarded.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

import anyio

from nnasync._core.clock import Alarm, Watchdog, now_ns
from nnasync._core.wakeup import Waiter, Wakeup
from nnasync._core.workers import contained
from nnasync.errors import (
    BadState,
    Cancelled,
    DeviceUnavailable,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
)
from nnasync.fences import Fence
from nnasync.scheduler import NEVER_NS

T = TypeVar("T")

Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
"""Starts a task on the loop: `start_soon` of a task group."""


class Errand(Generic[T]):
    """A call of a coroutine, in a task of its own once it is begun; its result by a deadline.

    `fence` is settled once, with the result there or an error. `released` is signaled afterwards,
    when the device has let go of the memory.
    """

    def __init__(
        self, who: str, deadline_ns: int, errands: Errands, work: Callable[[Errand[T]], Any]
    ) -> None:
        self.who = who
        self._errands = errands
        self._work = work
        self._scope: anyio.CancelScope | None = None
        self.fence = Fence()
        self.released = Fence()
        self.has_begun = False
        self._results: list[T] = []
        self._alarm: Alarm | None = None
        self._at_ns = NEVER_NS
        self.limit(deadline_ns)

    @property
    def result(self) -> T:
        """The result, once the fence is signaled; raises BadState before."""
        if not self._results:
            raise BadState(f"{self.who} has not answered")
        return self._results[0]

    def limit(self, deadline_ns: int) -> None:
        """Answer by this time, if that is earlier than it was."""
        if deadline_ns >= self._at_ns:
            return
        self._at_ns = deadline_ns
        self._disarm()
        if deadline_ns <= now_ns():
            self._expire()
            return
        self._alarm = self._errands.watchdog.arm(deadline_ns, self._expire)

    def fail(self, error: BaseException) -> None:
        """Answer with an error, unless it is answered."""
        self._disarm()
        self.fence.fail(contained(error, self.who).with_traceback(None))

    def release(self) -> None:
        """Note that the device has let go of the memory."""
        if not self.fence.done:
            self.fail(DeviceUnavailable(f"{self.who} ended without an answer"))
        self.released.signal()

    def cancel(self) -> None:
        """Answer with Cancelled, unless it is answered, and tell the device."""
        self.fail(Cancelled(f"{self.who} was cancelled"))
        self.stop()

    def stop(self) -> None:
        """Cancel the task."""
        self._errands.on_loop(self._cancel)

    def begin(self) -> None:
        """Have the task started, from any thread."""
        if self.fence.done:
            self.release()
        else:
            self._errands.begin(self)

    async def here(self) -> T:
        """Start the task and wait for the result, from a task of the loop; raises the error.

        Who is cancelled while waiting cancels the call.
        """
        if self.fence.done:
            self.release()
        else:
            self._errands.begin_here(self)
        try:
            await self.fence
        finally:
            if not self.fence.done:
                self.cancel()
        return self.result

    def _expire(self) -> None:
        kind = MissedDeadlineTransient if self.has_begun else MissedDeadlinePersistent
        when = "while it was running" if self.has_begun else "before it began"
        self.fence.fail(kind(f"the deadline of {self.who} passed {when}"))
        self.stop()

    def _disarm(self) -> None:
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.disarm()

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        """Does the work of the task."""
        try:
            if self.fence.done:
                return
            with anyio.CancelScope() as self._scope:
                self._results.append(await self._work(self))
                self._disarm()
                self.fence.signal()
        except Exception as error:
            self.fail(error)
        finally:
            self._scope = None
            self.release()


def begun(work: Callable[[], Awaitable[T]]) -> Callable[[Errand[T]], Awaitable[T]]:
    """The work of an errand that waits for nothing."""

    async def at_once(errand: Errand[T]) -> T:
        errand.has_begun = True
        return await work()

    return at_once


class Errands:
    """Makes errands on the loop of its maker; `spawn` is of a task group on that loop.

    Errands begin once `open` was called, and fail when the group has ended.
    """

    def __init__(self, spawn: Spawn, watchdog: Watchdog) -> None:
        self.watchdog = watchdog
        self._spawn = spawn
        self._wakeup = Wakeup.current()
        self._waiter: Waiter | None = None
        self._queue: deque[Errand[Any]] = deque()
        self._state = "new"

    def open(self) -> None:
        """Begin errands from now on; called by a task of the loop."""
        if self._state == "new":
            self._state = "open"
            self._spawn(self._start_all)

    def begin(self, errand: Errand[Any]) -> None:
        """Have the task of an errand started, from any thread."""
        self._queue.append(errand)
        waiter = self._waiter
        if waiter is not None:
            waiter.wake()
        elif self._state == "closed":
            self._drop_all()

    def begin_here(self, errand: Errand[Any]) -> None:
        """Begins an errand from a task of the loop, without a detour."""
        if self._state == "open":
            self._spawn(errand.run)
        else:
            self.begin(errand)

    async def _start_all(self) -> None:
        # A task group starts tasks from within a task only: a callback of the loop is none.
        try:
            while True:
                waiter = self._waiter = Waiter()
                while self._queue:
                    self._spawn(self._queue.popleft().run)
                await waiter
        finally:
            self._state = "closed"
            self._waiter = None
            self._drop_all()

    def _drop_all(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._queue.popleft().release()

    @property
    def is_on_loop(self) -> bool:
        """Returns whether the calling thread is that of the loop."""
        return self._wakeup.thread_id == threading.get_ident()

    def make(
        self,
        who: str,
        work: Callable[[Errand[T]], Awaitable[T]],
        deadline_ns: int = NEVER_NS,
    ) -> Errand[T]:
        """An errand that is not begun yet; its deadline counts already."""
        return Errand(who, deadline_ns, self, work)

    async def call(
        self,
        who: str,
        work: Callable[[], Awaitable[T]],
        deadline_ns: int = NEVER_NS,
    ) -> T:
        """Call and wait for the result; raises typed errors, MissedDeadline at the deadline."""
        return await self.make(who, begun(work), deadline_ns).here()

    def call_blocking(
        self,
        who: str,
        work: Callable[[], Awaitable[T]],
        armed: Callable[[Errand[T]], object] = lambda errand: None,
    ) -> T:
        """Has the loop do work for another thread, which blocks; `armed` gets the errand first.

        Raises BadState on the thread of the loop, which would wait for itself.
        """
        if self.is_on_loop:
            raise BadState(f"{who} cannot be waited for on the thread of its loop")
        errand = self.make(who, begun(work))
        armed(errand)
        errand.begin()
        errand.fence.wait_blocking()
        return errand.result

    def on_loop(self, work: Callable[[], object]) -> bool:
        """Have something done on the loop, at once if this is its thread; False if it is closed."""
        if self.is_on_loop:
            work()
            return True
        return self._wakeup.post(work)
