"""A bounded queue between a producer that cannot wait, on any thread, and one async consumer.

A camera sends whether somebody looks or not. What is not taken in time gives way to what is newer,
and is counted, so that the account of a graph tells of it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from nnasync._core.wakeup import Waiter, yield_now
from nnasync.streaming.account import Outcome

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Holds the newest `capacity` values for a consumer."""

    def __init__(self, capacity: int) -> None:
        self._values: deque[T] = deque()
        self._capacity = capacity
        self._lock = threading.Lock()
        self._waiter: Waiter | None = None
        self._losses: dict[Outcome, int] = {}
        self._told: dict[Outcome, int] = {}
        self._error: Exception | None = None
        self.is_ended = False

    def put(self, value: T) -> None:
        """Add a value, from any thread; the oldest gives way to it where there is no room.

        After the end it is lost as well.
        """
        with self._lock:
            if self.is_ended:
                self._count(Outcome.DROPPED)
                return
            if len(self._values) >= self._capacity:
                self._values.popleft()
                self._count(Outcome.DROPPED)
            self._values.append(value)
        self._wake()

    def lose(self, outcome: Outcome, count: int = 1) -> None:
        """Count what the producer lost before it could be put in, from any thread."""
        with self._lock:
            self._count(outcome, count)

    def end(self, error: Exception | None = None) -> None:
        """Ends the queue with this error behind what is there; only the first call counts.

        It may be called from any thread.
        """
        with self._lock:
            if not self.is_ended:
                self.is_ended, self._error = True, error
        self._wake()

    def discard(self) -> None:
        """Throws away what is queued, because nobody will take it."""
        with self._lock:
            self._count(Outcome.DROPPED, len(self._values))
            self._values.clear()

    @property
    def must_wait(self) -> bool:
        """Returns whether the queue has neither a value nor its end to take."""
        return not self._values and not self.is_ended

    @property
    def losses(self) -> dict[Outcome, int]:
        """Returns how many values were lost so far, by outcome."""
        with self._lock:
            return dict(self._losses)

    def take_losses(self) -> dict[Outcome, int]:
        """Returns how many values were lost since the last call of this method, by outcome."""
        losses = self.losses
        told, self._told = self._told, losses
        return {outcome: count - told.get(outcome, 0) for outcome, count in losses.items()}

    async def take(self) -> T:
        """Waits for the oldest value, and takes it; lets other tasks run in any case.

        Raises StopAsyncIteration at the end, or the error that ended it, once.
        """
        if not self.must_wait:
            await yield_now()
        while self.must_wait:
            waiter = self._waiter = Waiter()
            # What came before the waiter was there did not wake it.
            if self.must_wait:
                await waiter.wait()
        with self._lock:
            if self._values:
                return self._values.popleft()
            error, self._error = self._error, None
        raise error or StopAsyncIteration

    def _count(self, outcome: Outcome, count: int = 1) -> None:
        if count:
            self._losses[outcome] = self._losses.get(outcome, 0) + count

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            waiter.wake()
