"""A blocking iterator that runs in a thread of its own, a little ahead of its async consumer.

The thread is a daemon and nobody waits for it without a limit: where the iterator blocks for good,
a wait that is cancelled ends at once, and closing gives the thread up after `GRACE_S`. A thread
that was given up closes the iterator when it gets back to it, so nothing stays open that could be
closed, and it keeps no process from ending.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Generic, TypeVar

import anyio

from nnasync._core.wakeup import Waiter
from nnasync.errors import ResourceExhaustedTransient
from nnasync.streaming.blocking_reader import Reading

logger = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_S = 0.2
"""How long closing waits for a thread that may be blocked."""


class LookAhead(Generic[T]):
    """Async iterator over a blocking one, which is made, advanced and closed in a thread.

    While the consumer takes one batch of `batch` items, the thread prepares the next; the consumer
    waits only where the thread is slower, and not longer than the limits of `reading`: then
    `__anext__` raises DeviceUnavailable and the iterator is at its end. What the iterator raises is
    raised by `__anext__`.
    """

    def __init__(
        self, make: Callable[[], Iterator[T]], *, batch: int = 8, reading: Reading | None = None
    ) -> None:
        self._reading = reading or Reading("it", open_timeout_s=None, read_timeout_s=None)
        self._reader = _LookAheadThread(make, batch, self._reading)
        self._items: deque[T] = deque()
        self._ahead: Future[list[T]] | None = None
        self._waiters: set[Waiter] = set()
        self._closed = False
        # What is dropped without being closed must not keep its thread.
        weakref.finalize(self, self._reader.leave).atexit = False

    def __aiter__(self) -> LookAhead[T]:
        return self

    async def __anext__(self) -> T:
        """The next item; a closed iterator is at its end."""
        if not self._items and not self._closed:
            await self._next_batch()
        if not self._items:
            await self.aclose()
            raise StopAsyncIteration
        return self._items.popleft()

    async def aclose(self) -> None:
        """Close the iterator in its thread and end the thread, or leave a blocked one to itself."""
        self._closed = True
        self._items.clear()
        self._reader.leave()
        for waiter in self._waiters:
            waiter.wake()
        if self._reader.ended.done():
            return
        waiter = Waiter()
        self._reader.ended.add_done_callback(waiter.wake)
        with anyio.move_on_after(GRACE_S, shield=True):
            await waiter.wait()

    async def _next_batch(self) -> None:
        pulled = self._ahead or self._reader.pull()
        self._ahead = pulled
        await self._until_done(pulled)
        if self._closed:
            return
        self._ahead = None
        self._items.extend(pulled.result())
        if self._items:
            self._ahead = self._reader.pull()

    async def _until_done(self, pulled: Future[list[T]]) -> None:
        while not (pulled.done() or self._closed):
            left_s = self._reading.left_s
            if left_s <= 0:
                await self.aclose()
                raise self._reading.overdue()
            waiter = Waiter()
            pulled.add_done_callback(waiter.wake)
            self._waiters.add(waiter)
            try:
                with anyio.move_on_after(left_s):
                    await waiter.wait()
            finally:
                self._waiters.discard(waiter)


class _LookAheadThread(Generic[T]):
    """The thread's side: nothing here knows of the consumer, which may be gone."""

    def __init__(self, make: Callable[[], Iterator[T]], batch: int, reading: Reading) -> None:
        self._make = make
        self._batch = batch
        self._reading = reading
        self._wanted: SimpleQueue[Future[list[T]] | None] = SimpleQueue()
        self._iterator: Iterator[T] | None = None
        self._error: Exception | None = None
        self._started = False
        self.ended: Future[None] = Future()

    def pull(self) -> Future[list[T]]:
        """Have the thread read a batch; raises ResourceExhaustedTransient where none can start."""
        if not self._started:
            thread = threading.Thread(target=self._run, name="nnasync-source", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise ResourceExhaustedTransient(
                    f"no thread to read {self._reading.name}: {error}"
                ) from error
            self._started = True
        self._reading.progressed()
        pulled: Future[list[T]] = Future()
        self._wanted.put(pulled)
        return pulled

    def leave(self) -> None:
        """Have the thread close the iterator and end, as soon as it can; harmless when repeated."""
        self._reading.stop()
        if self._started:
            self._wanted.put(None)
        elif not self.ended.done():
            self.ended.set_result(None)

    def _run(self) -> None:
        try:
            while (pulled := self._wanted.get()) is not None:
                try:
                    pulled.set_result(self._pull())
                except BaseException as error:
                    pulled.set_exception(error)
                # A thread that waits keeps nothing that its consumer has taken.
                del pulled
        finally:
            self._close_iterator()
            self.ended.set_result(None)

    def _pull(self) -> list[T]:
        """Reads a batch; an error behind some good items is kept for the next pull."""
        if self._error is not None:
            raise self._error
        items: list[T] = []
        try:
            if self._iterator is None:
                self._iterator = self._make()
            while len(items) < self._batch and not self._reading.is_stopped:
                items.append(next(self._iterator))
                self._reading.progressed(is_open=True)
        except StopIteration:
            pass
        except Exception as error:
            if not items:
                raise
            self._error = error
        return items

    def _close_iterator(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            try:
                close()
            except Exception:
                logger.warning("closing %s failed", self._reading.name, exc_info=True)
