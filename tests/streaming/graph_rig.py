"""Sources, stages and checks for tests of graphs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import anyio
import anyio.lowlevel

from nnasync.streaming import Account, Graph, Item, Policy

MS = 1_000_000


class Clock:
    """Time that a test moves on."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


async def items(
    data: Iterable[Any], *, period_ns: int = MS, start_ns: int = 0, clock: Clock | None = None
) -> AsyncIterator[Item]:
    """A source of these data, captured one period after the other."""
    for index, each in enumerate(data):
        captured_ns = start_ns + index * period_ns
        if clock is not None:
            clock.now_ns = max(clock.now_ns, captured_ns)
        await anyio.lowlevel.checkpoint()
        yield Item(index, captured_ns, each, captured_ns)


def recording(graph: Graph, count: int, **options: Any) -> Any:
    """A source of numbers of which none is lost."""
    return graph.source(items(range(count)), name="numbers", policy=Policy.BLOCK, **options)


class Collected:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.items: list[Item] = []

    def __call__(self, item: Item) -> None:
        self.items.append(item)

    @property
    def data(self) -> list[Any]:
        return [item.data for item in self.items]


def settled(account: Account) -> int:
    """All that ended in a bucket."""
    lost = account.missed + account.dropped + account.cancelled + account.failed
    return lost + account.completed + account.passed + account.filtered + account.merged


def check(graph: Graph) -> None:
    """Every item of every stage is in exactly one bucket, and none is pending."""
    for name, account in graph.account().stages.items():
        assert account.pending == 0, name
        assert account.submitted == settled(account), name
