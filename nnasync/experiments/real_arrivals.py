"""Planned arrivals, told when they are due, whatever becomes of those before.

A thread waits for them, since timers of event loops are good to a millisecond only, and wakes the
loop for what is due. It never waits for the loop: one that lags hears of several at once, and their
latencies count from when they were planned. So a system that slows down slows no arrivals down (no
coordinated omission).
"""

from __future__ import annotations

import collections
import heapq
import itertools
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import NamedTuple

from nnasync._core.clock import now_ns
from nnasync._core.wakeup import Waiter
from nnasync.hal import NEVER_NS


class Arrival(NamedTuple):
    """A request of a stream, by its number: when it is planned, and what it costs.

    `told_ns` is when it was found to be due, and the loop was woken for it.
    """

    planned_ns: int
    stream: int
    cost_ns: int
    told_ns: int = -1


class Planner:
    """Tells of arrivals; times count from the start of the run.

    `open_streams` are iterators by the numbers of their streams, each in the order of time. Closed
    ones are planned one by one (`plan`), from any thread, as long as there are `callers` of them.
    It ends at `end_ns`, after `most` arrivals, or when all streams have ended.
    """

    def __init__(
        self,
        open_streams: dict[int, Iterator[Arrival]],
        *,
        callers: int,
        end_ns: int,
        most: int | None,
    ) -> None:
        self._streams = open_streams
        self._has_callers = callers > 0
        self._end_ns = end_ns
        self._left = most
        self._changed = threading.Condition()
        self._heap: list[tuple[int, int, Arrival]] = []
        self._numbers = itertools.count()
        self._stopped = False
        self._told: collections.deque[list[Arrival]] = collections.deque()
        self._bell = Waiter()
        self._failure: BaseException | None = None
        for stream in open_streams:
            self._plan_next(stream)

    async def arrivals(self, start_ns: int) -> AsyncGenerator[list[Arrival], None]:
        """Yields the arrivals that are due, as soon as they are; raises what the streams raise."""
        thread = threading.Thread(
            target=self._run, args=(start_ns,), name="nnasync-arrivals", daemon=True
        )
        thread.start()
        try:
            while True:
                self._bell = bell = Waiter()
                while self._told:
                    due = self._told.popleft()
                    if not due:
                        break
                    yield due
                else:
                    await bell
                    continue
                break
        finally:
            self._stop()
            thread.join()
        if self._failure is not None:
            raise self._failure

    def plan(self, arrival: Arrival) -> None:
        """Plans an arrival of a closed stream."""
        with self._changed:
            self._push(arrival)
            self._changed.notify()

    def untold(self) -> list[Arrival]:
        """Returns what was due by the end and not told, as its thread may have had no core by then.

        To be called when the arrivals are over.
        """
        told = [arrival for due in self._told for arrival in due]
        return told + (self._take_due(self._end_ns) if self._end_ns < NEVER_NS else [])

    def _stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self, start_ns: int) -> None:
        """Queues what is due, and in the end an empty list; runs on a thread of its own."""
        due: list[Arrival] = []
        while True:
            try:
                due = self._wait(start_ns)
            except BaseException as error:
                self._failure, due = error, []
            self._told.append(due)
            self._bell.wake()
            if not due:
                return

    def _wait(self, start_ns: int) -> list[Arrival]:
        """Waits until arrivals are due, and returns them; returns none at the end."""
        with self._changed:
            while not self._stopped and self._left != 0:
                now = now_ns() - start_ns
                if due := self._take_due(now):
                    return due
                if now >= self._end_ns:
                    break
                if not (self._heap or self._has_callers):
                    break
                until_ns = min(self._end_ns, self._heap[0][0] if self._heap else self._end_ns)
                self._changed.wait(min((until_ns - now) / 1e9, threading.TIMEOUT_MAX))
        return []

    def _take_due(self, now: int) -> list[Arrival]:
        due: list[Arrival] = []
        while self._heap and self._heap[0][0] <= min(now, self._end_ns - 1) and self._left != 0:
            arrival = heapq.heappop(self._heap)[-1]
            due.append(arrival._replace(told_ns=now))
            if self._left is not None:
                self._left -= 1
            if arrival.stream in self._streams:
                self._plan_next(arrival.stream)
        return due

    def _plan_next(self, stream: int) -> None:
        arrival = next(self._streams[stream], None)
        if arrival is not None:
            self._push(arrival)

    def _push(self, arrival: Arrival) -> None:
        heapq.heappush(self._heap, (arrival.planned_ns, next(self._numbers), arrival))
