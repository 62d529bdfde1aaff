"""What a driver does outside of executions: answered in time, whatever the driver does."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from nnasync._core.clock import Deadline, Watchdog, within
from nnasync._core.workers import helper_threads as module
from nnasync._core.workers.helper_threads import HelperThreads
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    ResourceExhaustedTransient,
)
from tests.rigs import Deadlines, ManualWatchdog, missed_under_way
from tests.workers.steering import PATIENCE_S, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
]
HOUR = {"s": 3600}


class Driver:
    """Work that hangs until it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()
        self.ended = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        self.let_go.wait(PATIENCE_S)
        self.ended.set()
        return "late"


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    made = Watchdog()
    yield made
    made.close()


@pytest.fixture
def helper_threads(watchdog: Watchdog) -> Iterator[HelperThreads]:
    made = HelperThreads(watchdog)
    yield made
    made.close()
    made.join(PATIENCE_S)


async def test_work_is_answered_from_another_thread(helper_threads: HelperThreads) -> None:
    threads = {await helper_threads.run(threading.get_ident, "it") for _ in range(3)}
    assert threading.get_ident() not in threads
    assert len(helper_threads._threads) <= len(threads)


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(2), TimeoutError(), StopIteration()])
async def test_whatever_the_driver_raises_is_contained(
    helper_threads: HelperThreads, error: BaseException
) -> None:
    def work() -> None:
        raise error

    with pytest.raises(GeneralFailure, match=f"it failed: {type(error).__name__}") as caught:
        await helper_threads.run(work, "it", within(**HOUR))
    assert caught.value.__cause__ is error


async def test_typed_errors_stay_themselves(helper_threads: HelperThreads) -> None:
    error = InvalidArgument("operand 3")

    def work() -> None:
        raise error

    with pytest.raises(InvalidArgument) as caught:
        await helper_threads.run(work, "it")
    assert caught.value is error


async def test_nothing_begins_after_the_deadline(helper_threads: HelperThreads) -> None:
    with pytest.raises(MissedDeadlinePersistent):
        await helper_threads.run(lambda: pytest.fail("begun"), "it", within(ms=-1))
    assert not helper_threads._threads


async def test_answer_comes_at_the_deadline_never_before(helper_threads: HelperThreads) -> None:
    driver = Driver()
    for _ in range(5):
        await missed_under_way(partial(helper_threads.run, driver, "it"), ms=3)
    assert await helper_threads.run(lambda: "others go on", "it") == "others go on"
    driver.let_go.set()


