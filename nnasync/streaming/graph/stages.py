"""Stages that take one item at a time: sources, calls, functions, filters, ends.

What is quick (a plain function, a filter) runs at once, on the task that brings the item. What is
awaited has a bounded queue and tasks of its own; results go on in the order of the items.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any

import anyio
import anyio.lowlevel

from nnasync._core.arguments import check_whole
from nnasync._core.clock import Deadline
from nnasync._core.wakeup import yield_now
from nnasync.errors import Cancelled, InvalidArgument, MissedDeadline
from nnasync.hal import Priority
from nnasync.streaming.account import Account, Entry, Outcome, StreamStatistics
from nnasync.streaming.arguments import (
    check_budget,
    check_call,
    check_priority,
    check_source,
    not_awaited,
)
from nnasync.streaming.graph.closing import Closing
from nnasync.streaming.graph.node import Context, ErrorPolicy, Node, Signal
from nnasync.streaming.item import Item, TakeLosses
from nnasync.streaming.stage import Policy, check_policy

_SMOOTHING = 0.2


class SourceNode(Node):
    """Feeds the items of a source in, each with its deadline and priority."""

    def __init__(
        self,
        context: Context,
        name: str,
        source: AsyncIterable[Item],
        *,
        closing: Closing,
        budget_ns: int | None,
        priority: Priority | None,
        on_error: ErrorPolicy,
    ) -> None:
        super().__init__(context, name, on_error)
        check_source(name, source)
        check_budget(name, budget_ns)
        check_priority(name, priority)
        self._source = source
        self._closing = closing
        self._take_losses: TakeLosses | None = getattr(source, "take_losses", None)
        self._budget_ns = budget_ns
        self._priority = priority

    async def run(self) -> None:
        """Feed until the source is at its end, fails, or nothing behind it takes more."""
        self._ask_for_less()
        try:
            try:
                async for item in self._source:
                    if self._is_over:
                        break
                    self._count_losses()
                    await self.put(self._dressed(item))
                    await yield_now()
            finally:
                await self._closing.leave()
        except Exception as error:
            await self.fail(None, None, error)
        finally:
            self._count_losses()
        await self.finish()

    def account(self) -> Account:
        """Returns where the items are now, with those that the source itself has lost."""
        self._count_losses()
        return super().account()

    def statistics(self) -> StreamStatistics:
        """Returns the statistics, with the items that the source itself has lost."""
        self._count_losses()
        return super().statistics()

    def _ask_for_less(self) -> None:
        """Asks the source to make no more items than a rate limit behind it will pass."""
        limit = getattr(self._source, "limit_rate", None)
        wanted = [getattr(child, "wanted_hz", None) for child in self.children]
        rates = [rate_hz for rate_hz in wanted if rate_hz is not None]
        if limit is not None and rates and len(rates) == len(wanted):
            limit(max(rates))

    def _count_losses(self) -> None:
        if self._take_losses is not None:
            for outcome, count in self._take_losses().items():
                self.ledger.lost(outcome, count)

    def _dressed(self, item: Item) -> Item:
        if not isinstance(item, Item):
            raise InvalidArgument(
                f"{self.name} gives {type(item).__name__}, not Item(index, captured_ns, data)"
            )
        if self._budget_ns is None and self._priority is None:
            return item
        deadline_ns = item.deadline_ns
        if self._budget_ns is not None:
            deadline_ns = item.captured_ns + self._budget_ns
        return Item(
            item.index,
            item.captured_ns,
            item.data,
            item.media_ns,
            deadline_ns,
            self._priority if item.priority is None else item.priority,
            item.parents,
            item.epoch,
        )


class FunctionNode(Node):
    """A plain function of the data: of one item one, or with `flat` any number.

    With `whole` it is given the item, and an end of the graph.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        function: Callable[[Any], Any],
        *,
        flat: bool = False,
        whole: bool = False,
        on_error: ErrorPolicy = "item",
    ) -> None:
        super().__init__(context, name, on_error)
        check_call(name, function)
        self._function = function
        self._flat = flat
        self._whole = whole

    async def take(self, entry: Entry, item: Item) -> None:
        """Applies the function to the item, and hands on or completes the result."""
        try:
            value = self._function(item if self._whole else item.data)
            if inspect.isawaitable(value):
                raise not_awaited(self.name, value)
            found = list(value) if self._flat else None
        except Exception as error:
            await self.fail(entry, item, error)
            return
        if found is None:
            await self.pass_on(entry, item.having(value))
        else:
            await spread(self, entry, item, found)


