"""Helper threads for the work of a driver outside of executions: support queries, compiling.

A coroutine waits for the answer, at most until a deadline or until it is cancelled. A driver that
does not answer keeps its thread, which counts no longer then: the late answer is dropped, others go
on, and the process can end (the threads of the event loops' own pools would keep it from that).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

from nnasync._core.clock import Deadline, Watchdog
from nnasync._core.endings import joined_at_exit
from nnasync._core.workers.task import contained
from nnasync.errors import (
    DeviceUnavailable,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence
from nnasync.tracing import Tracer
from nnasync.tracing.spans import belongs_to

T = TypeVar("T")

_MOST_THREADS = 40
_LINGER_S = 10.0


class _Job:
    """One piece of work: its answer is there once the fence is signaled."""

    __slots__ = ("_work", "error", "fence", "is_lost", "is_over", "value", "who", "worker")

    def __init__(self, work: Callable[[], Any], who: str) -> None:
        self._work: Callable[[], Any] | None = work
        self.who = who
        self.fence = Fence()
        self.value: Any = None
        self.error: NNError | None = None
        self.worker: threading.Thread | None = None
        self.is_over = self.is_lost = False

    def run(self) -> None:
        """Do the work on this thread."""
        work, self._work = self._work, None
        if work is None:
            return
        try:
            self.value = work()
        except BaseException as error:
            # Here neither a TimeoutError nor a SystemExit means anything yet.
            self.error = contained(error, self.who)


class HelperThreads:
    """The helper threads of one runtime; they start when needed, and end when idle for a while."""

    def __init__(self, watchdog: Watchdog, tracer: Tracer | None = None) -> None:
        """Takes the watchdog of deadlines, and the tracer that gets the marks of engines."""
        self._watchdog = watchdog
        self._tracer = tracer
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle: set[threading.Thread] = set()
        self._closed = False

    async def run(
        self,
        work: Callable[[], T],
        who: str,
        deadline: Deadline | None = None,
        *,
        meanwhile: Callable[[], object] | None = None,
    ) -> T:
        """Runs `work` on a thread, and returns its result; `who` is named in errors.

        `meanwhile` is called on this thread after the work was handed over.

        Raises MissedDeadlinePersistent if the deadline has passed already and Transient when it
        does; whatever `work` raises, as a typed error; ResourceExhaustedTransient,
        DeviceUnavailable.
        """
        if deadline is not None and deadline.passed:
            raise MissedDeadlinePersistent(f"the deadline of {who} had passed at the start")
        job = _Job(work, who)
        late = MissedDeadlineTransient(f"{who} was not ready by the deadline")
        self._submit(job)
        alarm = None
        try:
            if deadline is not None:
                alarm = self._watchdog.arm(deadline.at_ns, lambda: job.fence.fail(late))
            if meanwhile is not None:
                meanwhile()
            await job.fence
        finally:
            if alarm is not None:
                alarm.disarm()
            self._forget(job)
        if job.error is not None:
            raise job.error from job.error.__cause__
        value: T = job.value
        return value

    async def run_unwrapped(
        self,
        work: Callable[[], T],
        who: str,
        deadline: Deadline | None = None,
        *,
        meanwhile: Callable[[], object] | None = None,
    ) -> T:
        """Runs our own work as `run` does, but does not convert its errors."""
        value, error = await self.run(
            functools.partial(_outcome, work), who, deadline, meanwhile=meanwhile
        )
        if error is not None:
            raise error
        return cast(T, value)

    def begin(self, work: Callable[[], object], who: str) -> Fence | None:
        """Starts work whose result nobody needs; the returned fence is settled when it is over.

        Returns None where no thread can be had any more.
        """
        job = _Job(work, who)
        with contextlib.suppress(DeviceUnavailable, ResourceExhaustedTransient):
            self._submit(job)
            return job.fence
        return None

    def close(self) -> None:
        """Answer what waits with DeviceUnavailable, and let the threads end when they can."""
        with self._changed:
            self._closed = True
            jobs, self._jobs = list(self._jobs), deque()
            self._changed.notify_all()
        for job in jobs:
            job.fence.fail(DeviceUnavailable(f"the runtime was closed before {job.who} answered"))

    def join(self, timeout_s: float) -> None:
        """Waits for the threads that are idle, each at most so long."""
        for thread in list(self._idle):
            thread.join(timeout_s)

    def _submit(self, job: _Job) -> None:
        with self._changed:
            if self._closed:
                raise DeviceUnavailable("the runtime is closed")
            self._jobs.append(job)
            if len(self._idle) >= len(self._jobs):
                self._changed.notify()
                return
            try:
                self._add_thread()
            except RuntimeError as error:
                if not self._threads:
                    self._jobs.remove(job)
                    text = f"no thread for {job.who}: {error}"
                    raise ResourceExhaustedTransient(text) from error

    def _forget(self, job: _Job) -> None:
        """Drops the job if it has not started; else writes its thread off."""
        with self._changed:
            if job.is_over:
                return
            job.is_lost = True
            if job.worker is None:
                if job in self._jobs:
                    self._jobs.remove(job)
                return
            self._threads.discard(job.worker)
            if len(self._jobs) > len(self._idle):
                with contextlib.suppress(RuntimeError):
                    self._add_thread()

    def _add_thread(self) -> None:
        """Start another thread unless there are enough; the lock is held."""
        if len(self._threads) >= _MOST_THREADS:
            return
        thread = threading.Thread(target=self._serve, name="nnasync-helper", daemon=True)
        thread.start()
        joined_at_exit(thread)
        self._threads.add(thread)

    def _serve(self) -> None:
        me = threading.current_thread()
        if self._tracer is not None:
            belongs_to(self._tracer)
        while (job := self._next(me)) is not None:
            job.run()
            with self._changed:
                job.is_over = True
                if job.is_lost:
                    # The traceback of whoever waited may keep the job for long.
                    job.value = job.error = None
                    if len(self._threads) < _MOST_THREADS:
                        self._threads.add(me)
                stays = me in self._threads
                if stays:
                    self._idle.add(me)
            job.fence.signal()
            if not stays:
                return
            del job

    def _next(self, me: threading.Thread) -> _Job | None:
        """Returns the next job for this thread; None when it has waited for one long enough."""
        with self._changed:
            self._idle.add(me)
            while not self._jobs:
                if self._closed or not (self._changed.wait(_LINGER_S) or self._jobs):
                    self._threads.discard(me)
                    self._idle.discard(me)
                    return None
            self._idle.discard(me)
            job = self._jobs.popleft()
            job.worker = me
            return job


def _outcome(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error
