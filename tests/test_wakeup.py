"""From any thread into a running loop, coalesced; cancellation checks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import anyio
import pytest
import trio

from nnasync import errors
from nnasync._core import wakeup as wakeups
from nnasync._core.clock import Watchdog
from nnasync._core.lag import Lag
from nnasync._core.wakeup import (
    Waiter,
    Wakeup,
    cancellation_pending,
    checkpoint_if_cancelled,
    yield_now,
)
from nnasync.tracing import Timeline, Tracer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


def in_thread(function: Callable[[], object]) -> None:
    """Run a function to its end in another thread, while the loop of this one stands still."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


async def test_there_is_one_wakeup_per_loop() -> None:
    first = Wakeup.current()
    await yield_now()
    assert Wakeup.current() is first
    assert first.is_trio == (type(first._home()).__name__ == "TrioToken")


async def test_posts_are_coalesced_into_one_wake_up() -> None:
    wakeup = Wakeup.current()
    before = wakeup.statistics()
    seen: list[int] = []
    done = anyio.Event()

    def post_many() -> None:
        for i in range(100):
            assert wakeup.post(lambda i=i: seen.append(i))  # type: ignore[misc]
        assert wakeup.post(done.set)

    in_thread(post_many)
    assert seen == []
    await done.wait()
    assert seen == list(range(100))
    after = wakeup.statistics()
    assert after.wakeups - before.wakeups == 1
    assert after.posted - before.posted == 101


async def test_what_is_posted_while_the_queue_drains_comes_a_turn_later() -> None:
    wakeup = Wakeup.current()
    before = wakeup.wakeups
    done = anyio.Event()
    turns: list[int] = []

    def again() -> None:
        turns.append(wakeup.wakeups)
        wakeup.post(done.set if len(turns) == 3 else again)

    wakeup.post(again)
    await done.wait()
    assert turns == [before + 1, before + 2, before + 3]


async def test_posts_to_a_loop_that_holds_them_wake_it_not() -> None:
    wakeup, seen = Wakeup.current(), list[int]()
    before = wakeup.statistics()

    def fail() -> None:
        seen.append(1)
        raise ValueError("one of them is broken")

    assert wakeup.hold()
    assert not wakeup.hold(), "they are held already"
    in_thread(lambda: wakeup.post(fail))
    in_thread(lambda: wakeup.post(lambda: seen.append(2)))
    await yield_now()
    assert seen == []
    wakeup.let_go()
    assert seen == [1, 2]
    assert wakeup.statistics().wakeups == before.wakeups
    # From now on they wake it.
    done = anyio.Event()
    in_thread(lambda: wakeup.post(done.set))
    assert not wakeup.hold(), "the loop is about to hear of it"
    await done.wait()
    assert wakeup.statistics().wakeups == before.wakeups + 1


async def test_what_is_posted_while_a_loop_lets_go_comes_a_turn_later() -> None:
    wakeup, done = Wakeup.current(), anyio.Event()
    before = wakeup.wakeups
    assert wakeup.hold()
    wakeup.post(lambda: wakeup.post(done.set))
    wakeup.let_go()
    assert not done.is_set()
    await done.wait()
    assert wakeup.wakeups == before + 1


async def test_what_is_behind_a_callback_that_means_the_whole_program_comes_all_the_same() -> None:
    """Whoever goes on with the loop after that hears of the rest, and of what is posted later."""
    wakeup, seen = Wakeup.current(), list[str]()

    def exits() -> None:
        raise SystemExit

    assert wakeup.hold()
    for callback in (exits, lambda: seen.append("behind")):
        wakeup.post(callback)
    with pytest.raises(SystemExit):
        wakeup.let_go()
    assert seen == []
    done = anyio.Event()
    in_thread(lambda: wakeup.post(done.set))
    await done.wait()
    assert seen == ["behind"]
    assert wakeup.hold(), "nothing holds them any more"
    wakeup.let_go()


