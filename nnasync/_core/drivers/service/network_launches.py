"""Executions on another machine behind fences of this one, and bursts of them.

Memory is not shared, so the values of a request are taken when what it waits for is done: fences
are waited for here, on the threads that signal them, and the fence of an execution is settled by
the message that answers it. What is to stay there between executions is in buffers of the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from nnasync._core.clock import now_ns
from nnasync._core.device_helpers import begun_at, failed_info
from nnasync._core.drivers.service.link import Link
from nnasync._core.drivers.service.network_requests import Parcel, Parcels
from nnasync._core.drivers.service.network_runs import NetworkRun, started
from nnasync._core.workers import contained
from nnasync.burst import BurstCallback, BurstServer, Channel, Outcome
from nnasync.device import ExecutionInfo
from nnasync.errors import Cancelled, DeviceUnavailable, MissedDeadlineTransient, NNError
from nnasync.fences import Fence, merge
from nnasync.hal import NEVER_NS, NOT_AVAILABLE, ExecutionConfig, ExecutionResult, Request, Timing


class NetworkExecution:
    """A launched execution (IFencedExecutionCallback)."""

    def __init__(
        self, link: Link, prepared: int, parcel: Parcel, config: ExecutionConfig, owner: object
    ) -> None:
        """`owner` is the prepared model, which lives until the execution is over."""
        self.fence = Fence()
        self._link = link
        self._prepared = prepared
        self._parcel = parcel
        self._config = config
        self._owner: object = owner
        self._launched_ns = now_ns()
        self._fenced_ns = 0
        self._timing = Timing()
        self.heard: Callable[[ExecutionResult], object] = lambda _: None
        """Called with the result just before the fence is signaled."""
        self._run: NetworkRun | None = None
        self._lock = threading.Lock()

    def begin_after(self, wait_for: Sequence[Fence]) -> None:
        """Send it when all of these are signaled, from any thread.

        Raises ResourceExhaustedTransient where there is no thread for its deadline.
        """
        ready = merge(wait_for)
        if not ready.done and self._config.deadline_ns != NEVER_NS:
            text = "the deadline of a launch passed before its fences were signaled"
            alarm = self._link.alarm(
                self._config.deadline_ns, lambda: self._finish(MissedDeadlineTransient(text))
            )
            if alarm is not None:
                self.fence.add_callback(lambda _: alarm.disarm())
        ready.add_callback(self._ready)

    async def get_execution_info(self) -> ExecutionInfo:
        """Status and timings; raises BadState while the fence is pending."""
        failed = failed_info(self.fence)
        if failed is not None:
            return failed
        if not self._config.measure:
            return ExecutionInfo()
        on_device_ns = self._timing.time_on_device_ns
        ended_ns = self.fence.signaled_at_ns
        launched, fenced = (
            Timing(on_device_ns, max(ended_ns - since_ns, on_device_ns, 0))
            if on_device_ns != NOT_AVAILABLE
            else Timing()
            for since_ns in (self._launched_ns, self._fenced_ns)
        )
        return ExecutionInfo(timing_launched=launched, timing_fenced=fenced)

    def cancel(self) -> None:
        """End the execution: its fence fails with Cancelled unless it is done."""
        self._finish(Cancelled("the execution was cancelled"))

    def _ready(self, ready: Fence) -> None:
        if ready.error is not None:
            error = contained(ready.error, "a fence that an execution waits for")
            failure = DeviceUnavailable(f"an execution waits for what has failed: {error}")
            failure.__cause__ = ready.error
            self._finish(failure)
            return
        self._fenced_ns = now_ns()
        config = begun_at(self._config, self._fenced_ns)
        run = started(self._link, self._prepared, self._parcel, config, self._answered)
        with self._lock:
            self._run = run
            is_late = self.fence.done
        if is_late and run is not None:
            run.end(Cancelled("the execution was cancelled"))

    def _answered(self, _run: NetworkRun | None, outcome: Outcome) -> None:
        if isinstance(outcome, NNError):
            self._finish(outcome)
            return
        self._timing = outcome.timing
        self._owner = None
        self.heard(outcome)
        self.fence.signal()

    def _finish(self, error: NNError) -> None:
        self._owner = None
        with self._lock:
            run = self._run
        if self.fence.fail(error) and run is not None:
            run.end(error)


class NetworkBurst:
    """A burst whose server half is here: its requests are sent one after the other."""

    def __init__(
        self,
        link: Link,
        prepared: int,
        parcels: Parcels,
        callback: BurstCallback,
        result_channel: Channel,
    ) -> None:
        self._link = link
        self._prepared = prepared
        self._parcels = parcels
        self._server = BurstServer(self._begin, callback, result_channel)
        self.receive = self._server.receive
        self.free_memory = self._server.free_memory
        self.close = self._server.close

    def _begin(
        self,
        request: Request,
        config: ExecutionConfig,
        *,
        behind: Fence | None,
        reply: Callable[[Outcome], None],
        release: Callable[[], None],
    ) -> Callable[[], object] | None:
        """Begin one execution behind all before it; returns how to cancel it."""
        self._link.check()
        parcel = self._parcels.of(request)
        execution = NetworkExecution(self._link, self._prepared, parcel, config, self)
        results: list[Outcome] = []
        execution.heard = results.append

        def over(fence: Fence) -> None:
            reply(results[0] if fence.error is None else contained(fence.error, "an execution"))
            release()

        execution.fence.add_callback(over)
        execution.begin_after([] if behind is None else [behind])
        return execution.cancel
