"""Graphs of streams: what each stage does with items, and that no item is lost from sight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync.errors import BadState, InvalidArgument, MissedDeadline
from nnasync.streaming import Account, Graph, Item, Outcome, Policy
from tests import rigs
from tests.streaming.graph_rig import MS, Clock, Collected, check, items, recording

pytestmark = pytest.mark.anyio


async def test_a_chain_of_functions_calls_and_a_sink() -> None:
    graph, seen = Graph(), Collected()

    async def squared(value: int) -> int:
        await anyio.lowlevel.checkpoint()
        return value * value

    stream = recording(graph, 5).map(lambda value: value + 1).map(squared, concurrency=3)
    stream.filter(lambda value: value % 2 == 1, name="odd").sink(seen, name="seen")
    await graph.run()
    assert seen.data == [1, 9, 25]
    assert [item.index for item in seen.items] == [0, 2, 4]
    check(graph)
    account = graph.account()
    assert account.stages["odd"] == Account(submitted=5, passed=3, filtered=2)
    assert account.stages["seen"] == Account(submitted=3, completed=3)
    assert account.completed == 3
    assert "filtered" in str(account)


async def test_a_network_is_a_stage() -> None:
    graph, seen = Graph(), Collected()
    async with rigs.runtime(rigs.REFERENCE) as runtime:
        net = await runtime.compile(rigs.doubler())
        rows = [rigs.ROW * value for value in range(3)]
        source = graph.source(
            items(rows), policy=Policy.BLOCK, budget_ns=10**18, priority=nn.Priority.HIGH
        )
        source.map(net, name="net").sink(seen)
        await graph.run()
        await net.close()
    assert [np.array_equal(got, 2 * row) for got, row in zip(seen.data, rows, strict=True)] == [
        True
    ] * 3
    check(graph)


async def test_items_carry_deadline_and_priority_to_calls_that_take_them() -> None:
    graph, given = Graph(now=Clock()), []

    async def call(value: int, *, deadline: nn.Deadline, priority: nn.Priority) -> None:
        given.append((value, deadline.at_ns, priority))

    stream = recording(graph, 2, budget_ns=5 * MS, priority=nn.Priority.LOW)
    stream.map(call, name="first").map(lambda _: 7)
    stream.map(call, name="own", budget_ns=2 * MS, priority=nn.Priority.HIGH)
    await graph.run()
    assert sorted(given) == [
        (0, 2 * MS, nn.Priority.HIGH),
        (0, 5 * MS, nn.Priority.LOW),
        (1, 3 * MS, nn.Priority.HIGH),
        (1, 6 * MS, nn.Priority.LOW),
    ]


async def test_work_on_what_cannot_be_in_time_is_not_begun() -> None:
    clock, begun = Clock(), []
    graph = Graph(now=clock)

    async def slow(value: int) -> int:
        begun.append(value)
        clock.now_ns += 3 * MS
        return value

    stream = graph.source(
        items([0, 1, 2, 3], period_ns=0), budget_ns=4 * MS, policy=Policy.BLOCK, name="source"
    )
    stream.map(slow, name="slow").sink(lambda item: None, name="end")
    await graph.run()
    assert begun == [0, 1]
    assert graph.account().stages["slow"] == Account(submitted=4, passed=1, missed=3)
    check(graph)


async def test_a_call_may_say_itself_that_it_missed() -> None:
    graph = Graph()

    async def call(value: int) -> int:
        raise MissedDeadline("late")

    recording(graph, 3).map(call, name="call")
    await graph.run()
    assert graph.account().stages["call"] == Account(submitted=3, missed=3)
    assert graph.errors() == {}


@pytest.mark.parametrize(
    ("policy", "place", "answer"),
    [(Policy.NEWEST, -1, 9), (Policy.OLDEST, 0, 0), (Policy.BLOCK, -1, 9)],
)
async def test_what_a_busy_stage_loses_is_a_matter_of_policy(
    policy: Policy, place: int, answer: int
) -> None:
    graph, seen, gate = Graph(), Collected(), anyio.Event()
    fed = anyio.Event()

    async def call(value: int) -> int:
        await gate.wait()
        return value

    def count(value: int) -> int:
        if value == 9:
            fed.set()
        return value

    source = graph.source(items(range(10)), name="source", policy=policy)
    source.map(count).map(call, name="busy").sink(seen)
    async with graph:
        if policy is not Policy.BLOCK:
            await fed.wait()
        gate.set()
        await graph.drain()
    assert seen.data[place] == answer
    assert len(seen.data) == 10 if policy is Policy.BLOCK else len(seen.data) <= 2
    assert graph.account().stages["busy"].dropped == 10 - len(seen.data)
    check(graph)


async def test_one_item_may_become_many_or_none() -> None:
    graph, seen = Graph(), Collected()

    async def crops(value: int) -> list[str]:
        return [f"{value}{letter}" for letter in "abc"[:value]]

    stream = recording(graph, 4)
    stream.flat_map(crops, name="crops").sink(seen)
    stream.flat_map(lambda value: [value] * 2, name="twice").sink(lambda item: None, name="pairs")
    await graph.run()
    assert seen.data == ["1a", "2a", "2b", "3a", "3b", "3c"]
    assert graph.account().stages["crops"] == Account(submitted=4, passed=3, filtered=1)
    assert graph.account().stages["pairs"].completed == 8
    check(graph)


async def test_two_ways_by_a_predicate() -> None:
    graph, even, odd = Graph(), Collected(), Collected()
    first, second = recording(graph, 6).split(lambda value: value % 2 == 0, name="parity")
    first.sink(even)
    second.sink(odd)
    await graph.run()
    assert (even.data, odd.data) == ([0, 2, 4], [1, 3, 5])
    assert graph.account().stages["parity:true"].passed == 3
    check(graph)


async def test_results_are_iterated_while_it_runs() -> None:
    graph = Graph()
    output = recording(graph, 20).map(lambda value: -value).output(capacity=2)
    async with graph:
        assert [item.data async for item in output] == [-value for value in range(20)]
    assert graph.account().stages["output"] == Account(submitted=20, completed=20)
    check(graph)


async def test_who_leaves_early_cancels_what_is_under_way() -> None:
    graph = Graph()

    async def never(value: int) -> None:
        await anyio.sleep_forever()

    recording(graph, 5).map(never, name="never")
    async with graph:
        while graph.account().stages["never"].submitted < 2:
            await anyio.lowlevel.checkpoint()
    account = graph.account().stages["never"]
    assert account.cancelled == account.submitted >= 2
    check(graph)


async def test_a_time_limit_ends_a_graph() -> None:
    graph = Graph()

    async def never(value: int) -> None:
        await anyio.sleep_forever()

    recording(graph, 5).map(never)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await graph.run()
    assert scope.cancelled_caught
    check(graph)


async def test_sources_are_closed_with_the_graph() -> None:
    closed = []

    class Source:
        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Item:
            await anyio.sleep_forever()
            raise AssertionError

        async def aclose(self) -> None:
            await anyio.lowlevel.checkpoint()
            closed.append(True)

    graph = Graph()
    graph.source(Source(), name="waits")
    async with graph:
        await anyio.lowlevel.checkpoint()
    assert closed == [True]


async def test_a_graph_is_declared_and_then_runs_once() -> None:
    graph = Graph()
    stream = recording(graph, 1)
    async with graph:
        with pytest.raises(BadState, match="declared before it runs"):
            stream.map(abs)
    with pytest.raises(BadState, match="runs once"):
        await graph.run()


async def test_what_is_wrong_is_told_where_it_is_written() -> None:
    graph, other = Graph(), Graph()
    stream = recording(graph, 1)
    no_mode: Any = "closest"
    wrong: list[Any] = [
        lambda: stream.map(abs, on_error="ignore"),
        lambda: stream.map(anyio.sleep, capacity=0),
        lambda: stream.map(anyio.sleep, concurrency=0),
        lambda: stream.batch(0),
        lambda: stream.window(2, hop=0),
        lambda: stream.rate(0),
        lambda: graph.join(stream, stream, mode=no_mode),
        lambda: graph.merge(stream, recording(other, 1)),
        lambda: graph.merge(),
    ]
    for each in wrong:
        with pytest.raises(InvalidArgument):
            each()


async def test_a_lambda_that_returns_an_awaitable_is_refused() -> None:
    async def later(value: int) -> int:
        return value

    graph = Graph()
    recording(graph, 1).map(lambda value: later(value), name="lazy", on_error="graph")
    with pytest.raises(InvalidArgument, match="returns an awaitable"):
        await graph.run()


async def test_a_source_of_something_else_is_refused() -> None:
    async def numbers() -> Any:
        yield 7

    graph = Graph()
    graph.source(numbers(), name="numbers")
    with pytest.raises(InvalidArgument, match="numbers gives int"):
        await graph.run()


async def test_an_output_is_a_source_of_another_graph() -> None:
    first, second, seen = Graph(), Graph(), Collected()
    output = first.source(items(range(5)), policy=Policy.BLOCK).map(lambda x: -x).output()
    second.source(output, policy=Policy.BLOCK).sink(seen)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        tasks.start_soon(second.run)
    assert seen.data == [0, -1, -2, -3, -4]
    check(first)
    check(second)


async def test_an_output_ends_with_its_graph() -> None:
    """Also when the graph was cancelled: who waits for items hears of it."""

    async def endless() -> AsyncIterator[Item]:
        yield Item(0, 0, "only")
        await anyio.sleep_forever()

    first, second, seen = Graph(), Graph(), Collected()
    second.source(first.source(endless()).output()).sink(seen)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(second.run)
        async with first:
            await rigs.until(lambda: seen.data == ["only"])
    check(first)
    check(second)


@pytest.mark.one_loop("nothing is awaited")
async def test_an_option_that_no_stage_has() -> None:
    stream: Any = Graph().source(items([]))
    with pytest.raises(TypeError, match="no option concurency; it has name, .*concurrency"):
        stream.map(abs, concurency=2)
    with pytest.raises(TypeError, match=r"no option prepare.*stream\.map\(prepare\)\.map\(net\)"):
        stream.map(abs, prepare=abs)


async def test_stages_that_follow_one_another_have_statistics_as_of_one() -> None:
    clock = Clock()
    graph, seen = Graph(now=clock), Collected()

    async def slow(value: int) -> int:
        await anyio.lowlevel.checkpoint()
        clock.now_ns += (3 + 4 * (value == 1)) * MS
        if value == 2:
            raise MissedDeadline("it would be too late")
        return value

    stream = recording(graph, 4, budget_ns=5 * MS).filter(lambda value: value != 3, name="some")
    stream.map(slow, name="slow").sink(seen, name="seen")
    await graph.run()
    found = graph.statistics("numbers", "some", "slow", "seen")
    assert found.account == Account(submitted=4, completed=len(seen.data), missed=2, filtered=1)
    assert (found.deadlines, found.hits) == (3, 1)
    assert found.latency.count == 1
    with pytest.raises(InvalidArgument, match=r"\['nothing'\] is no stage of this graph: numbers"):
        graph.statistics("numbers", "nothing")
    with pytest.raises(InvalidArgument, match="nothing is no stage"):
        graph.statistics()


async def test_who_wants_to_know_is_told_what_became_of_each_item() -> None:
    told: list[tuple[str, int, str]] = []

    def on_settled(stage: str, item: Item, outcome: Outcome) -> None:
        told.append((stage, item.index, outcome.value))
        raise ValueError("disturbs nothing")

    graph = Graph(on_settled=on_settled)
    recording(graph, 2).filter(lambda value: value > 0, name="some").sink(Collected(), name="seen")
    await graph.run()
    assert told == [
        ("numbers", 0, "passed"),
        ("some", 0, "filtered"),
        ("numbers", 1, "passed"),
        ("some", 1, "passed"),
        ("seen", 1, "completed"),
    ]
    check(graph)


@pytest.mark.parametrize("is_awaited", [False, True])
async def test_a_source_that_never_waits_lets_others_run(is_awaited: bool) -> None:
    async def at_once() -> AsyncIterator[Item]:
        for index in range(100):
            yield Item(index, index, index)

    async def call(value: int) -> int:
        return value

    graph, seen, turns = Graph(), Collected(), []

    async def count_turns() -> None:
        while True:
            turns.append(len(seen.items))
            await anyio.lowlevel.checkpoint()

    stage = call if is_awaited else lambda value: value
    graph.source(at_once()).map(stage).sink(seen)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count_turns)
        await graph.run()
        tasks.cancel_scope.cancel()
    assert len(set(turns)) > 10
    assert len(seen.items) > 10
    check(graph)


async def test_a_cancellation_reaches_a_graph_whose_source_never_waits() -> None:
    graph = Graph()
    with anyio.CancelScope() as scope:

        async def endless() -> AsyncIterator[Item]:
            for index in range(1000):
                if index == 10:
                    scope.cancel()
                yield Item(index, index, index)

        graph.source(endless(), name="source").sink(lambda item: None)
        await graph.run()
    assert scope.cancelled_caught
    assert graph.account().stages["source"].submitted < 20


async def test_taking_that_is_cancelled_loses_no_item_of_an_output() -> None:
    graph = Graph()
    output = recording(graph, 3).output(name="output")
    async with graph:
        await graph.drain()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anext(output)
        assert graph.account().stages["output"] == Account(submitted=3, pending=3)
        assert [item.data async for item in output] == [0, 1, 2]
    check(graph)


async def test_statistics_count_what_a_source_lost_as_the_account_does() -> None:
    class Source:
        lost = 7

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Item:
            await anyio.sleep_forever()
            raise AssertionError

        def take_losses(self) -> dict[Outcome, int]:
            lost, self.lost = self.lost, 0
            return {Outcome.DROPPED: lost}

    graph = Graph()
    graph.source(Source(), name="camera").sink(lambda item: None, name="end")
    async with graph:
        assert graph.statistics("camera", "end").account.dropped == 7
        assert graph.account().stages["camera"].dropped == 7


class Sink:
    """A sink that may fail when it is closed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.data: list[Any] = []
        self.closed = 0
        self._error = error

    async def __call__(self, item: Item) -> None:
        assert not self.closed
        self.data.append(item.data)

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.closed += 1
        if self._error is not None:
            raise self._error