async def test_posts_from_many_threads_all_arrive() -> None:
    wakeup = Wakeup.current()
    seen = 0
    done = anyio.Event()

    def count() -> None:
        nonlocal seen
        seen += 1
        if seen == 4000:
            done.set()

    def post_some() -> None:
        for _ in range(500):
            assert wakeup.post(count)

    threads = [threading.Thread(target=post_some) for _ in range(8)]
    for thread in threads:
        thread.start()
    with anyio.fail_after(30):
        await done.wait()
    for thread in threads:
        thread.join()


async def test_a_raising_callback_is_logged_and_the_next_one_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = anyio.Event()

    def broken() -> None:
        raise ValueError("broken callback")

    with caplog.at_level(logging.ERROR, logger="nnasync._core.wakeup"):
        Wakeup.current().post(broken)
        Wakeup.current().post(done.set)
        await done.wait()
    assert "broken callback" in caplog.text


async def test_tracers_hear_of_wake_ups() -> None:
    """Those of two runtimes that have the same loop."""
    wakeup = Wakeup.current()
    timelines = Timeline(), Timeline()
    tracers = [Tracer([timeline]) for timeline in timelines]
    for tracer in tracers:
        wakeup.serve(tracer, Watchdog())
    done = anyio.Event()

    def post() -> None:
        wakeup.post(lambda: None)
        wakeup.post(done.set)

    in_thread(post)
    await done.wait()
    for tracer in tracers:
        wakeup.serve_no_more(tracer)
    for timeline in timelines:
        (span,) = timeline.spans
        assert span.args == {"callbacks": 2}


async def test_a_tracer_hears_of_no_wake_up_where_there_is_none() -> None:
    wakeup = Wakeup.current()
    timeline, seen = Timeline(), list[int]()
    tracer = Tracer([timeline])
    wakeup.serve(tracer, Watchdog())
    assert wakeup.hold()
    in_thread(lambda: wakeup.post(lambda: seen.append(1)))
    wakeup.let_go()
    wakeup.serve_no_more(tracer)
    assert seen == [1]
    assert not timeline.spans


async def test_a_waiter_is_woken_from_another_thread() -> None:
    waiter = Waiter()
    async with anyio.create_task_group() as group:
        group.start_soon(waiter.wait)
        await anyio.wait_all_tasks_blocked()
        assert not waiter.woken
        in_thread(waiter.wake)
        in_thread(waiter.wake)
    assert waiter.woken


async def test_a_waiter_is_woken_from_its_own_thread() -> None:
    waiter = Waiter()
    before = Wakeup.current().wakeups
    async with anyio.create_task_group() as group:
        group.start_soon(waiter.wait)
        await anyio.wait_all_tasks_blocked()
        waiter.wake()
    assert Wakeup.current().wakeups == before


async def test_a_waiter_woken_before_does_not_suspend() -> None:
    waiter = Waiter()
    waiter.wake()
    steps: list[str] = []
    async with anyio.create_task_group() as group:
        group.start_soon(yield_now)
        await waiter.wait()
        steps.append("awaited")
        assert steps == ["awaited"]
    await waiter.wait()


async def test_a_waiter_woken_by_a_thread_before_the_wait() -> None:
    waiter = Waiter()
    in_thread(waiter.wake)
    with anyio.fail_after(30):
        await waiter.wait()


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    waiter = Waiter()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await waiter.wait()
    assert scope.cancelled_caught
    before = Wakeup.current().statistics()
    in_thread(waiter.wake)
    waiter.wake()
    assert Wakeup.current().statistics() == before


async def test_a_wake_that_crosses_a_cancellation_is_harmless() -> None:
    for _ in range(50):
        waiter = Waiter()
        async with anyio.create_task_group() as group:
            group.start_soon(waiter.wait)
            await anyio.wait_all_tasks_blocked()
            thread = threading.Thread(target=waiter.wake)
            thread.start()
            group.cancel_scope.cancel()
        thread.join()
        await yield_now()


