"""A fenced execution in a driver service.

Its fence is settled by what the service says, with the typed error. To a third process it is handed
on as a duplicate of the descriptor that came from the service, so that a chain over two services
makes no detour through the application.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

from nnasync._core.device_helpers import failed_info
from nnasync._core.drivers.service.link import LATE_NS, Link
from nnasync._core.wire.connection import close_all
from nnasync._core.wire.messages import (
    CancelLaunch,
    ForgetLaunch,
    LaunchEnded,
    LaunchInfo,
    error_of,
)
from nnasync.device import ExecutionInfo
from nnasync.errors import (
    MissedDeadlineTransient,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence
from nnasync.scheduler import NEVER_NS


class RemoteFence(Fence):
    """A fence of a service; it fails when the service dies. `origin` is its name in a trace."""

    __slots__ = ("_fd", "origin")

    def __init__(self) -> None:
        super().__init__()
        self._fd = -1
        self.origin = ""

    def belongs_to(self, fd: int) -> None:
        """Own the descriptor that came from the service."""
        self._fd = fd

    def export_fd(self) -> int:
        """A descriptor for another process, straight from the service while it is pending."""
        if self._fd < 0 or self.done:
            return super().export_fd()
        try:
            return os.dup(self._fd)
        except OSError as error:
            raise ResourceExhaustedTransient(f"no descriptor for a fence: {error}") from error

    def __del__(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_all([fd])


class RemoteExecution:
    """A launched execution (IFencedExecutionCallback)."""

    def __init__(self, link: Link, name: str, wait_for: Sequence[Fence], owner: object) -> None:
        """`owner` is the prepared model, which lives until the execution is over."""
        self._link = link
        self._name = name
        self.number = number = link.number()
        self.fence = RemoteFence()
        link.listen(number, _Hearer(link, number, self.fence, wait_for, owner))
        self._finalizer = weakref.finalize(self, link.notify_soon, ForgetLaunch(number))
        self._finalizer.atexit = False

    def limit(self, deadline_ns: int) -> None:
        """Fail the fence soon after the deadline if the service does not.

        Raises ResourceExhaustedTransient where there is no thread for that.
        """
        if deadline_ns == NEVER_NS:
            return
        link, number, fence = self._link, self.number, self.fence
        text = f"the deadline of {self._name} passed, and its service is silent"

        def expire() -> None:
            if fence.fail(MissedDeadlineTransient(text)):
                link.notify(CancelLaunch(number))

        alarm = link.alarm(deadline_ns + LATE_NS, expire)
        if alarm is not None:
            fence.add_callback(lambda _: alarm.disarm())

    async def get_execution_info(self) -> ExecutionInfo:
        """Status and timings; raises BadState while the fence is pending."""
        failed = failed_info(self.fence)
        if failed is not None:
            return failed
        info: ExecutionInfo = await self._link.call(
            lambda n: LaunchInfo(n, self.number), answer=ExecutionInfo
        )
        return info

    def cancel(self) -> None:
        """End the execution: its fence fails with Cancelled unless it is done."""
        if not self.fence.done:
            self._link.notify(CancelLaunch(self.number))

    def abandon(self) -> None:
        """Give up an execution that was never handed out."""
        self._link.unlisten(self.number)
        self._link.notify(CancelLaunch(self.number))
        self._finalizer()


class _Hearer:
    """Settles a fence by what the service says; it outlives an execution that is dropped."""

    is_awaited = True

    def __init__(
        self,
        link: Link,
        number: int,
        fence: RemoteFence,
        wait_for: Sequence[Fence],
        owner: object,
    ) -> None:
        self._owner = owner
        self._link = link
        self._number = number
        self._fence = fence
        self._wait_for = wait_for

    def heard(self, message: LaunchEnded) -> None:
        self._link.unlisten(self._number)
        if message.failure is None:
            self._fence.signal()
        else:
            self.died(error_of(message.failure))

    def died(self, error: NNError) -> None:
        causes = (fence.error for fence in self._wait_for if fence.error is not None)
        cause = next(causes, None)
        if cause is not None:
            error.__cause__ = cause.__cause__ or cause
        self._fence.fail(error)
