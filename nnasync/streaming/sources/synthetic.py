"""Items that are made up: by a function of their index, or taken from an array."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

from nnasync.errors import InvalidArgument
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
    should be a coroutine function. Raises InvalidArgument for a rate or a count that is not
    positive.
    """
    if not (math.isfinite(rate_hz) and rate_hz > 0):
        raise InvalidArgument(f"rate_hz is {rate_hz}, it must be positive and finite")
    if count is not None and count < 0:
        raise InvalidArgument(f"count is {count}, it must not be negative")
    pulled = Generated(make, lambda index: round(index * 1e9 / rate_hz), count)
    return RecordedSource(pulled, Pacer(pace, start_ns=start_ns))
