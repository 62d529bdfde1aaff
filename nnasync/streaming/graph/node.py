"""What all nodes of a graph are: a place where items come in, an account, and ways on.

An item that comes in is pending at this node until it ends in one bucket of its account: it passed
on to the next nodes, was completed where the graph ends, or was lost, with the reason. What a node
hands on is submitted at the next one, so the account of a graph tells of every item where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal, Protocol

import anyio

from nnasync._core.arguments import check_choice
from nnasync.errors import NNError
from nnasync.streaming.account import Account, Entry, Ledger, Outcome, StreamStatistics
from nnasync.streaming.item import Item

logger = logging.getLogger(__name__)

ErrorPolicy = Literal["item", "stream", "graph"]
"""What an error ends: the item, everything behind the stage, or the graph, which raises it."""

OnSettled = Callable[[str, Item, Outcome], object]
"""Is told the name of a stage, an item, and what became of it there."""


class Context(Protocol):
    """What nodes need of the graph that they are in."""

    now: Callable[[], int]
    on_settled: OnSettled | None

    def fail(self, error: Exception) -> None:
        """End the graph with this error, unless it has one."""


class Inlet(Protocol):
    """Takes the items that one producer puts into a node."""

    async def put(self, item: Item) -> None:
        """Take an item; waits where the node has no room and nothing may be lost."""

    async def end(self) -> None:
        """Notes that one of those who put items in has no more."""


class Signal:
    """Wakes all who wait for it; costs nothing while nobody does."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def notify(self) -> None:
        """Wake who waits now."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Wait for the next notification."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


class Node:
    """A node that hands items on at once, on the task that brings them."""

    def __init__(self, context: Context, name: str, on_error: ErrorPolicy = "item") -> None:
        """Raises InvalidArgument for an unknown `on_error`."""
        check_choice(f"{name}: on_error", on_error, ("item", "stream", "graph"))
        self.name = name
        self.ledger = Ledger(None if context.on_settled is None else self._tell_settled)
        self.children: list[Inlet] = []
        self.error: Exception | None = None
        self._context = context
        self._on_error = on_error
        self._parents = 0
        self._is_over = False

    def account(self) -> Account:
        """Returns where the items of this node are now."""
        return self.ledger.account

    def statistics(self) -> StreamStatistics:
        """Account, latencies and met deadlines of this node."""
        return self.ledger.statistics()

    def inlet(self) -> Inlet:
        """A way in for one more node."""
        self._parents += 1
        return self

    async def put(self, item: Item) -> None:
        """Take an item."""
        entry = self.submit(item)
        if not self.is_refused(entry):
            await self.take(entry, item)

    async def take(self, entry: Entry, item: Item) -> None:
        """Processes the item, and settles its entry in the end."""
        await self.pass_on(entry, item)

    async def end(self) -> None:
        """Notes that one producer has no more items; after the last one the node finishes."""
        self._parents -= 1
        if self._parents <= 0:
            await self.finish()

    async def finish(self) -> None:
        """Hands on what is left, and tells the next nodes that nothing follows; is called once."""
        if not self._is_over:
            self._is_over = True
            for child in self.children:
                await child.end()

    async def run(self) -> None:
        """Runs the node's own work beside that of the other nodes; this node has none."""

    def close(self) -> None:
        """Settle what is pending as cancelled."""
        self.ledger.close()

    def submit(self, item: Item) -> Entry:
        """Enter an item into the account."""
        return self.ledger.submit(has_deadline=item.deadline_ns is not None, item=item)

    def _tell_settled(self, entry: Entry) -> None:
        item, outcome, tell = entry.item, entry.outcome, self._context.on_settled
        if tell is None or outcome is None or not isinstance(item, Item):
            return
        try:
            tell(self.name, item, outcome)
        except Exception:
            logger.exception("on_settled raised for item %d of %s", item.index, self.name)

    def is_refused(self, entry: Entry) -> bool:
        """Returns whether the item fails because an error has ended everything behind this node."""
        if self._is_over:
            entry.settle(Outcome.FAILED)
        return self._is_over

    async def pass_on(self, entry: Entry, item: Item) -> None:
        """Hands `item` on, and settles the entry of the item from which it was made."""
        if not self.children:
            self.complete(entry, item)
            return
        entry.settle(Outcome.PASSED)
        await self.send(item)

    async def send(self, item: Item) -> None:
        """Hand an item to the next nodes."""
        for child in self.children:
            await child.put(item)

    def complete(self, entry: Entry, item: Item) -> None:
        """Settles an item that reached an end of the graph, as completed or as missed."""
        now = self._context.now()
        is_late = item.deadline_ns is not None and now > item.deadline_ns
        outcome = Outcome.MISSED if is_late else Outcome.COMPLETED
        entry.settle(outcome, latency_ns=now - item.captured_ns)

    async def fail(self, entry: Entry | None, item: Item | None, error: Exception) -> None:
        """Handles an error as `on_error` of this node says, and logs it once."""
        if entry is not None:
            entry.settle(Outcome.FAILED)
        if self.error is None:
            self.error = error
            where = "" if item is None else f" at item {item.index}"
            # An error of nnasync says it all; that of a program is found by its traceback.
            traced = None if isinstance(error, NNError) else error
            logger.warning("%s failed%s: %r", self.name, where, error, exc_info=traced)
        if self._on_error == "graph":
            self._context.fail(error)
        elif self._on_error == "stream":
            await self.finish()


def named(call: Any, otherwise: str) -> str:
    """Returns a name for a stage that runs this callable."""
    name = str(getattr(call, "name", None) or getattr(call, "__name__", None) or "<")
    return otherwise if name.startswith("<") else name