async def spread(node: Node, entry: Entry, item: Item, found: Iterable[Any]) -> None:
    """Hands on any number of results in place of the one item that they were made from."""
    children = [item.having(data) for data in found]
    if not children:
        entry.settle(Outcome.FILTERED)
    elif not node.children:
        node.complete(entry, item)
    else:
        entry.settle(Outcome.PASSED)
        for child in children:
            await node.send(child)


class FilterNode(Node):
    """Lets items pass of which a predicate is true; `wanted` decides on the whole item."""

    def __init__(
        self,
        context: Context,
        name: str,
        wanted: Callable[[Item], object],
        on_error: ErrorPolicy = "item",
    ) -> None:
        super().__init__(context, name, on_error)
        self._wanted = wanted

    async def take(self, entry: Entry, item: Item) -> None:
        """Passes the item on if the predicate is true of it, and filters it out otherwise."""
        try:
            is_wanted = _answer(self.name, self._wanted(item))
        except Exception as error:
            await self.fail(entry, item, error)
            return
        if is_wanted:
            await self.pass_on(entry, item)
        else:
            entry.settle(Outcome.FILTERED)


def _answer(name: str, value: object) -> bool:
    """What a predicate says; an awaitable would always be true."""
    if inspect.isawaitable(value):
        raise not_awaited(name, value)
    return bool(value)


class SplitNode(Node):
    """Hands an item on in one of two ways, by a predicate of its data."""

    def __init__(
        self,
        context: Context,
        name: str,
        predicate: Callable[[Any], bool],
        on_error: ErrorPolicy = "item",
    ) -> None:
        super().__init__(context, name, on_error)
        self._predicate = predicate
        self.ways = Node(context, f"{name}:true"), Node(context, f"{name}:false")
        self.children = [way.inlet() for way in self.ways]

    async def take(self, entry: Entry, item: Item) -> None:
        """Hands the item on to one of the two ways, as the predicate says."""
        try:
            is_first = _answer(self.name, self._predicate(item.data))
        except Exception as error:
            await self.fail(entry, item, error)
            return
        entry.settle(Outcome.PASSED)
        await self.ways[0 if is_first else 1].put(item)


class Queued(Node):
    """A node with a bounded queue, whose tasks take items out."""

    def __init__(
        self,
        context: Context,
        name: str,
        *,
        policy: Policy,
        capacity: int,
        on_error: ErrorPolicy = "item",
    ) -> None:
        """Raises InvalidArgument for a capacity below 1."""
        super().__init__(context, name, on_error)
        check_whole(f"{name}: capacity", capacity, 1)
        check_policy(name, policy)
        self.policy = policy
        self.capacity = capacity
        self.queue: deque[tuple[Entry, Item]] = deque()
        self.came, self.room = Signal(), Signal()
        self.has_ended = False

    async def take(self, entry: Entry, item: Item) -> None:
        """Queue the item, as the policy says where there is no room."""
        if self.policy is Policy.BLOCK:
            while len(self.queue) >= self.capacity:
                await self.room.wait()
                if self.is_refused(entry):
                    return
        elif len(self.queue) >= self.capacity:
            if self.policy is Policy.OLDEST:
                entry.settle(Outcome.DROPPED)
                return
            self.queue.popleft()[0].settle(Outcome.DROPPED)
        self.queue.append((entry, item))
        self.came.notify()

    async def end(self) -> None:
        """Counts a producer out; after the last one the tasks end behind what is queued."""
        self._parents -= 1
        if self._parents <= 0:
            self.has_ended = True
            self.came.notify()

    async def finish(self) -> None:
        """Fails what is still queued when an error has ended everything behind this node."""
        if not self._is_over:
            for entry, _ in self.queue:
                entry.settle(Outcome.FAILED)
            self.queue.clear()
            self.has_ended = True
            self.came.notify()
            self.room.notify()
        await super().finish()

    def close(self) -> None:
        """Settles what is pending as cancelled, and wakes the tasks that wait for items."""
        super().close()
        self.queue.clear()
        self.has_ended = True
        self.came.notify()

    async def next(self) -> tuple[Entry, Item] | None:
        """Waits for the next item and its entry; returns None when there will be none."""
        while not self.queue:
            if self.has_ended:
                return None
            await self.came.wait()
        found = self.queue.popleft()
        self.room.notify()
        return found


