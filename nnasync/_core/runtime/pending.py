"""A network that is being compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ParamSpec

from nnasync._core.execution import Net

__all__ = ["PendingNet", "pending"]

P = ParamSpec("P")


class PendingNet(Coroutine[Any, Any, Net]):
    """What `rt.compile` returns: await it, or enter it with `async with`, which closes the network.

    It begins when it is awaited or entered, as a coroutine does.
    """

    def __init__(self, work: Coroutine[Any, Any, Net]) -> None:
        self._work = work
        self._net: Net | None = None

    def __await__(self) -> Generator[Any, Any, Net]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """Go on, as a coroutine does."""
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where it waits, as in a coroutine."""
        return self._work.throw(*error)

    def close(self) -> None:
        """End it, as a coroutine."""
        self._work.close()

    async def __aenter__(self) -> Net:
        self._net = await self._work
        return self._net

    async def __aexit__(self, *exception: object) -> None:
        if self._net is not None:
            await self._net.aclose()


def pending(method: Callable[P, Coroutine[Any, Any, Net]]) -> Callable[P, PendingNet]:
    """A method that compiles as one whose networks can be entered as well as awaited."""

    @functools.wraps(method)
    def begin(*arguments: P.args, **options: P.kwargs) -> PendingNet:
        return PendingNet(method(*arguments, **options))

    return begin
