"""A queue between a producer that cannot wait and an async consumer."""

from __future__ import annotations

import threading

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import DeviceUnavailable
from nnasync.streaming import Outcome
from nnasync.streaming.sources.mailbox import Mailbox

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("stall_guard")]


async def test_the_newest_are_kept_in_their_order() -> None:
    box: Mailbox[int] = Mailbox(3)
    for value in range(5):
        box.put(value)
    assert [await box.take() for _ in range(3)] == [2, 3, 4]
    assert box.take_losses() == {Outcome.DROPPED: 2}
    assert not any(box.take_losses().values())


async def test_a_thread_wakes_who_waits() -> None:
    box: Mailbox[int] = Mailbox(1000)

    def produce() -> None:
        for value in range(100):
            box.put(value)
        box.end()

    found = []
    with anyio.fail_after(20):
        threading.Thread(target=produce, daemon=True).start()
        while True:
            try:
                found.append(await box.take())
            except StopAsyncIteration:
                break
    assert found == list(range(100))


async def test_an_error_comes_behind_what_is_there_and_once() -> None:
    box: Mailbox[int] = Mailbox(3)
    box.put(1)
    box.end(DeviceUnavailable("gone"))
    box.end(DeviceUnavailable("gone again"))
    box.put(2)
    assert await box.take() == 1
    with pytest.raises(DeviceUnavailable, match="gone$"):
        await box.take()
    with pytest.raises(StopAsyncIteration):
        await box.take()
    assert box.take_losses() == {Outcome.DROPPED: 1}


async def test_a_wait_that_is_cancelled_loses_nothing() -> None:
    box: Mailbox[int] = Mailbox(3)
    with anyio.move_on_after(0.01):
        await box.take()
    box.put(1)
    assert await box.take() == 1


async def test_taking_what_is_there_lets_others_run_and_hears_a_cancellation() -> None:
    box: Mailbox[int] = Mailbox(3)
    for value in range(3):
        box.put(value)
    order: list[str] = []

    async def other() -> None:
        order.append("other")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        assert await box.take() == 0
        assert await box.take() == 1
        order.append("taken")
    assert order == ["other", "taken"]
    with anyio.CancelScope() as scope:
        scope.cancel()
        await box.take()
    assert await box.take() == 2


@pytest.mark.one_loop("nothing waits")
@given(st.integers(1, 4), st.lists(st.sampled_from(["put", "take", "lose", "discard"])))
async def test_every_value_is_taken_or_lost(capacity: int, events: list[str]) -> None:
    box: Mailbox[int] = Mailbox(capacity)
    put = taken = lost = waiting = 0
    for event in events:
        if event == "put":
            box.put(put)
            put, waiting = put + 1, min(waiting + 1, capacity)
        elif event == "take" and waiting:
            await box.take()
            taken, waiting = taken + 1, waiting - 1
        elif event == "lose":
            box.lose(Outcome.FAILED)
            put, lost = put + 1, lost + 1
        elif event == "discard":
            box.discard()
            waiting = 0
    assert put == taken + waiting + sum(box.losses.values())
    assert box.losses.get(Outcome.FAILED, 0) == lost
