"""What ran where: an instrument that writes the pieces of runs down."""

from __future__ import annotations

import heapq
import threading
from contextvars import ContextVar

from nnasync.experiments.record import Recorder
from nnasync.tracing import Instrument
from nnasync.tracing.instruments import Traced

UNKNOWN = (-1, -1)
ANSWERED: ContextVar[tuple[int, int]] = ContextVar("ANSWERED", default=UNKNOWN)
"""The numbers of the stream and of the request whose call the current task of the loop makes."""


class Cores(Instrument):
    """Gives each run the lowest number of a core that nothing else runs on.

    Those that a thread of the loop runs itself have the number behind all workers'. It counts
    `busy_ns` from when `begin` was called.
    """

    def __init__(self, recorder: Recorder, cores: int) -> None:
        self._recorder = recorder
        self._requests: dict[int, tuple[int, int]] = {}
        self._inline = cores
        self._lock = threading.Lock()
        self._free = list(range(cores))
        self._more = cores + 1
        self._taken: dict[int, int] = {}
        self._start_ns: int | None = None
        self.busy_ns = 0

    def begin(self, start_ns: int) -> None:
        """Starts the count of busy time."""
        self._start_ns = start_ns

    def task_submitted(self, task: Traced) -> None:
        """Notes which request a task belongs to.

        One that only waits for an engine belongs to none.
        """
        self._requests[id(task)] = ANSWERED.get()

    def task_started(self, task: Traced, begun_ns: int) -> None:
        """Notes the core that a thread occupies."""
        with self._lock:
            if self._free:
                core = heapq.heappop(self._free)
            else:
                core, self._more = self._more, self._more + 1
            self._taken[threading.get_ident()] = core

    def task_ran(self, task: Traced, begun_ns: int, ended_ns: int, finished: bool) -> None:
        """Notes a piece of a run, and that its core is free."""
        with self._lock:
            core = self._taken.pop(threading.get_ident())
            heapq.heappush(self._free, core)
        stream, request = self._requests.get(id(task), UNKNOWN)
        if self._start_ns is not None:
            self._recorder.queued(request, task.ready_ns - self._start_ns)
        self._note(core, stream, request, begun_ns, ended_ns)

    def inline_run(self, name: str, begun_ns: int, ended_ns: int) -> None:
        """Notes a run on the thread of the loop."""
        self._note(self._inline, *ANSWERED.get(), begun_ns, ended_ns)

    def _note(self, core: int, stream: int, request: int, begun_ns: int, ended_ns: int) -> None:
        start_ns = self._start_ns
        if start_ns is not None:
            with self._lock:
                self.busy_ns += ended_ns - begun_ns
            began, ended = begun_ns - start_ns, ended_ns - start_ns
            self._recorder.ran(core, stream, request, began, ended)
