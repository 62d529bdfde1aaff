"""Messages for a viewer: bounded, the newest of a kind, in order."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.cli.live.outbox import Outbox

pytestmark = pytest.mark.anyio


async def test_messages_come_in_order_and_the_newest_of_a_key_once() -> None:
    outbox = Outbox()
    outbox.put("tick 1", key="tick")
    outbox.put("one")
    outbox.put("two")
    outbox.put("tick 2", key="tick")
    assert [await outbox.next() for _ in range(3)] == ["one", "two", "tick 2"]
    assert (len(outbox), outbox.lost) == (0, 1)


@pytest.mark.one_loop("nothing is awaited")
@given(st.lists(st.sampled_from(["", "tick", "picture"]), max_size=200))
def test_a_viewer_who_does_not_read_costs_a_bounded_amount(keys: list[str]) -> None:
    outbox = Outbox(capacity=5)
    for number, key in enumerate(keys):
        outbox.put(str(number), key=key)
    assert len(outbox) <= 5 + 2
    assert len(outbox) + outbox.lost == len(keys)


async def test_who_waits_is_woken_by_a_message_and_by_the_end() -> None:
    outbox = Outbox()
    got: list[str | bytes | None] = []

    async def take() -> None:
        while got[-1:] != [None]:
            got.append(await outbox.next())

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await anyio.wait_all_tasks_blocked()
            outbox.put(b"picture", key="picture")
            await anyio.wait_all_tasks_blocked()
            outbox.close()
    outbox.put("too late")
    assert got == [b"picture", None]
    assert len(outbox) == 0
