"""Short work on the threads that anyio keeps for it; no bare error where none can be started."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from nnasync._core.deferred import deferred
from nnasync.errors import ResourceExhaustedTransient

if TYPE_CHECKING:
    from anyio import CapacityLimiter, to_thread
else:
    to_thread = deferred("anyio.to_thread")

T = TypeVar("T")


async def in_helper_thread(
    work: Callable[..., T],
    *arguments: object,
    abandon_on_cancel: bool = False,
    limiter: CapacityLimiter | None = None,
) -> T:
    """Returns what `work` returns, or raises what it raises, as `anyio.to_thread.run_sync` does.

    Raises ResourceExhaustedTransient where no thread can be started.
    """
    has_begun = False

    def run() -> T:
        nonlocal has_begun
        has_begun = True
        return work(*arguments)

    try:
        return await to_thread.run_sync(run, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
    except RuntimeError as error:
        if has_begun:
            raise
        raise ResourceExhaustedTransient(f"no thread to work in: {error}") from error
