"""What users give to sources, stages and graphs, checked where they give it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable

from nnasync._core.arguments import check_kind, check_whole, is_whole, or_none, told
from nnasync.errors import InvalidArgument
from nnasync.hal import Priority


def check_budget(name: str, budget_ns: object) -> None:
    """Raises InvalidArgument for what is neither None nor whole nanoseconds."""
    if budget_ns is not None and not is_whole(budget_ns):
        raise InvalidArgument(
            f"{name}: budget_ns is {told(budget_ns)}, it must be a whole number of nanoseconds, "
            "such as 20_000_000 for 20 ms, or None"
        )


def check_ns(name: str, at_ns: object, least: int | None = 0) -> None:
    """Raises InvalidArgument for what is neither None nor a whole number, of `least` at least."""
    or_none(check_whole, name, at_ns, least)


def check_priority(name: str, priority: object) -> None:
    """Raises InvalidArgument for what is neither None nor a Priority."""
    or_none(check_kind, f"{name}: priority", priority, Priority, "a Priority")


def check_source(name: str, source: object) -> None:
    """Raises InvalidArgument for a source over which `async for` cannot iterate."""
    if not hasattr(type(source), "__aiter__"):
        raise InvalidArgument(
            f"{name}: a source is an async iterable of Item, such as camera(), video_file(path) or "
            f"synthetic(make), not {_told(source)}"
        )


def check_call(name: str, call: object) -> None:
    """Raises InvalidArgument for an object that cannot be called."""
    if not callable(call):
        raise InvalidArgument(
            f"{name}: a stage is what can be called, such as a function or a network, not "
            f"{_told(call)}"
        )


def check_predicate(name: str, call: object) -> None:
    """Raises InvalidArgument for what cannot be called, or gives no answer at once."""
    check_call(name, call)
    if is_awaited(call):
        raise InvalidArgument(
            f"{name} is {told(call)}, which is awaited: it must be a function that returns a bool; "
            "what is awaited belongs into a stage before it, stream.map(call)"
        )


def is_awaited(call: object) -> bool:
    """Whether what it returns is to be awaited: of a coroutine function, a network, a burst."""
    if inspect.iscoroutinefunction(call):
        return True
    return callable(call) and inspect.iscoroutinefunction(type(call).__call__)


def not_awaited(name: str, value: Awaitable[object]) -> InvalidArgument:
    """The error for an awaitable that a plain function returned, which is closed."""
    if inspect.iscoroutine(value):
        value.close()
    return InvalidArgument(f"{name} returns an awaitable: give `async def` functions, not lambdas")


def _told(given: object) -> str:
    hint = "; await it first" if inspect.isawaitable(given) else ""
    return f"{type(given).__name__}{hint}"
