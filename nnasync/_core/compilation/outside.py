"""Prepared models of devices outside that fall back: what they fail to execute, the reference does.

Such a device is known by its HAL alone, so an execution is repeated as a whole, through a prepared
model of the reference that is made, and compiled, when it is first needed. As in the plans of
engines (`plans.guarded`) only a DeviceError falls back, and a device that failed several times in
a row is asked but now and then. An execution whose inputs share memory with its outputs does not,
since the device may have overwritten them.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence

from nnasync._core.clock import now_ns
from nnasync._core.device_helpers import PlainExecutions, begun_at, failed_info
from nnasync._core.engine_device import EnginePreparedModel
from nnasync._core.engine_device.gates import DependencyFailed
from nnasync._core.plans.guarded import Health, decided, untraced
from nnasync._core.workers import contained
from nnasync.burst import BurstCallback, BurstContext, Channel, Outcome
from nnasync.device import ExecutionInfo, FencedExecution, PreparedModel
from nnasync.errors import CallerError, Cancelled, DeviceError, NNError, Refused
from nnasync.fences import Fence
from nnasync.hal import (
    DEFAULT_CONFIG,
    ErrorStatus,
    ExecutionConfig,
    ExecutionResult,
    Priority,
    Request,
    Timing,
    shares_memory,
)


class FallbackPreparedModel(PlainExecutions):
    """Joins a device's prepared model with that of the reference, which steps in where it fails."""

    def __init__(
        self,
        prepared: PreparedModel,
        adopt: Callable[[Priority], EnginePreparedModel],
        on_fallback: Callable[[NNError], object],
        priority: Priority = Priority.MEDIUM,
    ) -> None:
        """`adopt` makes the model of the reference, of that priority.

        `on_fallback` hears of each failure it made up for.
        """
        self.prepared = prepared
        """The prepared model of the device itself."""
        self._priority = priority
        self._adopt = adopt
        self._on_fallback = on_fallback
        self._reference: EnginePreparedModel | None = None
        self._lock = threading.Lock()
        self._closed = False
        self.health = Health()

    async def shared_by(
        self,
        share: Callable[[PreparedModel, Priority], Awaitable[PreparedModel]],
        priority: Priority,
    ) -> FallbackPreparedModel:
        """Returns such a pair for another prepared model of the same plan, which `share` makes."""
        prepared = await share(self.prepared, priority)
        twin = FallbackPreparedModel(prepared, self._adopt, self._on_fallback, priority)
        twin.health = self.health
        return twin

    async def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence] = (),
        config: ExecutionConfig = DEFAULT_CONFIG,
    ) -> FencedExecution:
        """Launch; the fence is that of the final outcome, whoever brings it about."""
        fenced = _FallbackExecution(self, request, tuple(wait_for), config)
        if self.health.skips():
            fenced.hand_over(self.health.failure)
            return fenced
        try:
            launched = await self.prepared.execute_fenced(request, wait_for, config)
        except Exception as error:
            failure = self.failed(error, request)
            if failure is None:
                raise
            fenced.hand_over(failure)
        else:
            fenced.follow(launched)
        return fenced

    async def configure_execution_burst(
        self, callback: BurstCallback, request_channel: Channel, result_channel: Channel
    ) -> BurstContext:
        """Returns a burst of the device; the client has what fails there repeated by `repeat`."""
        return await self.prepared.configure_execution_burst(
            callback, request_channel, result_channel
        )

    async def close(self) -> None:
        """Closes the prepared models of the device and of the reference."""
        self._closed = True
        await self.prepared.close()
        with self._lock:
            reference = self._reference
        if reference is not None:
            await reference.close()

    # -- what executions, fences and bursts share

    def reference(self) -> EnginePreparedModel:
        """Returns the reference's prepared model, which its first execution compiles."""
        with self._lock:
            if self._reference is None:
                self._reference = self._adopt(self._priority)
            return self._reference

    @property
    def suspects(self) -> bool:
        """Returns whether the device failed lately, so that it may not be asked at all."""
        return self.health.suspects > 0

    def skipped(self) -> NNError | None:
        """Returns the failure for which the device is not asked; None where it is."""
        return self.health.failure if self.health.skips() else None

    def succeeded(self) -> None:
        """Note that the device did what it was asked."""
        if self.health.suspects:
            self.health.succeeded()

    def repeat(
        self,
        request: Request,
        config: ExecutionConfig,
        failure: NNError,
        done: Callable[[Outcome], None],
    ) -> Callable[[], object] | None:
        """Have the reference execute what the device failed to do; returns how to cancel that."""
        outcomes: list[Outcome] = []

        def answered(outcome: Outcome) -> None:
            error = outcome if isinstance(outcome, NNError) else None
            self.made_up(failure, error)
            outcomes.append(
                outcome if error is None else contained(decided(failure, error), "the reference")
            )

        try:
            return self.reference().begin(
                request, config, behind=None, reply=answered, release=lambda: done(outcomes[0])
            )
        except NNError as error:
            answered(error)
            done(outcomes[0])
            return None

    def failed(self, error: BaseException, request: Request | None = None) -> NNError | None:
        """Note an error of the device: the failure for which to fall back, or None."""
        failure = untraced(contained(error, "the device"))
        if not isinstance(failure, DeviceError) or isinstance(failure, DependencyFailed):
            return None
        if self._closed or (
            request is not None and shares_memory(request.pools, request.inputs, request.outputs)
        ):
            return None
        self.health.failed(failure)
        return failure

    def made_up(self, failure: NNError, error: Exception | None = None) -> None:
        """Tell of a failure for which the reference gave the answer, a result or an error of its.

        Nothing is told where it could not be asked, as after the closing of a runtime.
        """
        if error is None or isinstance(error, CallerError | Cancelled | Refused):
            self._on_fallback(failure)

    async def _execute(
        self, request: Request, config: ExecutionConfig, *, at_once: bool
    ) -> ExecutionResult:
        """Run on the device, and where that fails on the reference."""
        device = self.prepared
        execute = device.execute_synchronously if at_once else device.execute
        failure = self.skipped()
        if failure is None:
            try:
                result = await execute(request, config)
            except Exception as error:
                noted = self.failed(error, request)
                if noted is None:
                    raise
                failure = noted
            else:
                self.succeeded()
                return result
        try:
            reference = self.reference()
            execute = reference.execute_synchronously if at_once else reference.execute
            result = await execute(request, config)
        except Exception as error:
            self.made_up(failure, error)
            raise decided(failure, error) from error
        self.made_up(failure)
        return result


