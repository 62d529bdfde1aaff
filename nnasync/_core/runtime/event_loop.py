"""The event loop of a program that has none yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from inspect import iscoroutine
from typing import Any, TypeVar

from nnasync.errors import BadState, InvalidArgument

T = TypeVar("T")


def run(main: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Run an async function on a new event loop: uvloop where there is one, else asyncio.

    Raises InvalidArgument for a coroutine, and BadState, which is a RuntimeError as that of
    `asyncio.run` is, where a loop is running already.
    """
    given: object = main
    if iscoroutine(given):
        given.close()
        raise InvalidArgument("nn.run takes the function: nn.run(main, ...), not nn.run(main(...))")
    if asyncio._get_running_loop() is not None:
        raise BadState(
            "an event loop is running in this thread already, as in notebooks and in coroutines: "
            "`await main()` there, instead of nn.run(main)"
        )
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main(*args))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Returns the function that makes such a loop."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop
    return new_event_loop
