"""Random graphs with errors, losses and cancellation: no item is ever lost from sight."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
from hypothesis import given
from hypothesis import strategies as st

from nnasync.streaming import Graph, Policy, Stream
from tests.streaming.graph_rig import MS, check, items

KINDS = (
    "map",
    "call",
    "filter",
    "flat_map",
    "flat_call",
    "split",
    "batch",
    "unbatched",
    "window",
    "rate",
    "merge",
    "join",
    "output",
)
ONE_FOR_ONE = {"map", "call", "filter", "rate"}


class RandomGraph:
    """A graph that is made step by step from whatever streams there are."""

    def __init__(self, policy: Policy, lengths: list[int], on_error: Any) -> None:
        self.graph = Graph()
        self.policy = policy
        self.on_error = on_error
        self.sources = [
            self.graph.source(items(range(n)), name="source", policy=policy) for n in lengths
        ]
        self.streams: list[Stream] = list(self.sources)
        self.edges: list[tuple[str, str]] = []
        """Pairs of stages where the second is given all that passes the first."""

    def add(self, kind: str, place: int, other: int, number: int) -> None:
        """One more stage of this kind behind some of the streams."""
        before = self.streams[place % len(self.streams)]
        partner = self.streams[other % len(self.streams)]
        made = list(self._made(kind, before, partner, number % 4 + 1))
        if kind in ONE_FOR_ONE:
            self.edges.append((before.name, made[0].name))
        self.streams += made

    def _made(self, kind: str, before: Stream, partner: Stream, number: int) -> tuple[Stream, ...]:
        def value(data: Any) -> int:
            found = data if isinstance(data, int) else len(data)
            if found == number + 2:
                raise ValueError("a value that is not liked")
            return found + 1

        async def call(data: Any) -> int:
            for _ in range(number):
                await anyio.lowlevel.checkpoint()
            return value(data)

        async def several(data: Any) -> list[int]:
            return [await call(data)] * (number - 1)

        options: Any = {"on_error": self.on_error}
        match kind:
            case "map":
                return (before.map(value, **options),)
            case "call":
                return (before.map(call, concurrency=number, capacity=number, **options),)
            case "filter":
                return (before.filter(lambda data: value(data) % 2 == 0, **options),)
            case "flat_map":
                return (before.flat_map(lambda data: [value(data)] * number, **options),)
            case "flat_call":
                return (before.flat_map(several, concurrency=number, **options),)
            case "split":
                return before.split(lambda data: value(data) % 2 == 0, **options)
            case "batch":
                return (before.batch(number, wait_ns=MS),)
            case "unbatched":
                return (before.batch(number, wait_ns=MS).map(list).unbatch(),)
            case "window":
                return (before.window(number, hop=2),)
            case "rate":
                return (before.rate(400),)
            case "merge":
                return (self.graph.merge(before, partner),)
            case "join":
                return (self.graph.join(before, partner, capacity=number),)
        before.sink(lambda item: None)
        return ()

    def check(self, *, ran_to_its_end: bool) -> None:
        """Each stage's account is whole, and what passes a stage is what comes in behind it."""
        check(self.graph)
        stages = self.graph.account().stages
        if ran_to_its_end:
            assert [name for name, account in stages.items() if account.cancelled] == []
        for before, after in self.edges:
            if stages[before].passed:
                assert stages[after].submitted <= stages[before].passed
            if ran_to_its_end and before.startswith("source"):
                assert stages[after].submitted == stages[before].passed


shapes = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)),
    max_size=8,
)
lengths = st.lists(st.integers(0, 12), min_size=1, max_size=3)


@given(shapes, lengths, st.sampled_from(Policy), st.sampled_from(["item", "stream"]))
def test_every_item_is_accounted_for(
    shape: Any, counts: list[int], policy: Policy, on_error: Any
) -> None:
    made = RandomGraph(policy, counts, on_error)
    for step in shape:
        made.add(*step)

    async def run() -> None:
        with anyio.fail_after(60):
            await made.graph.run()

    anyio.run(run)
    made.check(ran_to_its_end=True)
    submitted = [made.graph.account().stages[source.name].submitted for source in made.sources]
    assert submitted == counts


@given(shapes, lengths, st.sampled_from(Policy), st.integers(0, 60), st.booleans())
def test_also_where_it_is_cancelled_at_any_moment(
    shape: Any, counts: list[int], policy: Policy, moment: int, ends_on_error: bool
) -> None:
    made = RandomGraph(policy, counts, "graph" if ends_on_error else "item")
    for step in shape:
        made.add(*step)

    async def run() -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel, scope)
                try:
                    await made.graph.run()
                except ValueError:
                    assert ends_on_error
                tasks.cancel_scope.cancel()

    async def cancel(scope: anyio.CancelScope) -> None:
        for _ in range(moment):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    anyio.run(run, backend="trio" if moment % 2 else "asyncio")
    made.check(ran_to_its_end=False)
