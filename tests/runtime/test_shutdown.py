"""Closing a runtime whose devices hang, fail, or find no thread: it ends all the same."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import nnasync as nn
from nnasync._core.runtime import shutdown
from tests.rigs import GUARD_S, POOL, ROW, SpitefulEngine, doubler, until
from tests.versions.rig import Fake11, Fake13

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

Ending = Callable[[], Awaitable[None]]


@pytest.fixture(autouse=True)
async def patience(anyio_backend: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """What hangs is given up soon, and no test waits for ever."""
    monkeypatch.setattr(shutdown, "CLOSE_PATIENCE_S", 0.01)
    with anyio.fail_after(GUARD_S):
        yield


def closed_by(device: Any, ending: Ending) -> Any:
    """A device whose `close` does this."""
    device.close = ending
    return device


async def hang() -> None:
    """Wait for ever."""
    await anyio.sleep_forever()


async def hang_shielded() -> None:
    """Wait for ever, deaf to scopes that are cancelled around it."""
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()


async def swallow() -> None:
    """Take the cancellation for the end."""
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        return


async def expire() -> None:
    """Fail with an error of its own, which looks like that of a limit."""
    raise TimeoutError("the device's own")


async def fail() -> None:
    """Fail as drivers do."""
    raise RuntimeError("it is stuck")


@pytest.mark.parametrize("make", [Fake13, Fake11], ids=["1.3", "1.1"])
@pytest.mark.parametrize("ending", [hang, hang_shielded])
async def test_a_device_that_hangs_when_it_is_closed_is_left_behind(
    make: Any, ending: Ending, anyio_backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if ending is hang_shielded and anyio_backend[0] == "trio":
        return  # A shielded scope of trio cannot be ended from outside: said in `closing`.
    first, last = closed_by(make("first"), ending), make("last")
    devices: Any = [first, last]
    async with nn.open_runtime(devices=devices, options=POOL):
        pass
    assert last.closed == 1
    assert [each.message for each in caplog.records if "first" in each.message] == [
        "closing first did not end within 0.01 s: it is left"
    ]


@pytest.mark.parametrize(
    ("ending", "told"),
    [(swallow, ""), (expire, "closing first failed"), (fail, "closing first failed")],
)
async def test_whatever_a_device_does_when_it_is_closed_the_next_one_is_closed(
    ending: Ending, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, last = closed_by(Fake13("first"), ending), Fake13("last")
    devices: Any = [first, last]
    with pytest.raises(ZeroDivisionError):
        async with nn.open_runtime(devices=devices, options=POOL):
            raise ZeroDivisionError
    assert last.closed == 1
    assert told in caplog.text


async def test_a_cancelled_application_ends_beside_a_device_that_hangs() -> None:
    device = closed_by(Fake13("stuck"), hang)
    with anyio.CancelScope() as scope:
        async with nn.open_runtime(devices=[device], options=POOL):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_leftovers_do_not_wait_for_one_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    async with nn.open_runtime(devices=["nnasync-reference"], options=POOL) as rt:
        told: list[str] = []

        class Prepared:
            def __init__(self, ending: Ending) -> None:
                self.ending = ending

            async def close(self) -> None:
                await self.ending()
                told.append("closed")

        async def at_once() -> None:
            await anyio.lowlevel.checkpoint()

        leftovers: Any = rt._leftovers
        for ending in (hang, fail, at_once):
            leftovers.add(Prepared(ending))
        await until(lambda: told == ["closed"])
    assert "it is stuck" in caplog.text


async def test_a_plan_that_cannot_be_given_back_does_not_keep_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = SpitefulEngine()
    async with nn.open_runtime(devices=[engine], options=POOL) as rt:
        device: Any = rt.devices[0]
        prepared = [await device.prepare_model(doubler()) for _ in range(3)]
    assert len(prepared) == len(engine.trimmed) == 3
    assert "spite" in caplog.text


async def test_a_runtime_closes_where_no_thread_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "nnasync-closing":
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    async with nn.open_runtime(devices=["nnasync-reference"], options=POOL) as rt:
        net = await rt.compile(doubler())
        assert (await net(ROW)).tolist() == (2 * ROW).tolist()
    assert "can't start new thread" in caplog.text


async def test_a_watchdog_that_is_held_up_does_not_keep_the_runtime_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nnasync._core.runtime.runtime.CLOSE_GRACE_S", 0.01)
    is_held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        let_go.wait()

    try:
        async with nn.open_runtime(devices=["nnasync-reference"], options=POOL) as rt:
            rt._watchdog.arm(0, hold)
            await until(is_held.is_set)
    finally:
        let_go.set()
