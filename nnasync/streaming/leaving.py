"""How a block that owns tasks is left: they are cancelled, its own errors stay as they are."""

from __future__ import annotations

from types import TracebackType

import anyio.abc


async def leave(
    tasks: anyio.abc.TaskGroup,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> bool | None:
    """End a task group that was entered by hand; for `__aexit__`, whose arguments these are.

    An error that comes out of the block alone is not wrapped into a group.
    """
    tasks.cancel_scope.cancel()
    try:
        return await tasks.__aexit__(kind, error, trace)
    except BaseExceptionGroup as group:
        if group.exceptions == (error,):
            return None
        raise
