"""The way from a source to the runtime: what is slow comes late, what is cut off is counted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from nnasync.cli.live.link import SLOW_NS, Link, StreamSettings
from nnasync.errors import DeviceUnavailable
from nnasync.hal import Priority
from nnasync.streaming import Item, Outcome

pytestmark = pytest.mark.anyio

MS = 1_000_000


class Source:
    """Gives items when the test says so."""

    def __init__(self) -> None:
        self.send, self._receive = anyio.create_memory_object_stream[Item | Exception](100)
        self.closed = False

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        try:
            item = await self._receive.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None
        if isinstance(item, Exception):
            raise item
        return item

    async def aclose(self) -> None:
        self.send.close()
        self._receive.close()
        self.closed = True


class Rig:
    """A link with a clock of its own, and what it told."""

    def __init__(self) -> None:
        self.source = Source()
        self.settings = StreamSettings(Priority.MEDIUM, 33 * MS)
        self.now_ns = 1000 * MS
        self.slept: list[float] = []
        self.gaps: list[tuple[int, int]] = []
        self.link = Link(
            self.source,
            self.settings,
            on_gap=lambda lost, gap_ns: self.gaps.append((lost, gap_ns)),
            now=lambda: self.now_ns,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def give(self, *indices: int) -> None:
        for index in indices:
            await self.source.send.send(Item(index, self.now_ns, None))
        await anyio.wait_all_tasks_blocked()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.link.pump)
            yield rig
            tasks.cancel_scope.cancel()
    await rig.link.aclose()
    assert rig.source.closed


async def test_items_get_the_deadline_and_priority_of_the_moment(rig: Rig) -> None:
    await rig.give(0, 1)
    first = await anext(rig.link)
    rig.settings.priority, rig.settings.budget_ns = Priority.LOW, 5 * MS
    second = await anext(rig.link)
    assert (first.priority, first.deadline_ns) == (Priority.MEDIUM, 1033 * MS)
    assert (second.priority, second.deadline_ns) == (Priority.LOW, 1005 * MS)
    assert rig.slept == []


async def test_slow_items_come_late_and_keep_the_time_of_their_capture(rig: Rig) -> None:
    rig.link.state = "slow"
    await rig.give(0)
    rig.now_ns += 50 * MS
    item = await anext(rig.link)
    assert item.captured_ns == 1000 * MS
    assert rig.slept == [(SLOW_NS - 50 * MS) / 1e9]


async def test_what_is_cut_off_is_counted_and_the_gap_is_told(rig: Rig) -> None:
    rig.link.state = "cut"
    await rig.give(0, 1, 2)
    rig.now_ns += 700 * MS
    rig.link.state = "normal"
    await rig.give(3)
    assert (await anext(rig.link)).index == 3
    assert rig.gaps == [(3, 700 * MS)]
    assert rig.link.take_losses() == {Outcome.DROPPED: 3}
    assert rig.link.take_losses() == {Outcome.DROPPED: 0}


async def test_a_runtime_that_does_not_take_items_costs_a_bounded_queue(rig: Rig) -> None:
    for start in range(0, 300, 100):
        await rig.give(*range(start, start + 100))
    assert rig.link.lost == 300 - 256
    assert (await anext(rig.link)).index == 44


async def test_the_end_and_the_error_of_a_source_come_behind_its_items(rig: Rig) -> None:
    await rig.give(0)
    await rig.source.send.send(DeviceUnavailable("the camera is gone"))
    await anyio.wait_all_tasks_blocked()
    assert (await anext(rig.link)).index == 0
    with pytest.raises(DeviceUnavailable, match="the camera is gone"):
        await anext(rig.link)
    with pytest.raises(StopAsyncIteration):
        await anext(rig.link)
