"""Who waits until a deadline waits as long, also on a loop whose timers are early, as uvloop's."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from nnasync import errors, within
from nnasync.hal import Priority
from nnasync.serving.deadlines import set_in_time, until_passed
from nnasync.serving.places import Places

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have timers ring when half of the time is over."""
    real = anyio.move_on_after

    def half(delay: float | None, **how: Any) -> anyio.CancelScope:
        return real(None if delay is None else delay / 2, **how)

    monkeypatch.setattr(anyio, "move_on_after", half)


async def test_nobody_gives_up_before_the_deadline() -> None:
    deadline = within(ms=40)
    assert not await set_in_time(anyio.Event(), deadline)
    assert deadline.passed
    deadline = within(ms=40)
    await until_passed(deadline)
    assert deadline.passed


async def test_there_is_no_place_until_the_deadline_has_passed() -> None:
    places = Places(1)
    async with places.one(Priority.HIGH, None):
        deadline = within(ms=40)
        with pytest.raises(errors.MissedDeadline):
            async with places.one(Priority.HIGH, deadline):
                pass
        assert deadline.passed


async def test_what_was_set_is_in_time() -> None:
    event = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(set_in_time, event, None)
        await anyio.wait_all_tasks_blocked()
        event.set()
    assert await set_in_time(event, within(ms=-1))
