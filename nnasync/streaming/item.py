"""The items of a stream, and the contract of their sources."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal, Protocol

from nnasync.hal import Priority, Struct
from nnasync.streaming.account import Outcome

TakeLosses = Callable[[], Mapping[Outcome, int]]
"""What a source lost since this was called last, by outcome; sources may have it as a method."""

Pace = Literal["real-time", "fast"]
"""Whether the items of a recording come when they would have come live, or as fast as possible."""


class Item(Struct):
    """One frame or hop of a stream.

    `captured_ns` is the time on the monotonic clock at which its last sample was there, `media_ns`
    the same moment counted from the beginning of the stream, or 0 where nobody tells it. `data` is
    an array for the sources of this package; a stage takes anything that its `prepare` or its
    network takes.

    `epoch` counts how often the source had to begin anew: between items of different epochs
    something is missing. In a graph an item also has its deadline and its priority, if its source
    gave it some, and the items that it was put together from, such as those of a batch.
    """

    index: int
    captured_ns: int
    data: Any
    media_ns: int = 0
    deadline_ns: int | None = None
    priority: Priority | None = None
    parents: tuple[Item, ...] = ()
    epoch: int = 0

    def having(self, data: Any) -> Item:
        """The item with other data."""
        return Item(
            self.index,
            self.captured_ns,
            data,
            self.media_ns,
            self.deadline_ns,
            self.priority,
            self.parents,
            self.epoch,
        )


class ItemSource(Protocol):
    """An async iterator of items that can be closed before its end."""

    def __aiter__(self) -> AsyncIterator[Item]:
        """The source itself."""

    async def __anext__(self) -> Item:
        """The next item, when its time has come."""

    async def aclose(self) -> None:
        """Give files, devices and threads back; harmless when repeated."""