async def test_lost_threads_do_not_count(
    helper_threads: HelperThreads, deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_THREADS", 1)
    drivers = [Driver() for _ in range(3)]
    for driver in drivers:
        begun = partial(anyio.to_thread.run_sync, driver.begun.wait, PATIENCE_S)
        error = await deadlines.missed(partial(helper_threads.run, driver, "it"), begun)
        assert isinstance(error, MissedDeadlineTransient)
    assert await helper_threads.run(lambda: 7, "it") == 7
    for driver in drivers:
        driver.let_go.set()
        assert driver.ended.wait(PATIENCE_S)
    assert await helper_threads.run(lambda: 8, "it") == 8
    until(lambda: len(helper_threads._threads) == 1)


async def test_no_more_threads_than_there_may_be(
    helper_threads: HelperThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_THREADS", 2)
    found: list[int] = []

    async def ask(number: int) -> None:
        found.append(await helper_threads.run(lambda: number, "it"))

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(ask, number)
    assert sorted(found) == list(range(20))
    assert len(helper_threads._threads) <= 2


async def test_cancelling_ends_the_wait_at_once_and_drops_the_answer(
    helper_threads: HelperThreads,
) -> None:
    driver = Driver()
    async with anyio.create_task_group() as group:
        group.start_soon(helper_threads.run, driver, "it")
        await anyio.wait_all_tasks_blocked()
        assert driver.begun.wait(PATIENCE_S)
        group.cancel_scope.cancel()
    driver.let_go.set()
    assert driver.ended.wait(PATIENCE_S)
    assert await helper_threads.run(lambda: 9, "it") == 9


async def test_what_waits_for_a_thread_is_answered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its deadline, or when the runtime closes."""
    monkeypatch.setattr(module, "_MOST_THREADS", 1)
    watchdog = ManualWatchdog()
    helper_threads, driver, errors = HelperThreads(watchdog), Driver(), []

    async def ask(work: Any, deadline: Deadline | None) -> None:
        try:
            await helper_threads.run(work, "it", deadline)
        except Exception as error:
            errors.append(type(error))

    soon = within(**HOUR)
    async with anyio.create_task_group() as group:
        group.start_soon(ask, driver, None)
        await anyio.wait_all_tasks_blocked()
        assert driver.begun.wait(PATIENCE_S)
        group.start_soon(ask, lambda: pytest.fail("begun"), soon)
        group.start_soon(ask, lambda: pytest.fail("begun"), None)
        await anyio.wait_all_tasks_blocked()
        watchdog.ring(soon)
        await anyio.wait_all_tasks_blocked()
        assert errors == [MissedDeadlineTransient]
        helper_threads.close()
        await anyio.wait_all_tasks_blocked()
        assert errors == [MissedDeadlineTransient, DeviceUnavailable]
        driver.let_go.set()
    assert len(errors) == 2
    with pytest.raises(DeviceUnavailable):
        await helper_threads.run(lambda: 1, "it")


async def test_no_thread_to_be_had(
    helper_threads: HelperThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(ResourceExhaustedTransient, match="thread"):
            await helper_threads.run(lambda: 1, "it")
    assert await helper_threads.run(lambda: 1, "it") == 1


async def test_idle_threads_end(
    helper_threads: HelperThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LINGER_S", 0.001)
    await helper_threads.run(lambda: 1, "it")
    until(lambda: not helper_threads._threads)
    assert await helper_threads.run(lambda: 2, "it") == 2


HANGING = """
import asyncio, threading
import nnasync as nn
from nnasync._core import endings
from nnasync._core.drivers.null import NullEngine

endings._PATIENCE_S = 0.1

class Hanging(NullEngine):
    def compile(self, model, preference):
        threading.Event().wait()

async def main():
    builder = nn.ModelBuilder("add")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    async with nn.open_runtime(devices=[Hanging()]) as rt:
        try:
            await rt.compile(builder.build(), deadline=nn.within(ms=500))
        except nn.MissedDeadline:
            print("missed")

asyncio.run(main())
"""


@pytest.mark.usefixtures("no_leaks")
async def test_nothing_is_left(helper_threads: HelperThreads) -> None:
    assert await helper_threads.run(lambda: 1, "it") == 1


async def test_a_process_ends_although_a_compilation_hangs() -> None:
    done = await anyio.to_thread.run_sync(ended)
    assert done.stdout == "missed\n", done.stderr


def ended() -> Any:
    return subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=False
    )


async def test_the_caller_does_something_else_meanwhile(helper_threads: HelperThreads) -> None:
    driver = Driver()

    def meanwhile() -> None:
        # Without the thread this waits in vain.
        assert driver.begun.wait(PATIENCE_S)
        driver.let_go.set()

    assert await helper_threads.run(driver, "it", meanwhile=meanwhile) == "late"
    assert (
        await helper_threads.run_unwrapped(lambda: "done", "it", meanwhile=lambda: None) == "done"
    )


async def test_an_error_meanwhile_ends_the_wait(helper_threads: HelperThreads) -> None:
    driver = Driver()
    with pytest.raises(ZeroDivisionError):
        await helper_threads.run(driver, "it", meanwhile=lambda: 1 / 0)
    driver.let_go.set()
    assert await helper_threads.run(lambda: "next", "it") == "next"


async def test_nobody_waits_for_what_is_begun(helper_threads: HelperThreads) -> None:
    driver = Driver()
    helper_threads.begin(driver, "it")
    helper_threads.begin(lambda: 1 / 0, "it")
    assert await anyio.to_thread.run_sync(driver.begun.wait, PATIENCE_S)
    assert await helper_threads.run(lambda: "meanwhile", "it") == "meanwhile"
    driver.let_go.set()
    assert await anyio.to_thread.run_sync(driver.ended.wait, PATIENCE_S)
    helper_threads.close()
    helper_threads.begin(driver, "it")


async def test_errors_of_our_own_work_are_raised_as_they_are(helper_threads: HelperThreads) -> None:
    assert await helper_threads.run_unwrapped(lambda: "done", "reading") == "done"
    with pytest.raises(FileNotFoundError, match="such"):
        await helper_threads.run_unwrapped(lambda: open("/none/such"), "reading")  # noqa: SIM115 (it is never open)
