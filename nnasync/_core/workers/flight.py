"""The execution of a plain call on its way, made once and used again for the next call.

Most calls in company are alike: the same request of the same network, of the usual priority,
awaited by one task on the loop that began it. What such an execution consists of is used again as
soon as one has ended well: nobody else knows it any more then. One that failed, was given up or
still is in somebody's hands is left alone; so is one with a deadline, whose alarm may just ring.
"""

from __future__ import annotations

import asyncio
import threading

from nnasync._core.clock import now_ns
from nnasync._core.sole_wait import SoleWait
from nnasync._core.wakeup import Wakeup
from nnasync._core.workers.task import GO, Call, Task
from nnasync.fences import Fence, FenceStatus
from nnasync.hal import NEVER_NS, Priority
from nnasync.scheduler import Estimate

_PENDING = FenceStatus.PENDING
_get_ident = threading.get_ident
_running_loop = asyncio.get_running_loop


class AwaitedFence(Fence):
    """A fence for which one task waits at a time, on the loop of asyncio that made it."""

    __slots__ = ("_wait", "_wakeup")

    def __init__(self) -> None:
        """Raises BadState where no loop runs."""
        super().__init__()
        self._wakeup = Wakeup.current()
        self._wait: SoleWait | None = None

    def end_of_wait(self) -> SoleWait | None:
        """Returns the future that ends the only waiter's wait, or None if the fence is signaled."""
        # Before the look at the status: another thread may have run the loop the last time.
        self._wakeup.thread_id = _get_ident()
        if self.status is not _PENDING:
            return None
        self._wait = wait = SoleWait(loop=_running_loop())
        return wait

    def _settle(self, status: FenceStatus, error: Exception | None) -> bool:
        was_pending = self.status is _PENDING
        try:
            return Fence._settle(self, status, error)
        finally:  # Also where a callback means the whole program.
            if was_pending:
                wakeup = self._wakeup
                if wakeup.thread_id == _get_ident():
                    self._wake_waiter()
                else:
                    wakeup.post(self._wake_waiter_posted)

    def _wake_waiter_posted(self) -> None:
        self._wake_waiter(at_once=self._wakeup.is_between_tasks)

    def _wake_waiter(self, *, at_once: bool = False) -> None:
        """Wakes the waiting task on its loop.

        A call meant for an earlier execution does nothing.
        """
        wait = self._wait
        if wait is not None and self.status is not _PENDING:
            wait.end(at_once=at_once)


class Flight(Task):
    """One execution of a bound request, which is awaited on the loop that made it."""

    __slots__ = ()

    fence: AwaitedFence

    def __init__(
        self, call: Call, priority: Priority, estimate: Estimate, deadline_ns: int, name: str
    ) -> None:
        super().__init__(call, priority, estimate, deadline_ns, name)
        self.fence = AwaitedFence()

    def renew(self, call: Call, estimate: Estimate, deadline_ns: int = NEVER_NS) -> bool:
        """Reuses this object for another execution of the same request.

        Returns False if the last execution is not over for everybody who knows it.
        """
        fence = self.fence
        is_over = self._released and self.finished and fence.error is None and self.alarm is None
        if not is_over or self.estimate is not estimate:
            return False
        fence.status = _PENDING
        self.deadline_ns, self.heard_after_ns = deadline_ns, 0.0
        self.call = call
        self.stop.raised = GO
        self.launched_ns = now_ns()
        self.active_ns = self.started_ns = self.finished_ns = 0
        self.finished = self.has_begun = self._released = False
        return True
