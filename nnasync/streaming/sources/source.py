"""The one class behind all sources of this package: something pulled, at its own time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, Self

from nnasync.streaming.item import Item, TakeLosses
from nnasync.streaming.pacing import Pacer


class _Pulled(Protocol):
    """What a source pulls its items from: pairs of a time in nanoseconds and the data."""

    async def __anext__(self) -> tuple[int, Any]: ...

    async def aclose(self) -> None: ...


class _Source:
    """Async iterator of items and async context manager."""

    def __init__(self, pulled: _Pulled) -> None:
        self._pulled = pulled
        self._index = 0
        self._waiting: tuple[int, Any] | None = None

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        """The next item, when its time has come; live and recorded sources differ in when."""
        raise NotImplementedError

    async def ready(self) -> None:
        """Opens the source and waits for its first item; raises what reading raises.

        The item is the first one that iterating gives. An empty recording is ready, too.
        """
        if self._waiting is None:
            with suppress(StopAsyncIteration):
                self._waiting = await self._pulled.__anext__()

    def start(self, at_ns: int) -> None:
        """Set the time of position 0 of a recording; a live source begins by itself."""

    async def aclose(self) -> None:
        """Give files, devices and threads back; harmless when repeated."""
        await self._pulled.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def _item(self, captured_ns: int, media_ns: int, data: Any, epoch: int = 0) -> Item:
        item = Item(self._index, captured_ns, data, media_ns, epoch=epoch)
        self._index += 1
        return item


class RecordedSource(_Source):
    """Iterates over a recording: the times that are pulled are positions in it; `pacer` waits."""

    def __init__(self, pulled: _Pulled, pacer: Pacer) -> None:
        super().__init__(pulled)
        self._pacer = pacer

    def start(self, at_ns: int) -> None:
        """Set the time of position 0."""
        self._pacer.start_ns = at_ns

    async def __anext__(self) -> Item:
        """The next item, when it is due."""
        if self._waiting is None:
            self._waiting = await self._pulled.__anext__()
        media_ns, data = self._waiting
        captured_ns = await self._pacer.wait_until(media_ns)
        self._waiting = None
        return self._item(captured_ns, media_ns, data)


class LiveSource(_Source):
    """Iterates over what a device delivers: the times that are pulled are those of capture.

    `take_losses` tells what the device or the connection lost since it was asked last, by outcome;
    `epoch` tells which connection the last item came by.
    """

    _first_ns: int | None = None

    def __init__(
        self, pulled: _Pulled, take_losses: TakeLosses = dict, epoch: Callable[[], int] = int
    ) -> None:
        super().__init__(pulled)
        self.take_losses = take_losses
        self._epoch = epoch

    async def __anext__(self) -> Item:
        """The next item, when the device has delivered it."""
        waiting, self._waiting = self._waiting, None
        captured_ns, data = waiting or await self._pulled.__anext__()
        if self._first_ns is None:
            self._first_ns = captured_ns
        return self._item(captured_ns, captured_ns - self._first_ns, data, self._epoch())


class Generated:
    """Pulls from a function of the index; `position_ns` gives the time of an index."""

    def __init__(
        self,
        make: Callable[[int], Any | Awaitable[Any]],
        position_ns: Callable[[int], int],
        count: int | None,
    ) -> None:
        self._make = make
        self._position_ns = position_ns
        self._count = count
        self._index = 0

    async def __anext__(self) -> tuple[int, Any]:
        if self._count is not None and self._index >= self._count:
            raise StopAsyncIteration
        index, self._index = self._index, self._index + 1
        data = self._make(index)
        return self._position_ns(index), await data if isinstance(data, Awaitable) else data

    async def aclose(self) -> None:
        """Makes no more items."""
        self._count = 0