async def test_a_sink_of_several_streams_is_closed_behind_the_last() -> None:
    async def later() -> AsyncIterator[Item]:
        await anyio.wait_all_tasks_blocked()
        yield Item(0, 0, "later")

    graph, sink = Graph(), Sink()
    recording(graph, 1).sink(sink)
    graph.source(later(), policy=Policy.BLOCK).sink(sink)
    await graph.run()
    assert sink.data == [0, "later"]
    assert sink.closed == 1
    assert graph.errors() == {}
    check(graph)


@pytest.mark.parametrize("is_inside", [True, False])
async def test_a_cancellation_wins_over_an_error_of_closing_a_sink(is_inside: bool) -> None:
    graph = Graph()
    recording(graph, 1).sink(Sink(OSError("the disk is gone")), name="sink", on_error="graph")
    with anyio.CancelScope() as scope:
        if is_inside:
            async with graph:
                scope.cancel()
                await anyio.sleep_forever()
        else:
            scope.cancel()
            await graph.run()
    assert scope.cancelled_caught
    assert "disk is gone" in str(graph.errors()["sink"])
    check(graph)


@pytest.mark.one_loop("a task of asyncio is cancelled")
async def test_a_task_that_is_cancelled_ends_as_cancelled() -> None:
    async def silent() -> AsyncIterator[Item]:
        await anyio.sleep_forever()
        yield Item(0, 0, None)

    graph = Graph()
    graph.source(silent()).sink(Sink(OSError("the disk is gone")), on_error="graph")
    task = asyncio.create_task(graph.run())
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_an_error_of_closing_ends_what_the_policy_says() -> None:
    class Source:
        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Item:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            raise OSError("the cable was pulled")

    patient, seen = Graph(), Collected()
    patient.source(Source(), name="camera", on_error="stream").sink(seen)
    recording(patient, 3).sink(seen)
    await patient.run()
    assert seen.data == [0, 1, 2]
    assert "cable" in str(patient.errors()["camera"])
    graph = Graph()
    graph.source(Source(), name="camera")
    with pytest.raises(OSError, match="cable"):
        await graph.run()
    broken = Graph()
    recording(broken, 1).sink(Sink(OSError("the disk is gone")), on_error="graph")
    with pytest.raises(OSError, match="disk is gone"):
        await broken.run()


@pytest.mark.one_loop("nothing is awaited")
async def test_an_account_is_a_table_in_notebooks() -> None:
    graph = Graph()
    graph.source(items([1, 2])).sink(lambda item: None)
    await graph.run()
    table = graph.account()._repr_html_()
    assert "<th>stage</th><th>submitted</th>" in table
    assert "<td>sink</td><td>2</td>" in table
