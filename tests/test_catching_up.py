"""Callbacks of a loop that hear of other threads, and of deadlines, in the midst of a turn."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from nnasync._core.clock import Watchdog
from nnasync._core.wakeup import Waiter, Wakeup, yield_now
from nnasync.tracing import Tracer
from tests.test_wakeup import in_thread

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


@pytest.mark.one_loop("trio's callbacks are no callbacks of asyncio")
async def test_a_callback_of_the_loop_catches_up() -> None:
    wakeup, seen, waiter = Wakeup.current(), list[str](), Waiter()

    async def wait() -> None:
        await waiter
        seen.append("went on")

    def fail() -> None:
        seen.append("failed")
        raise ValueError("one of them is broken")

    def callback() -> None:
        in_thread(lambda: wakeup.post(fail))
        in_thread(waiter.wake)
        in_thread(lambda: wakeup.post(lambda: wakeup.post(lambda: seen.append("later"))))
        wakeup.catch_up()
        seen.append("caught up")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await yield_now()
        wakeups_before = wakeup.wakeups
        asyncio.get_running_loop().call_soon(callback)
    while "later" not in seen:
        await yield_now()
    assert seen == ["failed", "went on", "caught up", "later"]
    assert wakeup.wakeups == wakeups_before + 1
    assert wakeup.hold(), "nothing holds them any more"
    wakeup.let_go()


class _ThreadlessWatchdog(Watchdog):
    """A watchdog whose thread comes too late for everything."""

    def _rouse(self) -> None:
        pass


@pytest.mark.one_loop("trio's callbacks are no callbacks of asyncio")
async def test_a_callback_that_catches_up_tells_of_deadlines() -> None:
    """Their own thread may be waiting for a core, or for the interpreter lock."""
    wakeup, seen, waiter = Wakeup.current(), list[str](), Waiter()
    watchdog, tracer = _ThreadlessWatchdog(), Tracer()
    second = Tracer(), _ThreadlessWatchdog()  # Those of another runtime on the same loop.

    async def wait() -> None:
        await waiter
        seen.append("went on")

    def callback() -> None:
        wakeup.catch_up()
        seen.append("caught up")

    wakeup.serve(tracer, watchdog)
    wakeup.serve(*second)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await yield_now()
            watchdog.arm(0, waiter.wake)
            asyncio.get_running_loop().call_soon(callback)
    finally:
        wakeup.serve_no_more(tracer)
        wakeup.serve_no_more(second[0])
    assert seen == ["went on", "caught up"]
    assert not watchdog.pending()


async def test_a_task_does_not_catch_up() -> None:
    wakeup, seen = Wakeup.current(), list[str]()
    in_thread(lambda: wakeup.post(lambda: seen.append("posted")))
    wakeup.catch_up()
    assert seen == []
    await yield_now()
    while not seen:
        await yield_now()
