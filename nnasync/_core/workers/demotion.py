"""Demotion: which threads that run LOW work have the lowest OS priority.

A thread of the system's idle class that holds the interpreter lock and gets no core keeps the lock
for as long. So threads of ours have that class only where that is asked for, or only as long as
nothing of higher priority is prepared ("alone"); with the first that is, other threads take over,
for a thread cannot leave the class. Threads of an engine never hold the lock: beside prepared
models of higher priority LOW executions may run there.
"""

from __future__ import annotations

import weakref
from typing import Literal

from nnasync._core.workers.worker_thread import Worker
from nnasync.hal import Priority

LowOsPriority = bool | Literal["alone"]


class Demotion:
    """The rule, and the prepared models of higher priority; its users hold the lock."""

    def __init__(self, mode: LowOsPriority, *, engines: bool) -> None:
        """`mode` is that of our threads; `engines` is whether threads of engines may have it."""
        self._mode = mode
        self._engines = engines and mode is not True
        self._higher_models: weakref.WeakSet[object] = weakref.WeakSet()

    @property
    def has_threads(self) -> bool:
        """Whether threads of ours may ever have the lowest OS priority."""
        return self._mode in (True, "alone")

    @property
    def demotes_threads(self) -> bool:
        """Whether threads that run LOW work should have the lowest OS priority now."""
        return self._mode is True or (self._mode == "alone" and not self._higher_models)

    def demotes_engine_threads(self, priority: Priority) -> bool:
        """Whether an execution of this priority may run on threads of its engine that have it."""
        return self._engines and priority is Priority.LOW and len(self._higher_models) > 0

    def is_outdated(self, worker: Worker) -> bool:
        """Whether a thread that runs LOW work has the wrong OS priority for it now."""
        return Priority.LOW in worker.priorities and worker.demoted != self.demotes_threads

    def expect(self, priority: Priority, model: object) -> None:
        """Note a prepared model, weakly."""
        if priority is not Priority.LOW:
            self._higher_models.add(model)

    def expect_no_more(self, model: object) -> None:
        """Note that it was closed."""
        self._higher_models.discard(model)
