"""A prepared model in a driver service."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from nnasync._core.clock import now_ns
from nnasync._core.device_helpers import PlainExecutions, begun_at
from nnasync._core.drivers.service.executions import Executions
from nnasync._core.drivers.service.link import ControlCall, Link
from nnasync._core.drivers.service.offered_memories import OfferedMemories
from nnasync._core.drivers.service.remote_bursts import RemoteBurst
from nnasync._core.drivers.service.remote_launches import RemoteExecution
from nnasync._core.wire.connection import close_all
from nnasync._core.wire.messages import ClosePrepared, Launch
from nnasync.burst import BurstCallback, Channel
from nnasync.errors import (
    DeviceDied,
    DeviceUnavailable,
    MissedDeadlineTransient,
    ResourceExhausted,
)
from nnasync.fences import Fence, merge
from nnasync.hal import (
    DEFAULT_CONFIG,
    NEVER_NS,
    ExecutionConfig,
    ExecutionResult,
    Request,
)

_MOST_FENCES = 64


class ServicePreparedModel(PlainExecutions):
    """A prepared model whose process may die; then its calls raise DeviceDied for good."""

    def __init__(
        self, link: Link, memories: OfferedMemories, number: int, name: str, *, polls: bool = True
    ) -> None:
        """With `polls` both sides look for packets before they park."""
        self.link = link
        """The connection that it belongs to."""
        self._memories = memories
        self.number = number
        self._name = name
        self._closed = False
        self.polls = polls
        """Whether both sides look for packets before they park."""
        self._executions = Executions(link, memories, number, polls=polls)
        # A model that was dropped is closed all the same; nobody waits for the answer.
        weakref.finalize(self, _dropped, link, self._executions, number).atexit = False

    def check_alive(self) -> None:
        """Raise DeviceDied if its process died, DeviceUnavailable if its device was closed."""
        error = self.link.error
        if isinstance(error, DeviceDied):
            raise _gone(error)
        self.link.check()

    async def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence] = (),
        config: ExecutionConfig = DEFAULT_CONFIG,
    ) -> RemoteExecution:
        """Launch behind fences of any process, which travel as file descriptors."""
        self.check_open()
        form = self._memories.form(request)
        pending = [fence for fence in wait_for if not fence.done or fence.error is not None]
        if len(pending) > _MOST_FENCES:
            pending = [merge(pending)]
        config = sendable(config if pending else begun_at(config, now_ns()))
        self.link.check_time(config.deadline_ns)
        self.link.check_room()
        execution = RemoteExecution(self.link, self._name, pending, self)
        self.link.traces.launching(execution.number, execution.fence, pending)
        try:
            call = self._begin_launch(execution.number, form, pending, config)
            execution.limit(config.deadline_ns)
            with self.link.traces.mark("launch"):
                await self.link.wait(call, config.deadline_ns)
        except MissedDeadlineTransient as error:
            # The time is over, or the service silent: nothing was refused, so the fence tells.
            execution.cancel()
            self.link.unlisten(execution.number)
            execution.fence.fail(error)
        except BaseException as error:
            execution.abandon()
            if isinstance(error, ResourceExhausted):
                self._memories.refused(request, error)
            raise
        else:
            execution.fence.belongs_to(call.take_fd())
        return execution

    def _begin_launch(
        self, launch: int, form: bytes, wait_for: Sequence[Fence], config: ExecutionConfig
    ) -> ControlCall:
        fds: list[int] = []
        try:
            fds.extend(fence.export_fd() for fence in wait_for)
            return self.link.begin(
                lambda number: Launch(number, launch, self.number, form, config, len(fds)), fds
            )
        finally:
            close_all(fds)

    async def configure_execution_burst(
        self, callback: BurstCallback, request_channel: Channel, result_channel: Channel
    ) -> RemoteBurst:
        """Serve a burst; its packets travel in shared memory."""
        self.check_open()
        link = self.link
        burst = RemoteBurst(link, self._memories, callback, result_channel, self, polls=self.polls)
        try:
            await link.wait(burst.open(self.number))
        except BaseException:
            burst.close()
            raise
        request_channel.listen(burst.ear.receive)
        return burst

    async def close(self) -> None:
        """Close it in the service; nothing happens where that is gone already."""
        if self._closed:
            return
        self._closed = True
        self._executions.close()
        if self.link.error is None:
            try:
                await self.link.call(lambda n: ClosePrepared(n, self.number))
            except DeviceDied:
                pass  # It went with its process, of which the link may not know yet.
            except DeviceUnavailable:
                if self.link.error is None:
                    raise

    async def _execute(
        self, request: Request, config: ExecutionConfig, *, at_once: bool
    ) -> ExecutionResult:
        self.check_open()
        if config is not DEFAULT_CONFIG:
            config = sendable(config)
            self.link.check_time(config.deadline_ns)
        try:
            return await self._executions.run(request, config)
        except DeviceDied as error:
            # The link may not have heard of it yet.
            self.check_alive()
            raise _gone(error) from error

    def check_open(self) -> None:
        """Raise DeviceUnavailable where it is closed, and DeviceDied where it is gone."""
        if self._closed:
            raise DeviceUnavailable(f"{self._name} is closed")
        self.check_alive()


def _gone(error: DeviceDied) -> DeviceDied:
    return DeviceDied(f"{error}; what was prepared there is gone: prepare it again")


def _dropped(link: Link, executions: Executions, prepared: int) -> None:
    link.notify_soon(ClosePrepared(0, prepared))
    link.run_soon(executions.close)


def sendable(config: ExecutionConfig) -> ExecutionConfig:
    """A config with times that can be sent: none below zero, or longer than for ever."""
    duration_ns = config.duration_ns
    return ExecutionConfig(
        config.measure,
        min(max(config.deadline_ns, -NEVER_NS), NEVER_NS),
        min(max(config.loop_timeout_ns, 0), NEVER_NS),
        None if duration_ns is None else min(max(duration_ns, 0), NEVER_NS),
        config.priority,
    )
