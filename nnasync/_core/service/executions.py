"""How a service carries out plain executions, which come over queues and run side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
from anyio.abc import TaskGroup

from nnasync._core.engine_device import EnginePreparedModel
from nnasync._core.service.served_bursts import ServedBurst
from nnasync._core.wakeup import Wakeup
from nnasync._core.workers import contained
from nnasync.burst import BurstContext, BurstServer, Outcome
from nnasync.device import PreparedModel
from nnasync.errors import Cancelled
from nnasync.fences import Fence
from nnasync.hal import ExecutionConfig, Request

Start = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
"""Begins a task of the session of a client."""


def executions_of(prepared: PreparedModel, queues: ServedBurst, start: Start) -> BurstContext:
    """Returns what serves executions of a prepared model that come over these queues."""
    if isinstance(prepared, EnginePreparedModel):
        return prepared.serve_burst(queues, queues, queues, ordered=False)
    tasks = _Tasks(prepared, queues)
    start(tasks.run)
    return tasks


class _Tasks:
    """Serves a prepared model that is known by its HAL alone: each execution is a task."""

    def __init__(self, prepared: PreparedModel, queues: ServedBurst) -> None:
        self._prepared = prepared
        self._server = BurstServer(self._begin, queues, queues, ordered=False)
        self._wakeup = Wakeup.current()
        self._to_do: deque[Callable[[TaskGroup], object]] = deque()
        self._came = anyio.Event()
        queues.listen(self._server.receive)

    async def run(self) -> None:
        """Runs what comes, until it is closed."""
        async with anyio.create_task_group() as group:
            while not group.cancel_scope.cancel_called:
                await self._came.wait()
                self._came = anyio.Event()
                while self._to_do:
                    self._to_do.popleft()(group)

    def free_memory(self, slot: int) -> None:
        """Drops a memory."""
        self._server.free_memory(slot)

    def close(self) -> None:
        """Cancels all executions that are under way."""
        self._server.close()
        self._have_done(lambda group: group.cancel_scope.cancel())

    def _have_done(self, work: Callable[[TaskGroup], object]) -> None:
        """Runs a function on the loop, from any thread."""
        self._to_do.append(work)
        self._wakeup.post(lambda: self._came.set())

    def _begin(
        self,
        request: Request,
        config: ExecutionConfig,
        *,
        behind: Fence | None,
        reply: Callable[[Outcome], None],
        release: Callable[[], None],
    ) -> Callable[[], None]:
        """Begins one execution; returns the function that cancels it."""
        scopes: list[anyio.CancelScope] = []

        async def run() -> None:
            outcome: Outcome = Cancelled("the execution was cancelled")
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                try:
                    outcome = await self._prepared.execute_synchronously(request, config)
                except Exception as error:
                    outcome = contained(error, "the device")
            reply(outcome)
            release()

        self._have_done(lambda group: group.start_soon(run))
        return lambda: self._have_done(lambda _: _cancel(scopes))


def _cancel(scopes: list[anyio.CancelScope]) -> None:
    for scope in scopes:
        scope.cancel()
