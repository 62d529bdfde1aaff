"""Tasks in the background: begun before they end, and ended with who opened them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from nnasync._core.runtime.tasks import tasks_of_this_loop
from nnasync.errors import BadState
from tests.rigs import GUARD_S

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
async def patience(anyio_backend: Any) -> AsyncIterator[None]:
    """No test waits for ever."""
    with anyio.fail_after(GUARD_S):
        yield


async def test_closing_cancels_what_runs_and_waits_for_its_end() -> None:
    told: list[str] = []

    async def work(name: str) -> None:
        told.append(f"{name} begins")
        try:
            await anyio.sleep_forever()
        finally:
            told.append(f"{name} ends")

    tasks = tasks_of_this_loop()
    await tasks.open()
    tasks.start(work, "a")
    await anyio.wait_all_tasks_blocked()
    assert told == ["a begins"]
    await tasks.close()
    assert told == ["a begins", "a ends"]


async def test_one_that_was_just_started_cleans_up_all_the_same() -> None:
    told: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            told.append("ends")

    tasks = tasks_of_this_loop()
    await tasks.open()
    tasks.start(work)
    await tasks.close()
    assert told == ["ends"]


async def test_a_task_that_another_starts_in_its_last_moment_is_cancelled_too() -> None:
    told: list[str] = []

    async def last() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            told.append("last")

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            tasks.start(last)

    tasks = tasks_of_this_loop()
    await tasks.open()
    tasks.start(work)
    await anyio.wait_all_tasks_blocked()
    await tasks.close()
    assert told == ["last"]


async def test_one_task_is_cancelled_alone() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(name)

    tasks = tasks_of_this_loop()
    await tasks.open()
    cancel = tasks.start(work, "a")
    tasks.start(work, "b")
    await anyio.wait_all_tasks_blocked()
    cancel()
    await anyio.wait_all_tasks_blocked()
    assert ended == ["a"]
    cancel()
    await tasks.close()
    assert ended == ["a", "b"]


async def test_a_task_that_fails_is_logged_and_disturbs_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[str] = []

    async def fails() -> None:
        raise ValueError("no good")

    async def works() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            told.append("ends")

    tasks = tasks_of_this_loop()
    await tasks.open()
    tasks.start(works)
    tasks.start(fails)
    await anyio.wait_all_tasks_blocked()
    assert told == []
    assert "no good" in caplog.text
    await tasks.close()
    assert told == ["ends"]


def test_outside_of_a_loop_there_are_none() -> None:
    with pytest.raises(BadState, match="no event loop"):
        tasks_of_this_loop()


def test_a_program_without_anyio_does_not_wait_for_it() -> None:
    code = (
        "import sys, nnasync as nn\n"
        "async def main():\n"
        "    async with nn.open_runtime(devices=['nnasync-reference']):\n"
        "        print('anyio' in sys.modules)\n"
        "nn.run(main)\n"
        "print('anyio' in sys.modules)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "False"]
