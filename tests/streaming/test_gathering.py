"""Stages that make one item of several: batches, windows, joins, rates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnasync as nn
from nnasync.streaming import Account, Graph, Item, Policy
from tests.streaming.graph_rig import MS, Clock, Collected, check, items

pytestmark = pytest.mark.anyio


def stream_of(graph: Graph, data: Any, name: str = "source", **options: Any) -> Any:
    """A source of which nothing is lost."""
    period_ns = options.pop("period_ns", MS)
    start_ns = options.pop("start_ns", 0)
    return graph.source(
        items(data, period_ns=period_ns, start_ns=start_ns),
        name=name,
        policy=Policy.BLOCK,
        **options,
    )


async def test_batches_are_full_but_for_the_last() -> None:
    graph, seen = Graph(), Collected()
    stream_of(graph, range(7)).batch(3, capacity=7).sink(seen)
    await graph.run()
    assert seen.data == [[0, 1, 2], [3, 4, 5], [6]]
    assert [item.captured_ns for item in seen.items] == [0, 3 * MS, 6 * MS]
    assert graph.account().stages["batch"] == Account(submitted=7, merged=7)
    check(graph)


async def test_answers_to_a_batch_go_back_to_its_items() -> None:
    graph, seen = Graph(), Collected()

    async def negated(values: list[int]) -> list[int]:
        return [-value for value in values]

    stream_of(graph, range(5), budget_ns=10**15).batch(2).map(negated).unbatch().sink(seen)
    await graph.run()
    assert seen.data == [0, -1, -2, -3, -4]
    assert [item.index for item in seen.items] == [0, 1, 2, 3, 4]
    check(graph)


async def test_an_answer_of_another_length_fails() -> None:
    graph = Graph()
    stream_of(graph, range(4)).batch(2).map(lambda values: [0]).unbatch(name="apart")
    await graph.run()
    assert graph.account().stages["apart"].failed == 2
    assert "1 answers to a batch of 2" in str(graph.errors()["apart"])


async def test_a_batch_that_is_not_full_goes_when_it_has_to() -> None:
    """The source stays open and gives nothing more: only time can end the waiting."""
    graph, gone = Graph(), anyio.Event()

    async def three_and_no_more() -> Any:
        for index in range(3):
            yield Item(index, 0, index)
        await anyio.sleep_forever()

    source = graph.source(three_and_no_more(), name="source", policy=Policy.BLOCK)
    output = source.batch(8, wait_ns=MS).output()
    async with graph:
        with anyio.fail_after(30):
            async for item in output:
                assert item.data == [0, 1, 2]
                gone.set()
                break
    assert gone.is_set()
    check(graph)


async def test_a_batch_goes_before_its_most_urgent_item_is_late() -> None:
    graph = Graph()

    async def one_and_no_more() -> Any:
        yield Item(0, graph.now(), "urgent")
        await anyio.sleep_forever()

    source = graph.source(one_and_no_more(), name="source", budget_ns=50 * MS)
    seen = Collected()
    source.batch(8).sink(seen)

    def settled() -> int:
        account = graph.account().stages["batch"]
        # On a busy machine the moment may pass while the batch is put together.
        return account.merged + account.missed

    async with graph:
        with anyio.fail_after(30):
            while not settled():
                await anyio.lowlevel.checkpoint()
    assert seen.data in ([["urgent"]], [])
    check(graph)


async def test_late_items_are_not_batched() -> None:
    clock = Clock()
    graph, seen = Graph(now=clock), Collected()

    def late(value: int) -> int:
        clock.now_ns = 5 * MS
        return value

    stream = stream_of(graph, [0, 1], budget_ns=5 * MS, period_ns=2 * MS)
    stream.map(late).batch(2, capacity=2, name="batch").sink(seen)
    await graph.run()
    assert seen.data == [[1]]
    assert graph.account().stages["batch"] == Account(submitted=2, missed=1, merged=1)


async def test_the_most_urgent_item_lends_a_batch_its_deadline() -> None:
    graph, seen = Graph(now=Clock()), Collected()
    high = stream_of(graph, "a", "high", budget_ns=9 * MS, priority=nn.Priority.HIGH)
    low = stream_of(graph, "b", "low", budget_ns=50 * MS, priority=nn.Priority.LOW)
    graph.merge(high, low).batch(2).sink(seen)
    await graph.run()
    (item,) = seen.items
    assert (item.deadline_ns, item.priority) == (9 * MS, nn.Priority.HIGH)
    assert sorted(parent.data for parent in item.parents) == ["a", "b"]
    check(graph)


@pytest.mark.parametrize(
    ("size", "hop", "windows", "account"),
    [
        (3, 1, ["abc", "bcd", "cde"], Account(submitted=5, merged=5)),
        (2, 2, ["ab", "cd"], Account(submitted=5, merged=4, dropped=1)),
        (2, 3, ["ab", "de"], Account(submitted=5, merged=4, filtered=1)),
        (6, 1, [], Account(submitted=5, dropped=5)),
    ],
)
async def test_windows(size: int, hop: int, windows: list[str], account: Account) -> None:
    graph, seen = Graph(), Collected()
    stream_of(graph, "abcde").window(size, hop=hop, name="windows").sink(seen)
    await graph.run()
    assert ["".join(data) for data in seen.data] == windows
    assert graph.account().stages["windows"] == account
    check(graph)


async def test_windows_begin_anew_behind_a_gap() -> None:
    async def broken() -> AsyncIterator[Item]:
        for index, data in enumerate("abcdefg"):
            yield Item(index, index * MS, data, epoch=int(data > "c"))

    graph, seen = Graph(), Collected()
    source = graph.source(broken(), policy=Policy.BLOCK)
    source.window(2, hop=2, name="windows").sink(seen)
    await graph.run()
    assert ["".join(data) for data in seen.data] == ["ab", "de", "fg"]
    assert [item.epoch for item in seen.items] == [0, 1, 1]
    assert graph.account().stages["windows"] == Account(submitted=7, merged=6, dropped=1)
    check(graph)


async def test_windows_behind_a_join_begin_anew_behind_a_gap() -> None:
    async def broken_off() -> AsyncIterator[Item]:
        for index in range(4):
            yield Item(index, index * MS, index, epoch=index // 2)

    graph, seen = Graph(), Collected()
    streams = [graph.source(broken_off(), policy=Policy.BLOCK) for _ in range(2)]
    graph.join(*streams).window(2).sink(seen)
    await graph.run()
    assert [item.epoch for item in seen.items] == [0, 1]
    assert seen.data == [[(0, 0), (1, 1)], [(2, 2), (3, 3)]]
    check(graph)


async def test_a_join_does_not_end_before_what_it_hands_on_has_room() -> None:
    graph, seen, may_go = Graph(), Collected(), anyio.Event()
    first_gave, first_may_end = anyio.Event(), anyio.Event()

    async def first() -> AsyncIterator[Item]:
        for index in range(3):
            yield Item(index, index, index)
        first_gave.set()
        await first_may_end.wait()

    async def second() -> AsyncIterator[Item]:
        await first_gave.wait()
        yield Item(0, 100, "partner")

    async def call(data: Any) -> Any:
        if not may_go.is_set():
            await may_go.wait()
        return data

    one = graph.source(first(), name="first", policy=Policy.BLOCK)
    two = graph.source(second(), name="second", policy=Policy.BLOCK)
    graph.join(one, two, name="join").map(call, name="slow").sink(seen)
    async with graph:
        await anyio.wait_all_tasks_blocked()
        first_may_end.set()
        await anyio.wait_all_tasks_blocked()
        may_go.set()
        await graph.drain()
    assert [item.index for item in seen.items] == [0, 1, 2]
    assert graph.account().stages["slow"] == Account(submitted=3, passed=3)
    check(graph)


async def test_a_rate_is_held_by_the_times_of_capture() -> None:
    graph, seen = Graph(), Collected()
    stream_of(graph, range(30), period_ns=10 * MS).rate(25, name="rate").sink(seen)
    await graph.run()
    assert seen.data == [0, 4, 8, 12, 16, 20, 24, 28]
    assert graph.account().stages["rate"] == Account(submitted=30, passed=8, filtered=22)


async def joined(mode: Any, **options: Any) -> tuple[list[Any], Graph]:
    """Pictures every 4 ms with sound every 3 ms."""
    graph, seen = Graph(), Collected()
    pictures = stream_of(graph, [0, 40, 80, 120], "pictures", period_ns=4 * MS)
    sounds = stream_of(graph, [0, 30, 60, 90, 120, 150], "sounds", period_ns=3 * MS)
    graph.join(pictures, sounds, mode=mode, name="join", **options).sink(seen)
    await graph.run()
    check(graph)
    return seen.data, graph


async def test_a_join_takes_what_was_captured_nearest() -> None:
    data, graph = await joined("nearest")
    assert data == [(0, 0), (40, 30), (80, 90), (120, 120)]
    assert graph.account().stages["join"] == Account(submitted=10, merged=8, dropped=2)


async def test_a_join_may_take_what_is_between() -> None:
    assert (await joined("interpolated"))[0] == [(0, 0), (40, 40), (80, 80), (120, 120)]


async def test_without_a_partner_in_time_an_item_is_dropped() -> None:
    assert (await joined("nearest", tolerance_ns=0))[0] == [(0, 0), (120, 120)]


async def test_the_latest_is_what_is_there() -> None:
    graph, seen = Graph(), Collected()

    async def sounds() -> Any:
        for index in range(3):
            yield Item(index, index * MS, f"sound {index}")

    ready = anyio.Event()

    async def pictures() -> Any:
        await ready.wait()
        yield Item(0, 10 * MS, "picture")

    first = graph.source(pictures(), name="pictures", policy=Policy.BLOCK)

    def last(data: str) -> str:
        if data == "sound 2":
            ready.set()
        return data

    second = graph.source(sounds(), name="sounds", policy=Policy.BLOCK).map(last)
    graph.join(first, second, mode="latest").sink(seen)
    await graph.run()
    assert seen.data in ([("picture", "sound 2")], [("picture", "sound 1")])
    check(graph)


async def test_a_stream_that_stands_still_does_not_hold_a_join_for_ever() -> None:
    graph, seen = Graph(), Collected()

    async def one_sound() -> Any:
        yield Item(0, 0, "sound")
        await anyio.sleep_forever()

    pictures = stream_of(graph, range(6), "pictures")
    sounds = graph.source(one_sound(), name="sounds")
    graph.join(pictures, sounds, capacity=2, name="join").sink(seen)
    async with graph:
        while graph.account().stages["join"].submitted < 7:
            await anyio.lowlevel.checkpoint()
    assert seen.data[:1] == [(0, "sound")]
    assert len(seen.data) >= 3
    check(graph)


async def test_data_that_cannot_be_interpolated_fails_and_the_join_goes_on() -> None:
    graph, seen = Graph(), Collected()
    first = stream_of(graph, range(3), "first", period_ns=2 * MS, start_ns=MS)
    second = stream_of(graph, "abcd", "second", period_ns=2 * MS)
    graph.join(first, second, mode="interpolated", name="join").sink(seen)
    await graph.run()
    assert seen.data == []
    assert graph.account().stages["join"].failed == 3
    check(graph)


@given(
    first=st.lists(st.integers(0, 50), max_size=12),
    second=st.lists(st.integers(0, 50), max_size=12),
    capacity=st.integers(1, 4),
    mode=st.sampled_from(["nearest", "latest", "interpolated"]),
)
def test_a_join_accounts_for_all(
    first: list[int], second: list[int], capacity: int, mode: Any
) -> None:
    graph = Graph(now=Clock())

    async def timed(times: list[int]) -> Any:
        for index, at_ms in enumerate(sorted(times)):
            await anyio.lowlevel.checkpoint()
            yield Item(index, at_ms * MS, float(at_ms))

    one = graph.source(timed(first), name="one", policy=Policy.BLOCK)
    two = graph.source(timed(second), name="two", policy=Policy.BLOCK)
    seen = Collected()
    graph.join(one, two, mode=mode, capacity=capacity, name="join").sink(seen)
    anyio.run(graph.run)
    check(graph)
    assert graph.account().stages["join"].submitted == len(first) + len(second)
    if mode == "interpolated":
        assert all(a == pytest.approx(b) for a, b in seen.data)
