"""The reading end of a message queue."""

from __future__ import annotations

import contextlib
from collections import deque

from nnasync._core.clock import now_ns
from nnasync._core.message_queue.doorbell import DoorbellWaiter
from nnasync._core.message_queue.ends import QueueEnd, died
from nnasync._core.message_queue.ring import ORDERED, Consumer
from nnasync.errors import GeneralFailure, InvalidArgument

POLLING_NS = 50_000
"""How long a reader looks for a packet before it parks; NNAPI's default."""

_FOREVER_NS = 2**62
_IDLE_RINGS = 64
_LOOKS = 64
_MISSES = 4
_PROBE_EVERY = 64


class QueueReader(QueueEnd[Consumer, DoorbellWaiter]):
    """Takes packets out, oldest first; made by `create` or `attach`.

    `try_read` may be called from any thread; one thread at a time may wait. All reading
    raises DeviceDied when the queue is closed and empty, GeneralFailure when the writer broke it.

    A window in which nothing came counts as a miss. After several in a row polling is left off, and
    tried again now and then: a writer that shares the reader's core cannot answer a reader that
    polls, and one that takes its time is not worth it.
    """

    __slots__ = ("_kept", "_misses", "_polling_ns", "_progress", "_rings")

    _side = Consumer
    _end = DoorbellWaiter
    _writes = False

    def __init__(self, ring: Consumer, doorbell: DoorbellWaiter) -> None:
        super().__init__(ring, doorbell)
        self._kept: deque[bytes] = deque()
        self._misses = self._progress = self._rings = 0
        self.polling_ns = POLLING_NS

    @property
    def polling_ns(self) -> int:
        """Returns how long it looks for a packet before it parks, in nanoseconds; 0 parks at once.

        Always 0 on processors other than x86-64.
        """
        return self._polling_ns

    @polling_ns.setter
    def polling_ns(self, window_ns: int) -> None:
        self._polling_ns = window_ns if ORDERED else 0
        self._misses = 0

    def try_read(self) -> bytes | None:
        """The next packet, or None if there is none now."""
        ring = self._ring
        try:
            with self._lock:
                message = ring.read()
        except GeneralFailure:
            self.close()
            raise
        if message is None and (self.closed or self._waker.peer_closed or ring.writer_closed()):
            return self._last()
        return message

    @property
    def writer_core(self) -> int:
        """Returns the core on which the writer says it waits: any number, -1 if none."""
        return self._ring.writer_core()

    def looks_for(self, until_ns: int) -> bool:
        """Look for a packet, or the end of the queue, up to a time; whether there is something."""
        ring = self._ring
        while not ring.watch(_LOOKS):
            if (
                ring.writer_closed()
                or self.closed
                or self._waker.peer_closed
                or now_ns() >= until_ns
            ):
                return False
        return True

    def read_blocking(self, timeout_s: float | None = None) -> bytes | None:
        """Wait in this thread for the next packet: polling first, then parked; None: out of time.

        Raises BadState if somebody waits already.
        """
        until_ns = _until(timeout_s)
        window_ns = self._polling_ns
        if timeout_s is not None:
            window_ns = min(window_ns, until_ns - now_ns())
        message = self._polled(window_ns)
        if message is None:
            self._ring.want_data()
            message = self.try_read()
        while message is None:
            if until_ns != _FOREVER_NS and now_ns() >= until_ns:
                return None
            rang = self._parked(until_ns)
            message = self.try_read()
            if message is None:
                if rang:
                    self._count_ring()
                self._ring.want_data()
                message = self.try_read()
        return message

    def _parked(self, until_ns: int) -> bool:
        """Park this thread; whether it rang, which is to be counted unless it was for something."""
        if until_ns == _FOREVER_NS:
            return self._waker.wait(None)
        return self._waker.wait(max(0, until_ns - now_ns()) * 1e-9)

    def _count_ring(self) -> None:
        """Break with a peer that rings and rings, and never moves."""
        progress = self._ring.progress
        if progress != self._progress:
            self._progress, self._rings = progress, 0
        self._rings += 1
        if self._rings > _IDLE_RINGS and not (self.closed or self._waker.peer_closed):
            self.close()
            self._ring.break_off("it rings without moving")

    def _polled(self, window_ns: int) -> bytes | None:
        """The next packet, if it comes within the window and polling has been worth it lately."""
        if window_ns <= 0:
            return None
        message = self.try_read()
        if message is not None or not self._worth_polling():
            return message
        until_ns = now_ns() + window_ns
        while not self._ring.watch(_LOOKS):
            if now_ns() >= until_ns:
                self._misses += 1
                return None
        self._misses = 0
        return self.try_read()

    def _worth_polling(self) -> bool:
        if self._misses < _MISSES:
            return True
        self._misses += 1
        return self._misses % _PROBE_EVERY == 0

    def _keep(self) -> None:
        ring = self._ring
        stop = ring.position + ring.capacity
        with contextlib.suppress(GeneralFailure):
            while ring.position < stop and (message := ring.read()) is not None:
                self._kept.append(message)

    def _last(self) -> bytes:
        """A packet that was written before the queue was closed."""
        with self._lock:
            message = self._ring.read()
            if message is None and self._kept:
                message = self._kept.popleft()
        return died(None) if message is None else message


def _until(timeout_s: float | None) -> int:
    """The end of a timeout, in nanoseconds of the clock; None never ends."""
    if timeout_s is None:
        return _FOREVER_NS
    if not timeout_s >= 0:
        raise InvalidArgument(f"a timeout is a number of seconds from 0 on, not {timeout_s}")
    return now_ns() + int(min(timeout_s, _FOREVER_NS * 1e-10) * 1e9)
