"""Places for runs of one model: who gets the next, who gives up, and that none is lost."""

from __future__ import annotations

import anyio
import pytest

from nnasync import MissedDeadline, Priority, within
from nnasync.serving.places import Places

pytestmark = pytest.mark.anyio

LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH


async def test_those_that_wait_go_by_priority_deadline_and_arrival() -> None:
    places, order = Places(1), []
    soon, late = within(s=100), within(s=200)

    async def run(name: str, priority: Priority, deadline: object) -> None:
        async with places.one(priority, deadline):  # type: ignore[arg-type]
            order.append(name)

    async with anyio.create_task_group() as tasks, places.one(MEDIUM, None):
        for name, priority, deadline in (
            ("low", LOW, soon),
            ("first", MEDIUM, None),
            ("late", MEDIUM, late),
            ("soon", MEDIUM, soon),
            ("second", MEDIUM, None),
            ("high", HIGH, None),
        ):
            tasks.start_soon(run, name, priority, deadline)
            await anyio.wait_all_tasks_blocked()
        assert order == []
    assert order == ["high", "soon", "late", "first", "second", "low"]


async def test_who_gives_up_leaves_the_place_to_others() -> None:
    places = Places(1)
    async with places.one(MEDIUM, None):
        with pytest.raises(MissedDeadline):
            async with places.one(HIGH, within(ms=1)):
                pass
        with anyio.move_on_after(0.001) as scope:
            async with places.one(HIGH, None):
                pass
        assert scope.cancelled_caught
    with anyio.fail_after(5):
        async with places.one(LOW, None):
            pass


async def test_a_place_that_was_given_to_one_who_is_cancelled_is_passed_on() -> None:
    places = Places(1)
    scope, got_it = anyio.CancelScope(), anyio.Event()

    async def cancelled() -> None:
        with scope:
            async with places.one(HIGH, None):
                pass

    async def patient() -> None:
        async with places.one(LOW, None):
            got_it.set()

    async with anyio.create_task_group() as tasks:
        async with places.one(MEDIUM, None):
            tasks.start_soon(cancelled)
            tasks.start_soon(patient)
            await anyio.wait_all_tasks_blocked()
        scope.cancel()  # The place is its own by now, and it has not gone on yet.
        with anyio.fail_after(5):
            await got_it.wait()
