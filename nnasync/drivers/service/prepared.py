"""A prepared model in a driver service."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from nnasync.burst import BurstCallback, Channel
from nnasync.clock import Deadline, now_ns
from nnasync.drivers.service.bursts import RemoteBurst
from nnasync.drivers.service.connection import close_all
from nnasync.drivers.service.launched import RemoteExecution
from nnasync.drivers.service.link import Link
from nnasync.drivers.service.memories import Memories
from nnasync.drivers.service.messages import (
    ClosePrepared,
    Execute,
    Executed,
    Launch,
    OpenBurst,
)
from nnasync.errors import DeviceUnavailable
from nnasync.fences import Fence, merge
from nnasync.hal import (
    DEFAULT_LOOP_TIMEOUT_NS,
    ExecutionResult,
    Request,
)
from nnasync.scheduler import NEVER_NS

__all__ = ["ServicePreparedModel"]

_MOST_FENCES = 64


class ServicePreparedModel:
    """A prepared model whose process may die; then its calls raise DeviceDied for good."""

    def __init__(self, link: Link, memories: Memories, number: int, name: str) -> None:
        self._link = link
        self._memories = memories
        self.number = number
        self._name = name
        self._closed = False
        # A model that was dropped is closed all the same; nobody waits for the answer.
        weakref.finalize(self, link.tell_soon, ClosePrepared(0, number)).atexit = False

    @property
    def link(self) -> Link:
        """The connection that it belongs to."""
        return self._link

    async def execute(
        self,
        request: Request,
        *,
        measure: bool = False,
        deadline: Deadline | None = None,
        loop_timeout_ns: int = DEFAULT_LOOP_TIMEOUT_NS,
    ) -> ExecutionResult:
        """Run through the queue of the service."""
        return await self._execute(
            request,
            measure=measure,
            deadline=deadline,
            loop_timeout_ns=loop_timeout_ns,
            synchronously=False,
        )

    async def execute_synchronously(
        self,
        request: Request,
        *,
        measure: bool = False,
        deadline: Deadline | None = None,
        loop_timeout_ns: int = DEFAULT_LOOP_TIMEOUT_NS,
    ) -> ExecutionResult:
        """Run with the least overhead in the service."""
        return await self._execute(
            request,
            measure=measure,
            deadline=deadline,
            loop_timeout_ns=loop_timeout_ns,
            synchronously=True,
        )

    async def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence] = (),
        *,
        measure: bool = False,
        deadline: Deadline | None = None,
        loop_timeout_ns: int = DEFAULT_LOOP_TIMEOUT_NS,
        duration_ns: int | None = None,
    ) -> RemoteExecution:
        """Launch behind fences of any process, which travel as file descriptors."""
        self._check_open()
        form = self._memories.form(request)
        pending = [fence for fence in wait_for if not fence.done or fence.error is not None]
        if len(pending) > _MOST_FENCES:
            pending = [merge(pending)]
        deadline_ns = _at_ns(deadline)
        self._link.check_time(deadline_ns)
        if duration_ns is not None and not pending:
            deadline_ns = min(deadline_ns, now_ns() + duration_ns)
        execution = RemoteExecution(self._link, self._name, pending, self)
        fds: list[int] = []
        try:
            fds.extend(fence.export_fd() for fence in pending)
            call = self._link.begin(
                lambda number: Launch(
                    number,
                    execution.number,
                    self.number,
                    form,
                    measure,
                    deadline_ns,
                    loop_timeout_ns,
                    duration_ns,
                    len(fds),
                ),
                fds,
            )
            close_all(fds)
            fds.clear()
            execution.limit(deadline_ns)
            await self._link.wait(call, deadline_ns)
        except BaseException:
            execution.forsake()
            raise
        finally:
            close_all(fds)
        execution.fence.belongs_to(call.take_fd())
        return execution

    async def configure_execution_burst(
        self, callback: BurstCallback, request_channel: Channel, result_channel: Channel
    ) -> RemoteBurst:
        """Serve a burst; its packets travel in shared memory."""
        self._check_open()
        burst = RemoteBurst(self._link, self._memories, callback, result_channel, self)
        self._link.listen(burst.number, burst)
        try:
            with burst.handovers() as fds:
                await self._link.call(lambda n: OpenBurst(n, burst.number, self.number), fds)
        except BaseException:
            burst.close()
            raise
        request_channel.listen(burst.receive)
        return burst

    async def close(self) -> None:
        """Close it in the service; nothing happens where that is gone already."""
        if self._closed:
            return
        self._closed = True
        if self._link.error is None:
            try:
                await self._link.call(lambda n: ClosePrepared(n, self.number))
            except DeviceUnavailable:
                if self._link.error is None:
                    raise

    async def _execute(
        self,
        request: Request,
        *,
        measure: bool,
        deadline: Deadline | None,
        loop_timeout_ns: int,
        synchronously: bool,
    ) -> ExecutionResult:
        self._check_open()
        form = self._memories.form(request)
        deadline_ns = _at_ns(deadline)
        self._link.check_time(deadline_ns)
        done: Executed = await self._link.call(
            lambda number: Execute(
                number,
                self.number,
                form,
                measure,
                deadline_ns,
                loop_timeout_ns,
                synchronously,
            ),
            answer=Executed,
            deadline_ns=deadline_ns,
        )
        return ExecutionResult(done.output_shapes, done.timing)

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceUnavailable(f"{self._name} is closed")
        self._link.check()


def _at_ns(deadline: Deadline | None) -> int:
    return NEVER_NS if deadline is None else deadline.at_ns
