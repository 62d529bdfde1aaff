"""Launches of networks whose shapes are found while they run.

How much memory the outputs need is known only when the device has said so, and it may have to be
asked twice. So such a launch is a task of the runtime: it waits for the fences, then calls the
network as a plain call does, and then its own fence is signaled. Outputs are there from that moment
on, as fresh arrays; a launch that is to read them is made then, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnasync._core.clock import Alarm, Watchdog, now_ns
from nnasync._core.device_helpers import begun_at, failed_info
from nnasync._core.engine_device.gates import DependencyFailed
from nnasync._core.execution.flexible import FlexibleCalls
from nnasync._core.execution.launch import Execution
from nnasync._core.execution.slots import OutputRegion
from nnasync._core.wakeup import Wakeup
from nnasync.device import ExecutionInfo
from nnasync.errors import (
    BadState,
    Cancelled,
    DeviceUnavailable,
    GeneralFailure,
    MissedDeadlinePersistent,
    NNError,
    because,
)
from nnasync.fences import Fence, fresh
from nnasync.hal import NEVER_NS, NOT_AVAILABLE, ErrorStatus, ExecutionConfig, Timing
from nnasync.memory import Region

StartTask = Callable[..., Callable[[], object]]
"""Starts a coroutine function with its arguments in the background; returns its cancel function."""


class OpenExecution(Execution):
    """A launched execution of a network whose output shapes are open.

    Once the fence is signaled, `outputs` are new arrays or the given buffers.
    """

    def __init__(
        self,
        calls: FlexibleCalls,
        values: Sequence[Any],
        out: Any,
        config: ExecutionConfig,
    ) -> None:
        """Copies the arrays of `values`, one for each input; regions are read after the fences.

        Raises InvalidArgument for a value that does not fit.
        """
        self._calls = calls
        self._values = [
            _kept(value, known) for value, known in zip(values, calls.given(values), strict=True)
        ]
        self._out = out
        self._config = config
        self._fence = Fence()
        self._info = ExecutionInfo()
        self._outputs: tuple[Any, ...] | None = None
        self._launched_ns = now_ns()
        self._wakeup = Wakeup.current()
        self._alarm: Alarm | None = None
        self._end: Callable[[], object] = lambda: None

    def begin(self, start: StartTask, fences: Sequence[Fence], watchdog: Watchdog) -> None:
        """Starts the work behind fences; raises what the watchdog raises."""
        deadline_ns = self._config.deadline_ns
        if deadline_ns != NEVER_NS and fences:
            self._alarm = watchdog.arm(deadline_ns, self._is_late)
        for value in self._values:
            if isinstance(value, OutputRegion):
                value.lease.read_until(self._fence)
        self._end = start(self._run, fences)

    @property
    def fence(self) -> Fence:
        """Returns the fence that is signaled when the outputs are there.

        It fails if none will be.
        """
        return self._fence

    @property
    def outputs(self) -> tuple[Any, ...]:
        """Returns the outputs.

        Raises BadState before the fence is signaled, and when this is closed.
        """
        if self._outputs is None:
            raise BadState(
                "the outputs of a network with open shapes are there when the fence is signaled: "
                "await it first"
                if not self._fence.done
                else "the execution failed or is closed: it has no outputs"
            )
        return self._outputs

    async def info(self) -> ExecutionInfo:
        """Returns status and requested timings; raises BadState while the fence is pending."""
        return failed_info(self._fence) or self._info

    async def result(self) -> Any:
        """Waits for the fence and returns copies of the outputs; a tuple if there are several.

        Buffers are returned as they are.
        """
        await self._fence
        values = tuple(
            value.copy() if isinstance(value, np.ndarray) else value for value in self.outputs
        )
        return values[0] if len(values) == 1 else values

    def cancel(self) -> None:
        """Ends the work; the fence fails with Cancelled unless it is done already."""
        self._stop(Cancelled("the execution was cancelled"))

    def close(self) -> None:
        """Cancels the work if it is not done, and lets the outputs go."""
        if not self._fence.done:
            self.cancel()
        self._outputs = None

    async def _run(self, fences: Sequence[Fence]) -> None:
        try:
            for fence in fences:
                await _met(fence)
            self._disarm()
            await self._call(now_ns())
        except NNError as error:
            self._fence.fail(error)
        except Exception as error:
            failure = GeneralFailure(f"the execution failed: {error}")
            failure.__cause__ = fresh(error)
            self._fence.fail(failure)
        finally:
            self._disarm()
            # Final already, unless this task was cancelled with its runtime.
            closed = DeviceUnavailable("the runtime was closed before this had run")
            self._fence.fail(because("closing", closed))

    async def _call(self, fenced_ns: int) -> None:
        config = begun_at(self._config, fenced_ns)
        values = [value.array if isinstance(value, Region) else value for value in self._values]
        value, result = await self._calls.call(values, self._out, config)
        if config.measure:
            self._info = _timed(result.timing, self._launched_ns, fenced_ns)
        self._outputs = value if isinstance(value, tuple) else (value,)
        self._values = []
        self._fence.signal()

    def _is_late(self) -> None:
        self._stop(MissedDeadlinePersistent("the deadline passed before the fences were signaled"))

    def _stop(self, error: NNError) -> None:
        """Answers with an error now, and ends the task; on any thread."""
        self._fence.fail(error)
        self._wakeup.post(self._end)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.disarm()


def _kept(value: Any, known: Any) -> Any:
    """Returns how an input is stored: a region to be read later, or a copy of its value now."""
    if isinstance(value, Region):
        return value
    return known.copy() if isinstance(known, np.ndarray) else known


async def _met(fence: Fence) -> None:
    """Waits for a fence; raises DependencyFailed if it failed, from the first error."""
    try:
        await fence
    except DependencyFailed:
        raise
    except Exception as error:
        raise DependencyFailed(f"waited for a fence that failed: {error}") from error


def _timed(timing: Timing, launched_ns: int, fenced_ns: int) -> ExecutionInfo:
    ended_ns = now_ns()
    on_device = timing.time_on_device_ns
    if on_device == NOT_AVAILABLE:
        return ExecutionInfo(ErrorStatus.NONE, timing, timing)
    launched = Timing(on_device, ended_ns - launched_ns)
    return ExecutionInfo(ErrorStatus.NONE, launched, Timing(on_device, ended_ns - fenced_ns))
