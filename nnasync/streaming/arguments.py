"""What users give to sources, stages and graphs, checked where they give it."""

from __future__ import annotations

import inspect
from numbers import Integral

from nnasync.errors import InvalidArgument


def check_budget(name: str, budget_ns: object) -> None:
    """Raises InvalidArgument for what is neither None nor whole nanoseconds."""
    if budget_ns is not None and not isinstance(budget_ns, Integral):
        raise InvalidArgument(
            f"{name}: budget_ns is {budget_ns!r}, it must be a whole number of nanoseconds, "
            "such as 20_000_000 for 20 ms, or None"
        )


def check_source(name: str, source: object) -> None:
    """Raises InvalidArgument for what no `async for` iterates over."""
    if not hasattr(type(source), "__aiter__"):
        raise InvalidArgument(
            f"{name}: a source is an async iterable of Item, such as camera(), video_file(path) or "
            f"synthetic(make), not {_told(source)}"
        )


def check_call(name: str, call: object) -> None:
    """Raises InvalidArgument for what cannot be called with an item, or its data."""
    if not callable(call):
        raise InvalidArgument(
            f"{name}: a stage is what can be called, such as a function or a network, not "
            f"{_told(call)}"
        )


def _told(given: object) -> str:
    hint = "; await it first" if inspect.isawaitable(given) else ""
    return f"{type(given).__name__}{hint}"
