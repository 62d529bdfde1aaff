"""A blocking iterator that runs in a thread of its own, a little ahead of its async consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from nnasync.wakeup import Waiter

__all__ = ["LookAhead"]

T = TypeVar("T")


class LookAhead(Generic[T]):
    """Async iterator over a blocking one, which is made, advanced and closed in a thread.

    While the consumer takes one batch of `batch` items, the thread prepares the next; the consumer
    waits only where the thread is slower. What the iterator raises is raised by `__anext__`.
    """

    def __init__(self, make: Callable[[], Iterator[T]], *, batch: int = 8) -> None:
        self._make = make
        self._batch = batch
        self._items: deque[T] = deque()
        self._iterator: Iterator[T] | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._ahead: Future[list[T]] | None = None
        self._error: Exception | None = None
        self._closed = False

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
        """Close the iterator in its thread and end the thread."""
        self._closed = True
        self._items.clear()
        executor, self._executor = self._executor, None
        if executor is None:
            return
        executor.submit(self._close_iterator)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(executor.shutdown)

    async def _next_batch(self) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="nnasync-source")
        pulled = self._ahead or self._executor.submit(self._pull)
        self._ahead = pulled
        if not pulled.done():
            waiter = Waiter()
            pulled.add_done_callback(waiter.wake)
            await waiter.wait()
        self._ahead = None
        self._items.extend(pulled.result())
        if self._items:
            self._ahead = self._executor.submit(self._pull)

    def _pull(self) -> list[T]:
        """A batch; an error behind some good items waits for the next pull."""
        if self._error is not None:
            raise self._error
        items: list[T] = []
        try:
            if self._iterator is None:
                self._iterator = self._make()
            while len(items) < self._batch:
                items.append(next(self._iterator))
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
            close()
