"""One execution on its way through the workers, its stop flag, and its answer."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nnasync._core.clock import Alarm, now_ns
from nnasync._core.endings import joined_at_exit, renewed_in_child
from nnasync.errors import GeneralFailure, NNError
from nnasync.fences import Fence
from nnasync.hal import DEFAULT_LOOP_TIMEOUT_NS, Array, Priority
from nnasync.scheduler import Estimate, Job

logger = logging.getLogger(__name__)

GO, YIELD, ABORT = 0, 1, 2


class StopFlag:
    """The flag that a running execution checks between operations: continue, yield or abort.

    `has_others` is whether others run beside it, so that it had better take one core alone, and
    None where that is not known.
    `loop_timeout_ns` limits each WHILE loop of the execution. `priority` is for parts of it that a
    device in another process runs; None leaves it to that. `falls_back` is whether another device
    may repeat a run that failed: not where that would hold up a loop, and not in a trial. An engine
    that cannot look at the flag while it runs, but can be told to stop from another thread, arms an
    interrupt for the time of the run. `demoted` is whether there may soon be more urgent work: an
    engine with threads that never hold the interpreter lock may run it on one of the lowest OS
    priority.
    """

    __slots__ = (
        "_interrupt",
        "_lock",
        "demoted",
        "falls_back",
        "has_others",
        "loop_timeout_ns",
        "priority",
        "raised",
    )

    def __init__(
        self, loop_timeout_ns: int = DEFAULT_LOOP_TIMEOUT_NS, *, falls_back: bool = True
    ) -> None:
        self.raised = GO
        self.demoted = False
        self.has_others: bool | None = None
        self.falls_back = falls_back
        self.loop_timeout_ns = loop_timeout_ns
        self.priority: Priority | None = None
        self._interrupt: Callable[[], object] | None = None
        self._lock = threading.Lock()

    def arm(self, interrupt: Callable[[], object]) -> bool:
        """Have `interrupt` called, once, when the run is aborted; False if it is already."""
        with self._lock:
            self._interrupt = interrupt
            if self.raised == ABORT:
                self._interrupt = None
                return False
            return True

    def disarm(self) -> None:
        """Forget the interrupt: it is not called any more, and is not being called."""
        with self._lock:
            self._interrupt = None

    def abort(self) -> None:
        """Raise the flag for good, and interrupt a run that is armed."""
        self.raised = ABORT
        self.interrupt()

    def abort_apart(self) -> None:
        """The same, with the interrupt on a thread of its own: an engine may hang in that too."""
        # Not under the lock, which an interrupt that hangs holds; `arm` looks at the flag under it.
        self.raised = ABORT
        if self._interrupt is None:
            return
        thread = threading.Thread(target=self.interrupt, name="nnasync-interrupt", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self.interrupt()
        else:
            joined_at_exit(thread)

    def interrupt(self) -> None:
        """Interrupt a run that is armed."""
        with self._lock:
            interrupt, self._interrupt = self._interrupt, None
            if interrupt is not None:
                try:
                    interrupt()
                except Exception:
                    logger.exception("a run could not be interrupted: it goes on to its end")


Given = Sequence[Array] | None
"""Arrays that one run reads in place of all of its inputs."""


class Call(Protocol):
    """Something that runs in steps (`engine.BoundCall` is one)."""

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Run to the end (True) or until the flag is raised (False)."""

    def rewind(self) -> None:
        """Forget a stopped run."""


def contained(error: BaseException, who: str) -> NNError:
    """A driver's exception as a typed error: its own if it is one, else GeneralFailure."""
    if isinstance(error, NNError):
        return error
    failure = GeneralFailure(f"{who} failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def raise_fatal(failure: NNError | None) -> None:
    """Raise what ended a run and meant the whole program, such as KeyboardInterrupt."""
    cause = None if failure is None else failure.__cause__
    if cause is not None and not isinstance(cause, Exception):
        raise cause


class Task(Job):
    """One execution on its way: queued, running, preempted, settled, released.

    `owner` is the same object for all executions of one prepared model. `returns` takes the call
    back when the device has let go of its memory, before the callbacks of that. `is_spread` is
    whether it might as well run on the thread of a loop, and shares the cores with that.
    """

    __slots__ = (
        "_release",
        "_released",
        "alarm",
        "call",
        "fence",
        "finished",
        "finished_ns",
        "is_counted",
        "is_spread",
        "launched_ns",
        "name",
        "owner",
        "ready_ns",
        "returns",
        "started_ns",
        "stop",
    )

    def __init__(
        self,
        call: Call,
        priority: Priority,
        estimate: Estimate,
        deadline_ns: int,
        name: str,
    ) -> None:
        super().__init__(priority, estimate, deadline_ns)
        self.call = call
        self.name = name
        self.owner: object = estimate
        self.stop = StopFlag()
        self.fence = Fence()
        self.alarm: Alarm | None = None
        self.launched_ns = now_ns()
        self.ready_ns = self.started_ns = self.finished_ns = 0
        self.finished = False
        self.is_counted = True
        self.is_spread = False
        self.returns: Callable[[Any], object] | None = None
        self._released = False
        self._release: list[Callable[[], object]] = []

    def when_released(self, callback: Callable[[], object]) -> None:
        """Call back when the device has let go of the task's memory; at once if it has."""
        with _RELEASE_LOCK:
            if not self._released:
                self._release.append(callback)
                return
        callback()

    def release(self) -> None:
        """Note that the call does not run and will not: its memory is free again."""
        with _RELEASE_LOCK:
            if self._released:
                return
            # From here on this may be another execution: nothing below is read of it any more.
            call, returns = self.call, self.returns
            was_stopped = self.started_ns > 0 and not self.finished
            callbacks, self._release = self._release, []
            self._released = True
        if was_stopped:
            shielded(call.rewind)
        if returns is not None:
            returns(call)
        for callback in callbacks:
            shielded(callback)


_RELEASE_LOCK = renewed_in_child(threading.Lock())


def shielded(work: Callable[[], object]) -> None:
    """Do what may raise because a driver or a listener is broken; then it is reported."""
    try:
        work()
    except (Exception, SystemExit):
        sys.excepthook(*sys.exc_info())