async def test_cancellation_pending_sees_scopes_and_shields() -> None:
    assert not cancellation_pending()
    with anyio.CancelScope() as outer:
        assert not cancellation_pending()
        outer.cancel()
        assert cancellation_pending()
        with anyio.CancelScope(shield=True):
            with anyio.CancelScope():
                assert not cancellation_pending()
                await checkpoint_if_cancelled()
        await checkpoint_if_cancelled()
        pytest.fail("a cancelled scope was not noticed")
    assert outer.cancelled_caught
    assert not cancellation_pending()
    await checkpoint_if_cancelled()


@pytest.mark.parametrize("backend_known", [True, False], ids=["known", "changed"])
async def test_our_view_of_scopes_is_that_of_anyio(
    monkeypatch: pytest.MonkeyPatch, backend_known: object
) -> None:
    if not backend_known:
        monkeypatch.setitem(sys.modules, "anyio._backends._asyncio", ModuleType("changed"))
    with anyio.CancelScope() as outer, anyio.CancelScope(shield=True) as middle:
        for scope in (None, outer, middle):
            if scope is not None:
                scope.cancel()
            view, truth = cancellation_pending(), anyio.current_effective_deadline()
            assert view == (truth == -math.inf)
            assert view == (scope is middle)
        await yield_now()
    assert middle.cancelled_caught
    assert outer.cancel_called


async def test_checkpoint_does_not_suspend_when_nothing_is_cancelled() -> None:
    ran: list[str] = []

    async def other() -> None:
        ran.append("other")

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        await checkpoint_if_cancelled()
        assert ran == []
        await yield_now()
        await yield_now()
        assert ran == ["other"]


async def test_yield_now_delivers_a_cancellation() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await yield_now()
        await yield_now()
    assert scope.cancelled_caught


def test_a_native_cancel_of_asyncio_is_delivered() -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        assert not cancellation_pending()
        task.cancel()
        assert cancellation_pending()
        with pytest.raises(asyncio.CancelledError):
            await checkpoint_if_cancelled()
        await checkpoint_if_cancelled()
        task.uncancel()
        assert not cancellation_pending()

    asyncio.run(main())


def test_without_anyio_s_backend_there_are_no_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> bool:
        return cancellation_pending()

    monkeypatch.delitem(sys.modules, "anyio._backends._asyncio", raising=False)
    assert not asyncio.run(main())


def test_outside_a_loop_is_a_bad_state() -> None:
    with pytest.raises(errors.BadState, match="event loop"):
        Wakeup.current()
    with pytest.raises(errors.BadState):
        Waiter()


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_posting_to_a_closed_loop_is_dropped(library: str) -> None:
    async def main() -> Wakeup:
        return Wakeup.current()

    called: list[None] = []
    wakeup = anyio.run(main, backend=library)
    assert not wakeup.post(lambda: called.append(None))
    assert not wakeup.post(lambda: called.append(None))
    assert called == []
    assert len(wakeup._queue) == 0


def test_posting_to_a_loop_closed_with_a_wake_up_under_way_is_dropped() -> None:
    loop = asyncio.new_event_loop()

    async def main() -> Wakeup:
        return Wakeup.current()

    wakeup = loop.run_until_complete(main())
    assert wakeup.post(lambda: None)
    loop.close()
    assert not wakeup.post(lambda: None)
    assert len(wakeup._queue) == 0


def test_loops_are_not_kept_alive() -> None:
    async def main() -> tuple[weakref.ref[Any], Wakeup]:
        wakeup = Wakeup.current()
        return weakref.ref(asyncio.get_running_loop()), wakeup

    loop, wakeup = asyncio.run(main())
    gc.collect()
    assert loop() is None
    assert not wakeup.post(lambda: None)


def test_a_loop_that_moves_to_another_thread_is_found_there() -> None:
    loop = asyncio.new_event_loop()

    async def main() -> Wakeup:
        waiter = Waiter()
        in_thread(waiter.wake)
        await waiter.wait()
        wakeup = Wakeup.current()
        assert wakeup.thread_id == threading.get_ident()
        return wakeup

    here = loop.run_until_complete(main())
    there: list[Wakeup] = []
    in_thread(lambda: there.append(loop.run_until_complete(main())))
    again = loop.run_until_complete(main())
    loop.close()
    assert here is there[0] is again


