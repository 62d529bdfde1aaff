"""How busy others keep the cores while LOW work runs, and what follows for its threads.

Others are whoever runs on the cores but the workers and the executions on threads of loops: other
processes, and threads of this one that compute for themselves, be they an engine's or the
application's. A look every tenth of a second compares the processor time of all with that of ours;
nobody looks when no LOW work has run for a second, or where nothing depends on it (`demotion`).
Then what was seen counts no more: LOW work that comes once in a while is not looked at for long
enough to tell.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from nnasync._core.clock import EarliestAlarm, Watchdog, now_ns
from nnasync._core.os_threads import ran_ns
from nnasync._core.workers.demotion import Demotion
from nnasync._core.workers.running import Running
from nnasync._core.workers.task import Task
from nnasync._core.workers.worker_thread import Worker
from nnasync.errors import ResourceExhaustedTransient
from nnasync.hal import Priority
from nnasync.machine.meter import CpuMeter

_PERIOD_NS = 100_000_000
_IDLE_LOOKS = 10
"""After so many looks that saw no LOW work nobody looks."""


class Surroundings:
    """Measures how busy others keep the cores while LOW work runs, and changes threads if need be.

    Its users hold the lock of the workers.
    """

    def __init__(
        self,
        watchdog: Watchdog,
        lock: threading.Lock,
        demotion: Demotion,
        running: Running,
        workers: Sequence[Worker],
        inline_ns: Callable[[], int],
        low_worker: Callable[[], Worker | None],
    ) -> None:
        """`inline_ns` is how long executions on threads of loops took so far.

        `low_worker` is called with the lock held, for the thread that is to be woken for LOW work.
        """
        self._lock = lock
        self._demotion = demotion
        self._running = running
        self._workers = workers
        self._inline_ns = inline_ns
        self._low_worker = low_worker
        self._alarm = EarliestAlarm(watchdog, self._look)
        self._meter: CpuMeter | None = None
        self._before: tuple[int, int, dict[int, int]] = 0, 0, {}
        self._idle_looks = 0
        self._has_begun = self._closed = False

    def begins(self, task: Task) -> None:
        """Notes that a worker begins an execution."""
        if task.priority is Priority.LOW:
            task.stop.demoted = self._demotion.demotes_engine_threads
            self._has_begun = True
            if self._demotion.asks_for_others:
                self._watch()

    def close(self) -> None:
        """Stops looking, and starts no more threads."""
        self._closed = True
        self._alarm.disarm()
        self._demotion.close()

    def _watch(self) -> None:
        if not (self._alarm.is_armed or self._closed):
            self._alarm.arm(now_ns() + _PERIOD_NS)

    def _look(self) -> None:
        """Looks once, as the callback of an alarm; takes the lock."""
        with self._lock:
            self._alarm.rang()
        others = self._others()
        low: Worker | None = None
        with self._lock:
            changes = others is not None and self._demotion.note_others(others)
            if changes:
                low = self._take_over()
            goes_on = self._goes_on()
            if goes_on:
                self._watch()
            else:
                self._demotion.look_no_more()
            if changes or not goes_on:
                self._meter = None  # What other threads used does not tell, nor does a pause.
        if low is not None:
            low.wake()

    def _goes_on(self) -> bool:
        """Returns whether to look again."""
        has_low, self._has_begun = self._has_begun or self._running.has_low(), False
        self._idle_looks = 0 if has_low else self._idle_looks + 1
        return self._demotion.asks_for_others and self._idle_looks < _IDLE_LOOKS

    def _take_over(self) -> Worker | None:
        """Has threads of the right OS priority take over from those that may get no core for long.

        The latter lose their places, and end when they can. Returns a thread to be woken, if any.
        """
        for task, worker in self._running.pairs():
            if worker.demoted and self._demotion.is_outdated(worker):
                self._running.lose(task)
        with contextlib.suppress(ResourceExhaustedTransient):
            return self._low_worker()
        return None

    def _others(self) -> float | None:
        """Returns the share of the cores that others took since the last look.

        Returns None at the first look, and where a worker has ended meanwhile, as nobody knows what
        that used last.
        """
        before = self._before
        now, inline_ns, used_ns = self._before = now_ns(), self._inline_ns(), self._used_ns()
        if self._meter is None:
            self._meter = CpuMeter()
            return None
        busy = self._meter.lap()
        if not before[2].keys() <= used_ns.keys():
            return None
        ours_ns = inline_ns - before[1]
        ours_ns += sum(each - before[2].get(thread, 0) for thread, each in used_ns.items())
        available_ns = max(now - before[0], 1) * busy.cores
        return max(0.0, busy.machine - busy.stolen - ours_ns / available_ns)

    def _used_ns(self) -> dict[int, int]:
        """Returns the processor time so far of each worker, by the number of its thread."""
        threads = [worker.thread for worker in tuple(self._workers)]
        numbers = [each.native_id for each in threads if each is not None]
        found = {each: ran_ns(each) for each in numbers if each is not None}
        return {each: used_ns for each, used_ns in found.items() if used_ns is not None}
