"""The event loop of a program that has none yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Run an async function on a new event loop: uvloop where there is one, else asyncio."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main(*args))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Returns what makes such a loop."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop
    return new_event_loop
