"""The way of items from their source to the runtime, which a page may slow down or cut.

It stands for a network between the two. "slow" delivers each item `SLOW_NS` after its capture, in
order; "cut" loses what comes. What is lost is counted, and its gap is told when items come again.
Each item gets the deadline and the priority that its stream has at that moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable

import anyio
import msgspec

from nnasync import now_ns
from nnasync.cli.live.messages import LinkState
from nnasync.hal import Priority
from nnasync.streaming import Item, Outcome

SLOW_NS = 150_000_000
_CAPACITY = 256


class StreamSettings:
    """Priority and deadline of a stream, which may change while it runs."""

    def __init__(self, priority: Priority, budget_ns: int) -> None:
        self.priority = priority
        self.budget_ns = budget_ns


class Link:
    """An async iterator over the items of `source`, which `pump` has to read meanwhile."""

    def __init__(
        self,
        source: AsyncIterable[Item],
        settings: StreamSettings,
        *,
        on_gap: Callable[[int, int], object] = lambda lost, gap_ns: None,
        now: Callable[[], int] = now_ns,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
    ) -> None:
        """`on_gap` is told how many items were lost and how long nothing came."""
        self._source = source
        self._settings = settings
        self._on_gap = on_gap
        self._now = now
        self._sleep = sleep
        self._items: deque[tuple[int, Item]] = deque()
        self._changed = anyio.Event()
        self._gap: tuple[int, int] | None = None
        self.has_ended = False
        self._error: Exception | None = None
        self.state: LinkState = "normal"
        self.lost = 0
        self._told = 0

    async def pump(self) -> Exception | None:
        """Read the source to its end; returns what it raised, which the iteration raises, too."""
        try:
            async for item in self._source:
                self._take(item)
        except Exception as error:
            self._error = error
            return error
        finally:
            self.has_ended = True
            self._changed.set()
        return None

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        """The next item, when it has come through."""
        while not self._items:
            if self.has_ended:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                raise StopAsyncIteration
            self._changed = anyio.Event()
            await self._changed.wait()
        due_ns, item = self._items.popleft()
        left_ns = due_ns - self._now()
        if left_ns > 0 and self.state != "normal":
            await self._sleep(left_ns / 1e9)
        return msgspec.structs.replace(
            item,
            deadline_ns=item.captured_ns + self._settings.budget_ns,
            priority=self._settings.priority,
        )

    def take_losses(self) -> dict[Outcome, int]:
        """Returns the losses since the last call, here and in the source, for a graph's account."""
        losses: dict[Outcome, int] = dict(getattr(self._source, "take_losses", dict)())
        told, self._told = self._told, self.lost
        losses[Outcome.DROPPED] = losses.get(Outcome.DROPPED, 0) + self.lost - told
        return losses

    async def aclose(self) -> None:
        """Close the source."""
        self.has_ended = True
        self._changed.set()
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()

    def _take(self, item: Item) -> None:
        if self.state == "cut":
            lost, since_ns = self._gap or (0, self._now())
            self._gap = lost + 1, since_ns
            self.lost += 1
            return
        if self._gap is not None:
            (lost, since_ns), self._gap = self._gap, None
            self._on_gap(lost, self._now() - since_ns)
        if len(self._items) >= _CAPACITY:
            self._items.popleft()
            self.lost += 1
        late_ns = SLOW_NS if self.state == "slow" else 0
        self._items.append((item.captured_ns + late_ns, item))
        self._changed.set()
