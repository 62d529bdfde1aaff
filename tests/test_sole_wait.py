"""A task goes on in the callback that ends its wait, where that is safe."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from nnasync._core.sole_wait import SoleWait
from nnasync._core.wakeup import Waiter

pytestmark = [pytest.mark.one_loop("it is about asyncio"), pytest.mark.anyio]

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


class Waiting:
    """A task that awaits something; it notes what happens."""

    def __init__(self, wait: SoleWait | Waiter) -> None:
        self.events: list[str] = []
        self._wait = wait
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        WHO.set("waiting")
        try:
            await self._wait
            assert asyncio.current_task() is self.task
            self.events.append(f"went on as {WHO.get()}")
        except asyncio.CancelledError:
            self.events.append("cancelled")
            raise


def in_callback(*calls: object) -> asyncio.Future[None]:
    """Have these be called in a callback of the loop; the future is done then."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def callback() -> None:
        for call in calls:
            assert callable(call)
            call()
        over.set_result(None)

    loop.call_soon(callback)
    return over


async def waiting() -> tuple[SoleWait, Waiting]:
    wait = SoleWait(loop=asyncio.get_running_loop())
    found = Waiting(wait)
    await asyncio.sleep(0)
    return wait, found


async def test_a_task_goes_on_at_once() -> None:
    wait, found = await waiting()
    events = found.events
    await in_callback(lambda: wait.end(at_once=True), lambda: events.append("behind"))
    assert events == ["went on as waiting", "behind"]
    assert found.task.done()
    assert WHO.get() == "nobody"
    wait.end(at_once=True)
    await found.task


async def test_a_task_goes_on_soon() -> None:
    wait, found = await waiting()
    wait.end(at_once=False)
    found.events.append("ahead")
    await found.task
    assert found.events == ["ahead", "went on as waiting"]


async def test_a_wait_that_is_canceled() -> None:
    wait, found = await waiting()
    assert found.task.cancel()
    assert not wait.cancel()
    wait.end(at_once=False)
    assert found.events == []
    with pytest.raises(asyncio.CancelledError):
        await found.task
    assert found.events == ["cancelled"]


async def test_a_task_that_is_canceled_while_it_is_about_to_go_on() -> None:
    wait, found = await waiting()
    wait.end(at_once=False)
    assert found.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await found.task


async def test_a_task_that_fails_does_not_hurt_the_callback() -> None:
    wait = SoleWait(loop=asyncio.get_running_loop())

    async def failing() -> None:
        await wait
        raise ValueError("mine")

    task = asyncio.get_running_loop().create_task(failing())
    await asyncio.sleep(0)
    await in_callback(lambda: wait.end(at_once=True))
    with pytest.raises(ValueError, match="mine"):
        await task


async def test_what_another_thread_wakes_goes_on_in_that_turn() -> None:
    first, second = Waiter(), Waiter()
    one, other = Waiting(first), Waiting(second)
    await asyncio.sleep(0)
    turns: list[int] = []

    def wake() -> None:
        first.wake()
        second.wake()

    loop = asyncio.get_running_loop()
    thread = threading.Thread(target=wake)
    thread.start()
    thread.join()  # The loop has not had a turn since: it hears of both at once.
    loop.call_soon(lambda: turns.append(len(one.events) + len(other.events)))
    await asyncio.gather(one.task, other.task)
    assert turns == [2]


async def test_what_a_callback_wakes_does_not_go_on_within_it() -> None:
    waiter = Waiter()
    found = Waiting(waiter)
    await asyncio.sleep(0)
    await in_callback(waiter.wake, lambda: found.events.append("the rest of the callback"))
    await found.task
    assert found.events == ["the rest of the callback", "went on as waiting"]
