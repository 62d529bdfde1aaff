"""A prepared model of an older device as one of HAL 1.3."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nnasync import hal
from nnasync._core.clock import now_ns
from nnasync._core.device_helpers import PlainExecutions, failed_info
from nnasync._core.validation import compliant_with, validate_request
from nnasync._core.versions.errands import Errand, Errands, begun
from nnasync._core.versions.versioned_results import are_specified, checked_result, older_error
from nnasync.burst import BurstCallback, BurstContext, BurstServer, Channel, Outcome
from nnasync.device import ExecutionInfo
from nnasync.errors import DeviceUnavailable, GeneralFailure, InvalidArgument, NNError
from nnasync.fences import Fence, merge
from nnasync.hal import (
    DEFAULT_CONFIG,
    NOT_AVAILABLE,
    ErrorStatus,
    ExecutionConfig,
    ExecutionResult,
    HalVersion,
    Model,
    Request,
    Timing,
)


class VersionedPreparedModel(PlainExecutions):
    """What an older device prepared, with every path of execution of HAL 1.3.

    Deadlines are kept here: the device hears of none. Before HAL 1.2 both plain executions are one.
    Loop timeouts are of no use, since these devices have no loops.
    """

    def __init__(
        self,
        inner: Any,
        model: Model | None,
        version: HalVersion,
        who: str,
        errands: Errands,
    ) -> None:
        """`model` is None where it was loaded from a cache: then the device alone checks."""
        self.model = model
        self._inner = inner
        self._version = version
        self._who = who
        self._errands = errands
        self._live: weakref.WeakSet[Errand[ExecutionResult]] = weakref.WeakSet()

    async def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence] = (),
        config: ExecutionConfig = DEFAULT_CONFIG,
    ) -> _Fenced:
        """Wait for the fences in a task of its own, then execute; the fence is ours.

        Raises MissedDeadlinePersistent where the deadline has passed.
        """
        self._check(request)
        if not are_specified(self.model, request):
            raise InvalidArgument(f"{self._who}: a fenced execution needs fully specified outputs")
        run = self._run(request, measure=config.measure, at_once=True)
        clock = _Clock(now_ns()) if config.measure else None

        async def behind(errand: Errand[ExecutionResult]) -> ExecutionResult:
            await _met(wait_for, self._who)
            if clock is not None:
                clock.ready_ns = now_ns()
            if config.duration_ns is not None:
                errand.limit(now_ns() + config.duration_ns)
            errand.has_begun = True
            return await run()

        errand = self._errand(behind, config.deadline_ns)
        if errand.fence.error is not None:
            raise errand.fence.error
        errand.begin()
        return _Fenced(errand, clock)

    async def configure_execution_burst(
        self, callback: BurstCallback, request_channel: Channel, result_channel: Channel
    ) -> BurstContext:
        """Serve a burst, one execution at a time."""
        self._open()
        server = BurstServer(self._begin, callback, result_channel)
        request_channel.listen(server.receive)
        return server

    async def close(self) -> None:
        """Close the prepared model of the device, if it can be closed; what is in flight ends."""
        inner, self._inner = self._inner, None
        for errand in list(self._live):
            errand.fail(DeviceUnavailable(f"{self._who} was closed while this was in flight"))
            errand.stop()
        close = getattr(inner, "close", None)
        if close is not None:
            await close()

    def _check(self, request: Request) -> None:
        """Raise GeneralFailure for memory that the version does not know, InvalidArgument."""
        name = hal.version_name(self._version)
        if not compliant_with(self._version, request):
            raise GeneralFailure(
                f"{self._who}: the request uses memory that {name} does not have, such as tokens"
            )
        if self.model is not None:
            validate_request(self.model, request, version=self._version)

    async def _execute(
        self, request: Request, config: ExecutionConfig, *, at_once: bool
    ) -> ExecutionResult:
        self._check(request)
        run = self._run(request, measure=config.measure, at_once=at_once)
        errand = self._errand(begun(run), config.deadline_ns)
        return await errand.here()

    def _errand(
        self,
        work: Callable[[Errand[ExecutionResult]], Awaitable[ExecutionResult]],
        deadline_ns: int,
    ) -> Errand[ExecutionResult]:
        errand = self._errands.make(self._who, work, deadline_ns)
        self._live.add(errand)
        return errand

    def _run(
        self, request: Request, *, measure: bool, at_once: bool
    ) -> Callable[[], Awaitable[ExecutionResult]]:
        inner, version = self._open(), self._version

        async def run() -> ExecutionResult:
            try:
                found = await _called(inner, version, request, measure=measure, at_once=at_once)
            except Exception as error:
                failure = older_error(error, version, len(request.outputs), self._who)
                raise failure from failure.__cause__
            return checked_result(
                found,
                self.model,
                request,
                self._who,
                measure=measure and version >= HalVersion.V1_2,
            )

        return run

    def _begin(
        self,
        request: Request,
        config: ExecutionConfig,
        *,
        behind: Fence | None,
        reply: Callable[[Outcome], None],
        release: Callable[[], None],
    ) -> Callable[[], None]:
        """Begin one execution of a burst, behind a fence even if that failed."""
        self._check(request)
        run = self._run(request, measure=config.measure, at_once=True)
        errand = self._errand(begun(run), config.deadline_ns)

        def settled(fence: Fence) -> None:
            error = fence.error
            reply(error if isinstance(error, NNError) else errand.result)

        errand.fence.add_callback(settled)
        errand.released.add_callback(lambda _: release())
        if behind is None:
            errand.begin()
        else:
            behind.add_callback(lambda _: errand.begin())
        return errand.cancel

    def _open(self) -> Any:
        if self._inner is None:
            raise DeviceUnavailable(f"{self._who} is closed")
        return self._inner


class _Clock:
    """When an execution that is measured was launched, and when its fences were signaled."""

    __slots__ = ("launched_ns", "ready_ns")

    def __init__(self, launched_ns: int) -> None:
        self.launched_ns = launched_ns
        self.ready_ns = launched_ns


class _Fenced:
    """An execution behind fences (`device.FencedExecution`)."""

    def __init__(self, errand: Errand[ExecutionResult], clock: _Clock | None) -> None:
        self._errand = errand
        self._clock = clock

    @property
    def fence(self) -> Fence:
        """Signaled when the outputs are written."""
        return self._errand.fence

    def cancel(self) -> None:
        """End the execution."""
        self._errand.cancel()

    async def get_execution_info(self) -> ExecutionInfo:
        """Status and timings.

        The device only tells how long it ran, if that: since when it waited is measured here.
        """
        fence, clock = self._errand.fence, self._clock
        failed = failed_info(fence)
        if failed is not None or clock is None:
            return failed or ExecutionInfo()
        told, ended_ns = self._errand.result.timing, fence.signaled_at_ns
        return ExecutionInfo(
            ErrorStatus.NONE,
            _since(told, ended_ns - clock.launched_ns),
            _since(told, ended_ns - clock.ready_ns),
        )


def _since(told: Timing, elapsed_ns: int) -> Timing:
    """Returns the device's time, within the time that was measured here."""
    if told.time_on_device_ns == NOT_AVAILABLE:
        return Timing(NOT_AVAILABLE, elapsed_ns)
    return Timing(told.time_on_device_ns, max(elapsed_ns, told.time_on_device_ns))


async def _called(
    inner: Any, version: HalVersion, request: Request, *, measure: bool, at_once: bool
) -> object:
    """Execute with what the version has."""
    if version < HalVersion.V1_2:
        return await inner.execute(request)
    if at_once:
        return await inner.execute_synchronously(request, measure=measure)
    return await inner.execute(request, measure=measure)


async def _met(fences: Sequence[Fence], who: str) -> None:
    """Wait for all fences, in one wait; raises GeneralFailure for the first that fails."""
    merged = merge(fences)
    try:
        await merged
    except Exception as error:
        first = merged.error or error
        if isinstance(first, GeneralFailure) and first.__cause__ is not None:
            root: BaseException = first.__cause__
        else:
            root = first
        raise GeneralFailure(f"{who} waited for a fence that failed: {root}") from root
