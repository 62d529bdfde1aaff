"""Stages that make one item of several: batches, windows, joins, and the way back.

The items that were put together are the `parents` of the new one, which has the time, the deadline
and the priority that are the most urgent among them (of a join those of its first stream). In the
account of the stage they are merged; items that became part of nothing are dropped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import anyio

from nnasync._core.arguments import check_choice, check_whole
from nnasync.batching.rule import latest_start_ns
from nnasync.errors import InvalidArgument
from nnasync.streaming.account import Entry, Outcome
from nnasync.streaming.arguments import check_ns
from nnasync.streaming.graph.node import Context, Inlet, Node
from nnasync.streaming.graph.stages import CallNode, Queued
from nnasync.streaming.item import Item
from nnasync.streaming.rate_limit import RateLimit
from nnasync.streaming.stage import Policy

JoinMode = Literal["nearest", "latest", "interpolated"]
"""What a join takes of the others for an item: nearest in time, last before it, or in between."""

_Held = tuple[Entry, Item]


def put_together(items: Sequence[Item], data: Any) -> Item:
    """Returns the item that stands for several.

    Its time and urgency are those of the most urgent.
    """
    first = min(items, key=lambda item: item.captured_ns)
    deadlines = [item.deadline_ns for item in items if item.deadline_ns is not None]
    priorities = [item.priority for item in items if item.priority is not None]
    return Item(
        first.index,
        first.captured_ns,
        data,
        first.media_ns,
        min(deadlines, default=None),
        min(priorities, default=None, key=lambda priority: -priority),
        tuple(items),
        first.epoch,
    )


class BatchNode(Queued):
    """Puts up to so many items together, sooner where the most urgent one cannot wait."""

    def __init__(
        self,
        context: Context,
        name: str,
        size: int,
        *,
        wait_ns: int | None,
        policy: Policy,
        capacity: int,
    ) -> None:
        """Raises InvalidArgument for a size or a time out of range."""
        check_whole(f"{name}: size", size, 1)
        check_whole(f"{name}: capacity", capacity, 1)
        check_ns(f"{name}: wait_ns", wait_ns)
        super().__init__(context, name, policy=policy, capacity=max(size, capacity))
        self._size = size
        self._wait_ns = wait_ns
        self._first_ns = 0

    async def take(self, entry: Entry, item: Item) -> None:
        """Queues the item; the first item of a batch starts the waiting time."""
        if not self.queue:
            self._first_ns = self._context.now()
        await super().take(entry, item)

    async def run(self) -> None:
        """Put batches together until there are no more items."""
        while (found := await self.next()) is not None:
            held = [found]
            while len(held) < self._size:
                if self.queue:
                    held.append(self.queue.popleft())
                    self.room.notify()
                elif not await self._may_wait([item for _, item in held]):
                    break
            self._first_ns = self._context.now()
            await self._hand_on(held)
        await self.finish()

    async def _may_wait(self, items: Sequence[Item]) -> bool:
        """Waits for another item; returns False when none will come, or none in time."""
        if self.has_ended:
            return False
        left_ns = self._until_ns(items) - self._context.now()
        if left_ns <= 0:
            return False
        with anyio.move_on_after(left_ns / 1e9):
            await self.came.wait()
        return bool(self.queue)

    def _until_ns(self, items: Sequence[Item]) -> float:
        """Returns when the batch must go on, so that its most urgent item can still be in time."""
        deadlines = [item.deadline_ns for item in items if item.deadline_ns is not None]
        cost_ns = max((c.cost_ns for c in self.children if isinstance(c, CallNode)), default=0.0)
        patience = math.inf if self._wait_ns is None else self._first_ns + self._wait_ns
        return latest_start_ns(deadlines, cost_ns, patience)

    async def _hand_on(self, held: Sequence[_Held]) -> None:
        items, now = [], self._context.now()
        for entry, item in held:
            if item.deadline_ns is not None and now >= item.deadline_ns:
                entry.settle(Outcome.MISSED)
            elif not self.children:
                self.complete(entry, item)
            else:
                entry.settle(Outcome.MERGED)
                items.append(item)
        if items:
            await self.send(put_together(items, [item.data for item in items]))


class UnbatchNode(Node):
    """Gives each item of a batch its own part of the answer, with its own time and deadline."""

    async def take(self, entry: Entry, item: Item) -> None:
        """Take a batch apart."""
        try:
            parts = list(item.data)
            if len(parts) != len(item.parents):
                raise InvalidArgument(
                    f"{self.name}: {len(parts)} answers to a batch of {len(item.parents)}"
                )
        except Exception as error:
            await self.fail(entry, item, error)
            return
        if not self.children:
            self.complete(entry, item)
            return
        entry.settle(Outcome.PASSED)
        for parent, data in zip(item.parents, parts, strict=True):
            await self.send(parent.having(data))


class WindowNode(Node):
    """Overlapping windows: so many items each, a new one every so many items.

    None reaches over a gap of its source, behind which windows begin anew.
    """

    def __init__(self, context: Context, name: str, size: int, hop: int) -> None:
        """Raises InvalidArgument for sizes below 1."""
        super().__init__(context, name)
        check_whole(f"{name}: size", size, 1)
        check_whole(f"{name}: hop", hop, 1)
        self._size, self._hop = size, hop
        self._held: deque[_Held] = deque()
        self._used = 0
        self._skip = 0

    async def take(self, entry: Entry, item: Item) -> None:
        """Add an item to the windows that it is in."""
        if self._held and self._held[-1][1].epoch != item.epoch:
            self._give_up()
        if self._skip:
            self._skip -= 1
            entry.settle(Outcome.FILTERED)
            return
        self._held.append((entry, item))
        if len(self._held) < self._size:
            return
        items = [each for _, each in self._held]
        self._used = self._size
        for _ in range(min(self._hop, self._size)):
            self._release()
        self._skip = max(0, self._hop - self._size)
        if self.children:
            await self.send(put_together(items, [each.data for each in items]))

    async def finish(self) -> None:
        """Drops the items of windows that were never filled."""
        self._give_up()
        await super().finish()

    def _give_up(self) -> None:
        while self._held:
            self._release()
        self._skip = 0

    def _release(self) -> None:
        entry, item = self._held.popleft()
        if not self._used:
            entry.settle(Outcome.DROPPED)
            return
        self._used -= 1
        if self.children:
            entry.settle(Outcome.MERGED)
        else:
            self.complete(entry, item)


class RateNode(Node):
    """Lets at most so many items a second pass, by the times of their capture."""

    def __init__(self, context: Context, name: str, rate_hz: float) -> None:
        """Raises InvalidArgument for a rate that is not positive."""
        super().__init__(context, name)
        self.wanted_hz = rate_hz
        self._limit = RateLimit(rate_hz)

    async def take(self, entry: Entry, item: Item) -> None:
        """Passes the item on, or filters it out if it comes before the next one is due."""
        if self._limit.takes(item.captured_ns):
            await self.pass_on(entry, item)
        else:
            entry.settle(Outcome.FILTERED)


class _JoinInlet:
    """The inlet of one stream into a join."""

    def __init__(self, join: JoinNode, place: int) -> None:
        self._join, self._place = join, place

    async def put(self, item: Item) -> None:
        """Hands an item of this stream to the join."""
        await self._join.take_from(self._place, self._join.submit(item), item)

    async def end(self) -> None:
        """Tells the join that this stream has no more items."""
        await self._join.end_of(self._place)


class _Partner:
    """The items of a stream, by their times, that wait to be joined to the first stream."""

    def __init__(self) -> None:
        self.held: deque[_Held] = deque()
        self.used: set[int] = set()
        self.has_ended = False

    def latest_ns(self) -> float:
        """Returns the time before which no further item of this stream can have been captured."""
        if self.has_ended:
            return math.inf
        return self.held[-1][1].captured_ns if self.held else -math.inf

    def forget(self, before_ns: float, keep: int) -> None:
        """Drops all items before a time but the last, and the oldest beyond `keep` items."""
        while len(self.held) > 1 and self.held[1][1].captured_ns <= before_ns:
            self._drop()
        while len(self.held) > keep:
            self._drop()

    def clear(self) -> None:
        """Drops all items that are held."""
        while self.held:
            self._drop()

    def _drop(self) -> None:
        entry, item = self.held.popleft()
        is_used = id(item) in self.used
        self.used.discard(id(item))
        entry.settle(Outcome.MERGED if is_used else Outcome.DROPPED)


class JoinNode(Node):
    """Joins each item of the first stream to those of the others that belong to its time.

    An item waits until the other streams have gone past its time (but for "latest", which takes
    what is there), or until so many wait that the oldest is to be decided on with what is there.
    Streams take turns: while what one of them completed waits for room, the others wait, too.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        count: int,
        *,
        mode: JoinMode,
        tolerance_ns: int | None,
        capacity: int,
    ) -> None:
        """Raises InvalidArgument for an unknown mode and numbers out of range."""
        super().__init__(context, name)
        check_choice(f"{name}: mode", mode, ("nearest", "latest", "interpolated"))
        check_whole(f"{name}: capacity", capacity, 1)
        check_ns(f"{name}: tolerance_ns", tolerance_ns)
        self._mode = mode
        self._tolerance_ns = math.inf if tolerance_ns is None else tolerance_ns
        self._capacity = capacity
        self._first: deque[_Held] = deque()
        self._first_has_ended = False
        self._partners = [_Partner() for _ in range(count - 1)]
        self._turn = anyio.Lock(fast_acquire=True)

    def inlets(self) -> list[Inlet]:
        """Returns one inlet for each stream."""
        return [_JoinInlet(self, place) for place in range(len(self._partners) + 1)]

    async def take_from(self, place: int, entry: Entry, item: Item) -> None:
        """Take an item of one of the streams, and join what can be joined now."""
        async with self._turn:
            if self._is_over:
                entry.settle(Outcome.DROPPED)
                return
            if place == 0:
                self._first.append((entry, item))
            else:
                self._partners[place - 1].held.append((entry, item))
            await self._decide()

    async def end_of(self, place: int) -> None:
        """Notes that one of the streams has no more items, and joins what can be joined now."""
        async with self._turn:
            if place == 0:
                self._first_has_ended = True
            else:
                self._partners[place - 1].has_ended = True
            await self._decide()
            if self._first_has_ended and not self._first:
                await self.finish()

    async def finish(self) -> None:
        """Drops the items of other streams that no item was joined with."""
        for partner in self._partners:
            partner.clear()
        await super().finish()

    async def _decide(self) -> None:
        while self._first and self._is_ready(self._first[0][1]):
            entry, item = self._first.popleft()
            try:
                found = [self._found(partner, item.captured_ns) for partner in self._partners]
            except Exception as error:
                await self.fail(entry, item, error)
                continue
            for partner in self._partners:
                partner.forget(item.captured_ns, 2 * self._capacity)
            await self._hand_on(entry, item, found)
        for partner in self._partners:
            partner.forget(-math.inf, 2 * self._capacity)

    def _is_ready(self, item: Item) -> bool:
        if self._mode == "latest" or len(self._first) > self._capacity:
            return True
        return all(each.latest_ns() >= item.captured_ns for each in self._partners)

    def _found(self, partner: _Partner, at_ns: int) -> tuple[Any, tuple[Item, ...]] | None:
        """Returns the data of a stream at a time, and the items that it comes from.

        Returns None without a match.
        """
        items = [item for _, item in partner.held]
        before = [item for item in items if item.captured_ns <= at_ns][-1:]
        after = [] if self._mode == "latest" else [i for i in items if i.captured_ns > at_ns][:1]
        near = [i for i in before + after if abs(i.captured_ns - at_ns) <= self._tolerance_ns]
        if not near:
            return None
        if self._mode == "interpolated" and len(near) == 2:
            partner.used.update(map(id, near))
            return _between(near[0], near[1], at_ns), tuple(near)
        chosen = min(near, key=lambda item: abs(item.captured_ns - at_ns))
        if self._mode == "interpolated" and chosen.captured_ns != at_ns:
            return None
        partner.used.add(id(chosen))
        return chosen.data, (chosen,)

    async def _hand_on(
        self, entry: Entry, item: Item, found: Sequence[tuple[Any, tuple[Item, ...]] | None]
    ) -> None:
        there = [each for each in found if each is not None]
        if len(there) < len(found):
            entry.settle(Outcome.DROPPED)
            return
        if not self.children:
            self.complete(entry, item)
            return
        entry.settle(Outcome.MERGED)
        parents = (item, *(parent for _, items in there for parent in items))
        data = (item.data, *(each for each, _ in there))
        await self.send(
            Item(
                item.index,
                item.captured_ns,
                data,
                item.media_ns,
                item.deadline_ns,
                item.priority,
                parents,
                item.epoch,
            )
        )


def _between(before: Item, after: Item, at_ns: int) -> Any:
    """Returns the value at a time on the straight line between the data of two items."""
    share = (at_ns - before.captured_ns) / (after.captured_ns - before.captured_ns)
    return before.data + (after.data - before.data) * share
