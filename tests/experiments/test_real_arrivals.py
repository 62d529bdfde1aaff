"""Planned arrivals are told when they are due, in their order, until the run ends."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from nnasync._core.clock import now_ns
from nnasync.experiments.real_arrivals import Arrival, Planner
from nnasync.hal import NEVER_NS

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

MS = 1_000_000


def every(stream: int, period_ns: int, count: int | None = None) -> Iterator[Arrival]:
    number = 0
    while number != count:
        yield Arrival(number * period_ns, stream, stream)
        number += 1


async def told(planner: Planner, start_ns: int) -> list[tuple[int, Arrival]]:
    """What is told, and when."""
    found = []
    async for due in planner.arrivals(start_ns):
        found += [(now_ns() - start_ns, arrival) for arrival in due]
    return found


async def test_streams_are_merged_and_told_no_sooner_than_planned() -> None:
    planner = Planner(
        {0: every(0, 2 * MS, 6), 1: every(1, 3 * MS, 4)}, callers=0, end_ns=NEVER_NS, most=None
    )
    found = await told(planner, now_ns())
    planned = [arrival.planned_ns for _, arrival in found]
    assert planned == sorted([n * 2 * MS for n in range(6)] + [n * 3 * MS for n in range(4)])
    assert all(at_ns >= arrival.planned_ns for at_ns, arrival in found)


async def test_what_is_overdue_is_told_at_once_with_its_planned_time() -> None:
    """The loop was busy for the whole of it: nothing is left out, nothing is put off."""
    planner = Planner({0: every(0, MS)}, callers=0, end_ns=20 * MS, most=None)
    found = await told(planner, now_ns() - 1000 * MS)
    assert [arrival.planned_ns for _, arrival in found] == [n * MS for n in range(20)]


@pytest.mark.parametrize("most", [0, 1, 7])
async def test_it_ends_after_so_many(most: int) -> None:
    planner = Planner({0: every(0, 1000)}, callers=0, end_ns=NEVER_NS, most=most)
    assert len(await told(planner, now_ns())) == most


async def test_closed_streams_are_planned_while_it_runs() -> None:
    planner = Planner({}, callers=1, end_ns=NEVER_NS, most=4)
    start_ns = now_ns()
    planner.plan(Arrival(0, 3, 1))
    found = []
    async for due in planner.arrivals(start_ns):
        found += due
        planner.plan(Arrival(now_ns() - start_ns + MS, 3, 1))
    assert [arrival.stream for arrival in found] == [3] * 4


async def test_what_a_stream_raises_is_raised() -> None:
    def broken() -> Iterator[Arrival]:
        yield Arrival(0, 0, 1)
        yield Arrival(1, 0, 1)
        raise LookupError("line 3")

    planner = Planner({0: broken()}, callers=0, end_ns=NEVER_NS, most=None)
    with pytest.raises(LookupError, match="line 3"):
        await told(planner, now_ns())


async def test_cancelling_ends_the_thread() -> None:
    """The leak check of this module would find it."""
    planner = Planner({0: every(0, 10**12)}, callers=0, end_ns=NEVER_NS, most=None)
    found: list[tuple[int, Arrival]] = []
    with anyio.move_on_after(0.01) as scope:
        found = await told(planner, now_ns())
    assert scope.cancelled_caught
    assert found == []


@pytest.mark.one_loop("The thread that tells of arrivals does not begin.")
async def test_what_was_due_by_the_end_is_known_though_it_was_not_told() -> None:
    planner = Planner({0: every(0, 2 * MS)}, callers=0, end_ns=5 * MS, most=None)
    assert [arrival.planned_ns for arrival in planner.untold()] == [0, 2 * MS, 4 * MS]
    endless = Planner({0: every(0, 2 * MS)}, callers=0, end_ns=NEVER_NS, most=None)
    assert endless.untold() == []


async def test_nothing_is_told_twice() -> None:
    planner = Planner({0: every(0, 2 * MS)}, callers=0, end_ns=5 * MS, most=None)
    assert len(await told(planner, now_ns())) == 3
    assert planner.untold() == []
