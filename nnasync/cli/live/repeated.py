"""A recording that is played over and over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec

from nnasync import now_ns
from nnasync.hal import Array
from nnasync.streaming import Item, RecordedSource


class Repeated:
    """A recording that begins again at its end; its items are numbered on, at their own times."""

    def __init__(
        self,
        make: Callable[[], RecordedSource],
        period_ns: int,
        change: Callable[[Array], Array] = lambda data: data,
    ) -> None:
        """`period_ns` lies between the last item of a round and the first of the next.

        `change` makes the data of an item of what was recorded.
        """
        self._make = make
        self._period_ns = period_ns
        self._change = change
        self._source: RecordedSource | None = None
        self._start_ns = 0
        self._before_ns = 0
        self._index = 0
        self._is_closed = False
        self._position_ns = 0

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        """The next item; raises StopAsyncIteration where there is none in a whole round."""
        if self._is_closed:
            raise StopAsyncIteration
        is_new = self._source is None
        source = self._source or self._begin()
        try:
            item = await source.__anext__()
        except StopAsyncIteration:
            await self._end_round()
            if is_new:
                raise
            self._before_ns = self._position_ns + self._period_ns
            return await self.__anext__()
        self._position_ns = self._before_ns + item.media_ns
        number, self._index = self._index, self._index + 1
        return msgspec.structs.replace(
            item, index=number, media_ns=self._position_ns, data=self._change(item.data)
        )

    async def aclose(self) -> None:
        """Close the round that is being read, and begin no other; harmless when repeated."""
        self._is_closed = True
        await self._end_round()

    async def _end_round(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            await source.aclose()

    def _begin(self) -> RecordedSource:
        self._start_ns = self._start_ns or now_ns()
        self._source = self._make()
        self._source.start(self._start_ns + self._before_ns)
        return self._source