class _FallbackExecution:
    """Executes on the device behind fences, and then on the reference if that failed."""

    def __init__(
        self,
        model: FallbackPreparedModel,
        request: Request,
        wait_for: tuple[Fence, ...],
        config: ExecutionConfig,
    ) -> None:
        self.fence = Fence()
        self._model = model
        self._request = request
        self._wait_for = wait_for
        self._config = config
        self._launched_ns = self._handed_over_ns = now_ns()
        self._current: FencedExecution | None = None
        self._failure: NNError | None = None
        self._cancelled = False

    def follow(self, launched: FencedExecution) -> None:
        """Take over the outcome of the device."""
        self._current = launched
        launched.fence.add_callback(self._device_ended)

    def cancel(self) -> None:
        """End the execution, wherever it is."""
        self._cancelled = True
        current = self._current
        if current is not None:
            current.cancel()

    async def get_execution_info(self) -> ExecutionInfo:
        """Status and timings of the outcome; raises BadState while the fence is pending."""
        failed = failed_info(self.fence)
        if failed is not None or self._current is None:
            return failed or ExecutionInfo(ErrorStatus.GENERAL_FAILURE)
        info = await self._current.get_execution_info()
        if self._failure is None or not self._config.measure:
            return info
        launched, fenced = info.timing_launched, info.timing_fenced
        if self._ready_ns() <= self._handed_over_ns:
            fenced = _since(launched, self._handed_over_ns - self._ready_ns())
        return ExecutionInfo(
            info.status, _since(launched, self._handed_over_ns - self._launched_ns), fenced
        )

    def _ready_ns(self) -> int:
        """When the last of its fences was signaled, or it was launched after that."""
        return max(self._launched_ns, *(each.signaled_at_ns for each in self._wait_for), 0)

    def _device_ended(self, fence: Fence) -> None:
        error = fence.error
        model = self._model
        if error is None:
            model.succeeded()
            self.fence.signal()
            return
        failure = None
        if not self._cancelled and all(each.error is None for each in self._wait_for):
            failure = model.failed(error, self._request)
        if failure is None:
            self.fence.fail(error)
        else:
            self.hand_over(failure)

    def hand_over(self, failure: NNError) -> None:
        """Launch on the reference; on any thread."""
        self._failure = failure
        self._handed_over_ns = now_ns()
        pending = [each for each in self._wait_for if not each.done or each.error is not None]
        config = self._config if pending else begun_at(self._config, self._ready_ns())
        try:
            launched = self._model.reference().launch_on_worker(self._request, pending, config)
        except NNError as error:
            self._fail(failure, error)
            return
        self._current = launched
        launched.fence.add_callback(self._reference_ended)
        if self._cancelled:
            launched.cancel()

    def _reference_ended(self, fence: Fence) -> None:
        failure, error = self._failure, fence.error
        if failure is None:
            return
        if error is not None:
            self._fail(failure, error)
            return
        self._model.made_up(failure)
        self.fence.signal()

    def _fail(self, failure: NNError, error: Exception) -> None:
        if isinstance(error, Cancelled | DependencyFailed):
            self.fence.fail(error)
            return
        self._model.made_up(failure, error)
        outcome = decided(failure, error)
        outcome.__cause__ = error
        self.fence.fail(outcome)


def _since(timing: Timing, earlier_ns: int) -> Timing:
    """Returns a timing whose time in the driver began `earlier_ns` before."""
    return Timing(timing.time_on_device_ns, timing.time_in_driver_ns + earlier_ns)