def test_trio_as_a_guest_of_asyncio_is_taken_for_trio() -> None:
    async def trio_main(loop: asyncio.AbstractEventLoop) -> bool:
        waiter = Waiter()
        in_thread(waiter.wake)
        await waiter.wait()
        waiter = Waiter()
        loop.call_later(0.01, waiter.wake)
        with trio.fail_after(10):
            await waiter.wait()
        await yield_now()
        await checkpoint_if_cancelled()
        return Wakeup.current().is_trio

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            trio_main,
            loop,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=done.set_result,
        )
        outcome = await done
        assert not Wakeup.current().is_trio
        return bool(outcome.unwrap())

    assert asyncio.run(main())


# -- threads and shields


async def test_work_in_a_thread_of_its_own_answers_or_raises() -> None:
    here = threading.get_ident()
    assert await wakeups.in_thread(threading.get_ident, "test-work") != here

    def fail() -> None:
        raise LookupError(threading.current_thread().name)

    with pytest.raises(LookupError, match="test-work"):
        await wakeups.in_thread(fail, "test-work")


async def test_a_shield_keeps_a_cancelled_scope_out() -> None:
    told: list[str] = []
    with anyio.CancelScope() as scope:
        try:
            scope.cancel()
            await anyio.lowlevel.checkpoint()
        finally:
            with wakeups.shield():
                await anyio.lowlevel.checkpoint()
                told.append("inside")
    assert told == ["inside"]


@pytest.mark.one_loop
async def test_without_scopes_there_is_nothing_to_shield(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "_backend", lambda: None)
    assert isinstance(wakeups.shield(), contextlib.nullcontext)


@pytest.mark.one_loop("trio has no callbacks outside of tasks")
async def test_nothing_disturbs_what_a_callback_of_the_loop_does() -> None:
    seen: list[bool] = []
    mine, over = Wakeup.current(), anyio.Event()

    def look() -> None:
        seen.append(mine.is_undisturbed())
        over.set()

    asyncio.get_running_loop().call_soon(look)
    await over.wait()
    assert seen == [True]


async def test_a_wakeup_knows_its_loop() -> None:
    mine = Wakeup.current()
    assert mine.is_current()
    seen: list[bool] = []

    async def elsewhere() -> None:
        seen.append(mine.is_current())
        seen.append(Wakeup.current().is_current())

    in_thread(lambda: asyncio.run(elsewhere()))
    in_thread(lambda: trio.run(elsewhere))
    assert seen == [False, True, False, True]

    def outside() -> None:
        with pytest.raises(errors.BadState, match="no event loop"):
            mine.is_current()

    in_thread(outside)
    assert mine.is_current()


async def test_the_lag_is_measured_and_work_that_would_not_be_heard_of_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time_ns = [1_000_000_000]
    monkeypatch.setattr(wakeups, "now_ns", lambda: time_ns[0])
    wakeup = Wakeup.current()
    wakeup.lag = Lag()

    async def turn(length_ns: int) -> None:
        done = anyio.Event()
        in_thread(lambda: wakeup.post(done.set))
        time_ns[0] += length_ns
        await done.wait()

    for _ in range(3):
        wakeup.check_heard(time_ns[0] + 1)
        await turn(2_000_000_000)
    before = wakeup.statistics().posted
    with pytest.raises(errors.MissedDeadlinePersistent, match="the event loop hears") as caught:
        wakeup.check_heard(time_ns[0] + 1_000_000_000)
    assert caught.value.reason == "admission"
    wakeup.check_heard(time_ns[0] + 2_000_000_000)
    assert wakeup.statistics().posted == before + 1
    await yield_now()
    await yield_now()
    wakeup.check_heard(time_ns[0] + 1)
