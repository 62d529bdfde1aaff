"""The one rule for callbacks that raise, at every place that calls some."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import uvloop

import nnasync as nn
from nnasync._core.clock import Watchdog
from nnasync._core.wakeup import Waiter, Wakeup
from nnasync.errors import GeneralFailure
from nnasync.fences import Fence
from nnasync.tracing import Instrument, Tracer
from tests.rigs import GUARD_S, POOL, ROW, doubler, free

FATAL = [KeyboardInterrupt, SystemExit]


def raising(error: type[BaseException]) -> Callable[..., object]:
    """A callback that raises."""

    def callback(*_: object) -> object:
        raise error("of the callback")

    return callback


def on_thread(name: str, work: Callable[[], object]) -> BaseException | None:
    """Do it on a thread of this name; what it raises there."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join(GUARD_S)
    return raised[0] if raised else None


@pytest.mark.parametrize("error", FATAL)
@pytest.mark.parametrize("settle", [Fence.signal, lambda fence: fence.fail(GeneralFailure("x"))])
def test_a_fence_calls_all_back_before_it_raises(
    error: type[BaseException], settle: Callable[[Fence], object]
) -> None:
    fence, calls = Fence(), list[Fence]()
    fence.add_callback(calls.append)
    fence.add_callback(raising(error))
    fence.add_callback(calls.append)
    with pytest.raises(error, match="of the callback"):
        settle(fence)
    assert calls == [fence, fence]
    assert fence.done
    with pytest.raises(error, match="of the callback"):
        fence.add_callback(raising(error))


@pytest.mark.parametrize("error", [*FATAL, ValueError])
def test_a_thread_of_ours_logs_what_a_callback_raises(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    fence, calls = Fence(), list[Fence]()
    fence.add_callback(raising(error))
    fence.add_callback(calls.append)
    assert on_thread("nnasync-some", fence.signal) is None
    assert calls == [fence]
    assert f"{error.__name__}: of the callback" in caplog.text


@pytest.mark.parametrize("error", FATAL)
def test_a_thread_of_the_user_gets_what_a_callback_raises(error: type[BaseException]) -> None:
    fence = Fence()
    fence.add_callback(raising(error))
    assert isinstance(on_thread("mine", fence.signal), error)


@pytest.mark.parametrize("error", [*FATAL, ValueError])
def test_deadlines_go_on_after_a_callback_that_raises(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    watchdog, later = Watchdog(), threading.Event()
    try:
        watchdog.arm(0, raising(error))
        watchdog.arm(1, later.set)
        assert later.wait(GUARD_S)
    finally:
        watchdog.close()
    assert f"{error.__name__}: of the callback" in caplog.text


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("error", FATAL)
def test_a_loop_that_a_post_ended_can_run_again(
    error: type[BaseException], new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    loop, calls = new_loop(), list[str]()

    async def fatal() -> None:
        Wakeup.current().post(raising(error))
        Wakeup.current().post(lambda: calls.append("the next one"))
        await asyncio.Event().wait()

    async def woken() -> None:
        waiter = Waiter()
        threading.Thread(target=waiter.wake).start()
        await asyncio.wait_for(waiter.wait(), GUARD_S)

    task = loop.create_task(fatal())
    try:
        with pytest.raises(error, match="of the callback"):
            loop.run_until_complete(task)
        loop.run_until_complete(woken())
        assert calls == ["the next one"]
    finally:
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()


@pytest.mark.parametrize("error", [*FATAL, ValueError])
def test_a_hook_that_raises_goes_with_its_instrument(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Hooked(Instrument):
        def loop_woken(self, at_ns: int, callbacks: int) -> None:
            raise error("of the callback")

    tracer = Tracer([Hooked()])
    (hook,) = tracer.loop_woken
    raised = on_thread("mine", lambda: hook(0, 0))
    assert tracer.instruments == ()
    assert (type(raised) if raised else None) is (error if error in FATAL else None)
    assert (error in FATAL) == (caplog.text == "")
    assert on_thread("nnasync-some", lambda: hook(0, 0)) is None


@pytest.mark.anyio
@pytest.mark.parametrize("error", [*FATAL, ValueError])
async def test_workers_go_on_after_callbacks_and_hooks_that_raise(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Hooked(Instrument):
        def task_started(self, task: Any, begun_ns: int) -> None:
            raise error("of the hook")

    with anyio.fail_after(GUARD_S):
        async with nn.open_runtime(
            devices=["nnasync-reference"], options=POOL, instruments=[Hooked()]
        ) as rt:
            net = await rt.compile(doubler())
            for _ in range(3):
                gate = Fence()
                execution = await net.launch(ROW, wait_for=[gate])
                execution.fence.add_callback(raising(error))
                on_thread("mine", gate.signal)
                await execution.fence
                assert (await net(ROW)).tolist() == (2 * ROW).tolist()
            await free(rt)  # Who gave the answer lets go a little later.
            assert rt.statistics().workers.running == 0
            assert rt.statistics().workers.threads <= POOL.cores
    assert f"{error.__name__}: of the hook" in caplog.text
    assert caplog.text.count(f"{error.__name__}: of the callback") == 3
