"""Tasks in the background of a runtime, which end with it.

On asyncio they are those of an `asyncio.TaskGroup`: so a program that has no other use for anyio
does not wait at its start until anyio's backend is imported, which takes longer than opening a
runtime does. On trio they are tasks of a nursery.

Both would cancel the application's task for an error in one of theirs. What is done in the
background is never fatal: such an error is logged, and that task alone ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from nnasync._core.deferred import deferred
from nnasync._core.wakeup import Wakeup

if TYPE_CHECKING:
    import anyio
else:
    anyio = deferred("anyio")

logger = logging.getLogger(__name__)

Work = Callable[..., Coroutine[Any, Any, object]]


class Tasks(Protocol):
    """Tasks that belong to the task that opened them, which closes them too."""

    async def open(self) -> None:
        """Begins to take tasks."""

    def start(self, work: Work, *args: Any) -> Callable[[], object]:
        """Start a task from a task of the loop; returns its cancel function.

        If the task ends with an Exception, that is logged and affects nothing else.
        """

    async def close(self) -> None:
        """Cancel all tasks, those that are started meanwhile too, and wait for their end."""


def tasks_of_this_loop() -> Tasks:
    """Returns the tasks for the loop that runs in this thread; raises BadState where none runs."""
    return _TrioTasks() if Wakeup.current().is_trio else _AsyncioTasks()


class _AsyncioTasks:
    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_closing = False

    async def open(self) -> None:
        await self._group.__aenter__()

    def start(self, work: Work, *args: Any) -> Callable[[], object]:
        task = self._group.create_task(_contained(work, args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_closing:
            self._cancel(task)
        return lambda: self._cancel(task)

    async def close(self) -> None:
        self._is_closing = True
        for task in self._tasks:
            self._cancel(task)
        await self._group.__aexit__(None, None, None)

    def _cancel(self, task: asyncio.Task[object]) -> None:
        # Not at once: a task that has not begun would never do what it does in the end.
        self._loop.call_soon(task.cancel)


class _TrioTasks:
    def __init__(self) -> None:
        self._group = anyio.create_task_group()

    async def open(self) -> None:
        await self._group.__aenter__()

    def start(self, work: Work, *args: Any) -> Callable[[], object]:
        scope = anyio.CancelScope()
        self._group.start_soon(_inside, scope, work, args)
        return scope.cancel

    async def close(self) -> None:
        self._group.cancel_scope.cancel()
        try:
            await self._group.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            # trio raises Ctrl-C in any task, perhaps in one of ours, of which nobody knows.
            if len(group.exceptions) != 1:
                raise
            raise group.exceptions[0] from None


async def _inside(scope: anyio.CancelScope, work: Work, args: tuple[Any, ...]) -> None:
    with scope:
        await _contained(work, args)


async def _contained(work: Work, args: tuple[Any, ...]) -> None:
    try:
        await work(*args)
    except Exception:
        logger.exception("a task in the background of a runtime failed")


class Upkeep:
    """The background tasks of one network: they bring the best plan in, or a new one."""

    def __init__(self) -> None:
        self._cancels: list[Callable[[], object]] = []

    def add(self, cancel: Callable[[], object]) -> None:
        """Adds the function that cancels a task."""
        self._cancels.append(cancel)

    def cancel(self) -> None:
        """Cancels the tasks and drops them, since a cancelled task keeps what it ran on."""
        cancels, self._cancels = self._cancels, []
        for cancel in cancels:
            cancel()
