"""A fenced execution in a driver service: its fence is settled by what the service says."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from nnasync._core.device_helpers import failed_info
from nnasync._core.drivers.service.link import LATE_NS, Link
from nnasync._core.drivers.service.remote_fence import RemoteFence
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
)
from nnasync.fences import Fence
from nnasync.scheduler import NEVER_NS


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
