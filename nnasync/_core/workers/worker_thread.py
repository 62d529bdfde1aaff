"""What the workers consist of: threads that can be woken by name, and statistics."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future

import msgspec

from nnasync._core.clock import now_ns
from nnasync._core.endings import joined_at_exit
from nnasync._core.giving_way import UrgentWorker
from nnasync.hal import Priority
from nnasync.scheduler import SchedulerStatistics
from nnasync.tracing import Count


class WorkersStatistics(msgspec.Struct, frozen=True):
    """State of the workers; durations in nanoseconds, counts since the start."""

    threads: int
    running: int
    live: int
    hot: int
    inline_runs: Count
    inline_ns: Count
    worker_runs: Count
    worker_ns: Count
    preemptions: Count
    quarantined: int
    scheduler: SchedulerStatistics


class ThreadStarter:
    """Starts threads from one that has the usual OS priority: they inherit that of their starter.

    A thread of the idle class may not be able to leave it.
    """

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[tuple[threading.Thread, Future[None]] | None]
        self._wanted = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="nnasync-starter", daemon=True).start()

    def start(self, thread: threading.Thread) -> None:
        """Start a thread, and raise what its own `start` raises."""
        done: Future[None] = Future()
        self._wanted.put((thread, done))
        done.result()

    def close(self) -> None:
        """Start nothing more."""
        self._wanted.put(None)

    def _serve(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            thread, done = wanted
            try:
                thread.start()
            except RuntimeError as error:
                done.set_exception(error)
            else:
                done.set_result(None)


class Worker:
    """One thread of a set: parked on a lock of its own, so that it can be woken by name."""

    __slots__ = (
        "coming",
        "demoted",
        "finishing",
        "leaving",
        "lost",
        "nicer",
        "priorities",
        "signal",
        "thread",
        "urgent",
    )

    def __init__(
        self, priorities: tuple[Priority, ...], *, demoted: bool = False, nicer: bool = False
    ) -> None:
        """`demoted` is whether the thread has the lowest OS priority; `nicer`, than its loop.

        It is `coming` from its start, or from when it was woken, until it asks for work.
        """
        self.priorities = priorities
        self.demoted = demoted
        self.nicer = nicer
        self.signal = threading.Lock()
        self.signal.acquire()
        self.coming = True
        self.finishing = False
        self.lost = False
        self.leaving = False
        self.thread: threading.Thread | None = None
        self.urgent: UrgentWorker | None = None
        """Its real-time priority, where that is wanted."""

    def begin(
        self, name: str, work: Callable[[Worker], object], starter: ThreadStarter | None
    ) -> None:
        """Start the thread, on behalf of `starter` if there is one; raises RuntimeError."""
        self.thread = threading.Thread(target=work, args=(self,), name=name, daemon=True)
        if starter is None:
            self.thread.start()
        else:
            starter.start(self.thread)
        joined_at_exit(self.thread)

    def park(self) -> None:
        """Wait until it is woken."""
        self.signal.acquire()

    def wake(self) -> None:
        """End its wait, or the next one."""
        self.signal.release()

    @staticmethod
    def join_all(workers: Iterable[Worker], end_ns: int) -> int:
        """Wait for the threads but the calling one until then at most; how many are left."""
        threads = [worker.thread for worker in workers if worker.thread is not None]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, (end_ns - now_ns()) / 1e9))
        return sum(thread.is_alive() for thread in threads)
