"""The share of a loop's thread in what is queued: it takes executions as workers do, one a turn.

Calls in company may run on the thread of their loop or on workers. Whoever is free first takes the
next of them, so no core is idle while one waits, and nothing has to be foretold when a call comes.
The thread of the loop takes one execution at a time, and goes on in the next turn of its loop: what
ended meanwhile is heard of in between, and the stall budget holds as for all inline work. While it
runs one, workers that end theirs need not wake it: it hears of them as soon as it is done.

It leaves to a worker what that will take soon: whoever waits for what the worker does now would
hear of its end only after a run here. Since that is an expectation, it looks again after a while:
what the worker does may take longer than it ever did, or hang. It also looks again where the next
one is not for it; and where only a worker can tell which that is, since one is due for its age or
too late, it wakes one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable

from nnasync._core.clock import now_ns
from nnasync._core.wakeup import Wakeup
from nnasync._core.workers.admission import leaves_to_workers
from nnasync._core.workers.inline import InlineLane
from nnasync._core.workers.running import REGULAR, Running
from nnasync._core.workers.task import Task, raise_fatal
from nnasync._core.workers.turns import Turn
from nnasync._core.workers.worker_thread import Worker
from nnasync.errors import NNError, ResourceExhaustedTransient
from nnasync.hal import Priority
from nnasync.scheduler import Job, Scheduler

_running_loop = asyncio._get_running_loop
_LOOK_AGAIN_S = 0.01


class _Share:
    """The state of one thread's share, and the loop in which it is to go on, if any."""

    __slots__ = ("goes_on", "loop", "timed", "wakeup", "worker")

    def __init__(self) -> None:
        self.worker = Worker(())
        self.worker.coming = False
        self.goes_on = False
        self.loop: Callable[[], asyncio.AbstractEventLoop | None] = _no_loop
        self.timed: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self.wakeup: Wakeup | None = None
        """The way into that loop, but where its tasks are trio's."""


class _Shares(threading.local):
    """The share of the current thread.

    It is apart from `LoopShare`, since a `threading.local` is slow to read.
    """

    def __init__(self) -> None:
        self.here = _Share()


def _no_loop() -> None:
    """Stands for the loop of a thread whose share was never asked for: returns nothing."""


class LoopShare:
    """Runs queued executions on the threads of asyncio loops, one in each turn; one per runtime."""

    def __init__(
        self,
        scheduler: Scheduler,
        lock: threading.Lock,
        lane: InlineLane,
        running: Running,
        coming: Callable[[], int],
        run: Callable[[Task, Turn], NNError | None],
        idle_worker: Callable[[tuple[Priority, ...]], Worker | None],
        low_worker: Callable[[], Worker | None],
    ) -> None:
        """`coming` is how many workers are about to ask for work.

        `run` runs a task that was taken to its end, or until it is stopped, and tells its failure.
        `idle_worker` gives the thread that is to be woken for work of these priorities, and
        `low_worker` the one for LOW, which may find a core free now. They and `coming` are called
        with the lock held.
        """
        self._scheduler = scheduler
        self._lock = lock
        self._lane = lane
        self._running = running
        self._coming = coming
        self._run = run
        self._idle_worker = idle_worker
        self._low_worker = low_worker
        self._shares = _Shares()

    def arm(self) -> bool:
        """Has the thread of this loop take its share of queued work from the end of this turn on.

        Returns False if no loop of asyncio runs here.
        """
        loop = _running_loop()
        if loop is None:
            return False
        here = self._shares.here
        is_other = here.loop() is not loop
        if is_other:
            here.loop, wakeup = weakref.ref(loop), Wakeup.current()
            here.wakeup = None if wakeup.is_trio else wakeup
        if is_other or not here.goes_on:
            here.goes_on = True
            loop.call_soon(self._go_on, here.wakeup)
        return True

    def _go_on(self, wakeup: Wakeup | None) -> None:
        """Takes one execution, and schedules itself for the next turn while others wait.

        `wakeup` is that of the loop that runs; another one of this thread may have asked since.
        """
        here, turn = self._shares.here, self._lane.turns.here
        here.goes_on = False
        with self._lock:
            task = self._take(here.worker, turn)
        try:
            failure = None if task is None else self._run_apart(task, turn, wakeup)
        finally:
            low, medium, high = self._scheduler.totals
            if task is not None and (medium or high):
                self.arm()
            elif low:
                self._leave_core()
        if failure is not None:
            raise_fatal(failure)

    def _run_apart(self, task: Task, turn: Turn, wakeup: Wakeup | None) -> NNError | None:
        """Runs a task; what other threads post meanwhile does not wake the loop."""
        if wakeup is None or not wakeup.hold():
            return self._run(task, turn)
        try:
            return self._run(task, turn)
        finally:
            wakeup.let_go()

    def _leave_core(self) -> None:
        """Lets LOW work begin that waited for the core of this thread."""
        with self._lock:
            _wake(self._low_worker)

    def _look_again(self) -> None:
        """Looks at the queue again after a while, as its work was left to workers."""
        loop, here = _running_loop(), self._shares.here
        if loop is not None and (here.timed is None or here.timed() is not loop):
            here.timed = weakref.ref(loop)
            loop.call_later(_LOOK_AGAIN_S, self._timed)

    def _timed(self) -> None:
        self._shares.here.timed = None
        self.arm()

    def _take(self, worker: Worker, turn: Turn) -> Task | None:
        now = now_ns()
        task = self._scheduler.first(now, REGULAR)
        if not isinstance(task, Task) or not task.is_spread or self._lane.closed:
            self._pass_over(task)
            return None
        run_ns = task.estimate.best_ns
        queued = self._scheduler.queued(REGULAR)
        if queued <= self._lane.servers:
            left_ns = self._running.left_ns(now)
            hop_ns = self._lane.hop_ns
            if leaves_to_workers(run_ns, hop_ns, left_ns, self._coming(), queued):
                self._look_again()
                return None
        if turn.must_wait(task.priority, run_ns):
            self.arm()
            return None
        self._scheduler.next(now, REGULAR)
        self._running.begin(task, worker)
        return task

    def _pass_over(self, task: Job | None) -> None:
        """Leaves the next execution to a worker, but not those behind it; the lock is held."""
        if self._lane.closed or self._scheduler.only is None or not self._scheduler.queued(REGULAR):
            return
        if task is None:
            _wake(lambda: self._idle_worker(REGULAR))
        self._look_again()


def _wake(choose: Callable[[], Worker | None]) -> None:
    """Wakes the thread that `choose` returns, if there is one; the lock is held."""
    with contextlib.suppress(ResourceExhaustedTransient):
        worker = choose()
        if worker is not None:
            worker.wake()