class CallNode(Queued):
    """Something that is awaited for each item: a network, a burst, a coroutine function."""

    def __init__(
        self,
        context: Context,
        name: str,
        call: Callable[..., Awaitable[Any]],
        *,
        policy: Policy,
        capacity: int,
        concurrency: int = 1,
        budget_ns: int | None = None,
        priority: Priority | None = None,
        flat: bool = False,
        closing: Closing | None = None,
        on_error: ErrorPolicy = "item",
    ) -> None:
        """With `closing` it is a sink, which is given items; raises InvalidArgument for numbers."""
        super().__init__(context, name, policy=policy, capacity=capacity, on_error=on_error)
        check_whole(f"{name}: concurrency", concurrency, 1)
        check_budget(name, budget_ns)
        check_priority(name, priority)
        self.cost_ns = 0.0
        self._call = call
        self._concurrency = concurrency
        self._budget_ns = budget_ns
        self._priority = priority
        self._flat = flat
        self._closing = closing
        self._takes = _options_of(call)
        self._begun = self._handed_on = 0
        self._turn = Signal()

    async def run(self) -> None:
        """Answer items, several at a time, until there are no more."""
        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(self._concurrency):
                    tasks.start_soon(self._work)
        finally:
            await self._leave_sink()
        await self.finish()

    async def _leave_sink(self) -> None:
        """Has a sink finish what it writes, whatever ended the graph."""
        if self._closing is not None:
            try:
                await self._closing.leave()
            except Exception as error:
                await self.fail(None, None, error)

    async def _work(self) -> None:
        while (found := await self.next()) is not None:
            entry, item = found
            number, self._begun = self._begun, self._begun + 1
            value = await self._value(entry, item)
            while self._handed_on != number:
                await self._turn.wait()
            try:
                if entry.outcome is None and not self.is_refused(entry):
                    await self._hand_on(entry, item, value)
            finally:
                self._handed_on += 1
                self._turn.notify()

    async def _value(self, entry: Entry, item: Item) -> Any:
        """Returns the result of the call; where there is none, it has settled the entry."""
        began = self._context.now()
        deadline_ns = self._deadline_ns(item)
        if deadline_ns is not None and began >= deadline_ns:
            entry.settle(Outcome.MISSED)
            return None
        try:
            data = item.data if self._closing is None else item
            value = await self._call(data, **self._options(item, deadline_ns))
            value = list(value) if self._flat else value
        except MissedDeadline:
            entry.settle(Outcome.MISSED)
        except Cancelled:
            entry.settle(Outcome.CANCELLED)
        except Exception as error:
            await self.fail(entry, item, error)
        else:
            ended = self._context.now()
            self.cost_ns += _SMOOTHING * (ended - began - self.cost_ns)
            if deadline_ns is not None and ended > deadline_ns:
                entry.settle(Outcome.MISSED)
            return value
        return None

    async def _hand_on(self, entry: Entry, item: Item, value: Any) -> None:
        if self._flat:
            await spread(self, entry, item, value)
        else:
            await self.pass_on(entry, item.having(value))

    def _deadline_ns(self, item: Item) -> int | None:
        """The earlier of the item's deadline and this stage's own."""
        if self._budget_ns is None:
            return item.deadline_ns
        own_ns = item.captured_ns + self._budget_ns
        return own_ns if item.deadline_ns is None else min(own_ns, item.deadline_ns)

    def _options(self, item: Item, deadline_ns: int | None) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if deadline_ns is not None and "deadline" in self._takes:
            options["deadline"] = Deadline(deadline_ns)
        priority = self._priority if self._priority is not None else item.priority
        if priority is not None and "priority" in self._takes:
            options["priority"] = priority
        return options


def _options_of(call: Callable[..., object]) -> frozenset[str]:
    """Returns which of a network's options (`deadline`, `priority`) a callable takes by name."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return frozenset(each.name for each in parameters if each.kind in kinds)


class OutputNode(Queued):
    """An end of the graph from which a program takes the items, by iterating."""

    def __aiter__(self) -> OutputNode:
        return self

    async def __anext__(self) -> Item:
        """The next item that is in time; raises StopAsyncIteration behind the last."""
        await anyio.lowlevel.checkpoint()
        while (found := await self.next()) is not None:
            entry, item = found
            self.complete(entry, item)
            if entry.outcome is Outcome.COMPLETED:
                return item
        raise StopAsyncIteration
