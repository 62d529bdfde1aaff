"""What the workers consist of: threads that can be woken by name, and statistics."""

from __future__ import annotations

import threading

import msgspec

from nnasync.hal import Priority
from nnasync.scheduler import SchedulerStatistics
from nnasync.tracing import Count

__all__ = ["Worker", "WorkersStatistics"]


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


class Worker:
    """One thread of a set: parked on a lock of its own, so that it can be woken by name."""

    __slots__ = ("finishing", "leaving", "lost", "priorities", "signal", "thread")

    def __init__(self, priorities: tuple[Priority, ...]) -> None:
        self.priorities = priorities
        self.signal = threading.Lock()
        self.signal.acquire()
        self.finishing = False
        self.lost = False
        self.leaving = False
        self.thread: threading.Thread | None = None

    def park(self) -> None:
        """Wait until it is woken."""
        self.signal.acquire()

    def wake(self) -> None:
        """End its wait, or the next one."""
        self.signal.release()
