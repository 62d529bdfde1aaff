"""Items that are made up: by a function of their index, or taken from an array."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nnasync._core.arguments import check_callable, check_positive, check_whole, or_none
from nnasync.streaming.item import Pace
from nnasync.streaming.pacing import Pacer
from nnasync.streaming.sources.source import Generated, RecordedSource


def synthetic(
    make: Callable[[int], Any | Awaitable[Any]],
    *,
    rate_hz: float,
    count: int | None = None,
    pace: Pace = "real-time",
    start_ns: int | None = None,
) -> RecordedSource:
    """A source whose item k is `make(k)`, awaited if it is awaitable, due at k / `rate_hz`.

    It ends after `count` items, or never. `make` runs on the event loop: what takes long there
    should be a coroutine function. Raises InvalidArgument for a rate that is not positive,
    a negative count, and a `make` that cannot be called.
    """
    check_callable("make", make, "a function of the number of an item")
    check_positive("rate_hz", rate_hz)
    or_none(check_whole, "count", count, 0)
    pulled = Generated(make, lambda index: round(index * 1e9 / rate_hz), count)
    return RecordedSource(pulled, Pacer(pace, start_ns=start_ns))
