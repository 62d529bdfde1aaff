"""Child processes that are spoken with in lines: started whole, and gone with their block."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from typing import Any

import anyio
import pytest

from nnasync import errors
from nnasync._core.child_process import ChildProcess, child_process, ending
from tests import rigs

pytestmark = pytest.mark.anyio

ECHO = ("-c", "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)")
PARENT = (
    "-c",
    "import subprocess, sys\n"
    "print(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid, flush=True)\n"
    "sys.stdin.read()",
)
ORPHANING = (
    "-c",
    "import subprocess, sys\n"
    "fd = int(sys.argv[1])\n"
    "code = 'from nnasync._core.child_process import leave_signals_to_parent as leave\\n'\n"
    "code += 'leave(); print(1, flush=True)\\nimport signal\\nwhile True: signal.pause()'\n"
    "arguments = [sys.executable, '-c', code]\n"
    "child = subprocess.Popen(arguments, stdout=subprocess.PIPE, pass_fds=[fd])\n"
    "child.stdout.readline()\n"
    "print(child.pid, flush=True)\n"
    "sys.stdin.read()",
)
HEEDLESS = (
    "-c",
    "from nnasync._core.child_process import leave_signals_to_parent as leave\n"
    "leave()\nprint('ready', flush=True)\nprint(input(), flush=True)",
)
FORKS: list[int] = []  # pipes that are told of Python that runs in a fork
os.register_at_fork(after_in_child=lambda: [os.write(fd, b"!") for fd in FORKS])


def is_gone(pid: int) -> bool:
    """Whether there is no such process any more, or only what its parent is to bury."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_it_hears_lines_and_answers() -> None:
    async with child_process(ECHO) as child:
        for word in (b"one", b"two"):
            await child.say(word)
            assert await child.line(80) == word.upper()
    assert is_gone(child.pid)


async def test_no_python_runs_in_the_copy_of_this_process() -> None:
    """There the collector may free what waits for threads that are not copied, for ever."""
    said, says = os.pipe()
    os.set_blocking(said, False)
    FORKS.append(says)
    try:
        async with child_process(ECHO) as child:
            await child.say(b"one")
            assert await child.line(80) == b"ONE"
        with pytest.raises(BlockingIOError):
            os.read(said, 1)
    finally:
        FORKS.clear()
        os.close(said)
        os.close(says)


async def test_a_long_line_is_heard_whole() -> None:
    async with child_process(ECHO) as child, anyio.create_task_group() as tasks:
        tasks.start_soon(child.say, b"a" * 1_000_000)
        assert await child.line(2_000_000) == b"A" * 1_000_000


async def test_who_speaks_to_one_that_dies_without_listening_is_let_go() -> None:
    async with child_process(
        ("-c", "print('here', flush=True)\nimport time; time.sleep(600)")
    ) as child:
        assert await child.line(80) == b"here"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.say, b"a" * 1_000_000)
            await anyio.wait_all_tasks_blocked()
            os.kill(child.pid, signal.SIGKILL)


async def test_closing_wakes_who_listens_and_who_waits_for_the_end() -> None:
    ends = []

    async def wait() -> None:
        ends.append(await child.ended())

    child = await ChildProcess.start(("-c", "import time; time.sleep(600)"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(child.line, 80)
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await child.close()
    await child.close()
    assert await child.line(80) is None
    await child.say(b"hello?")
    assert child.is_over
    assert ends == [-signal.SIGKILL]


async def test_an_end_is_told_where_the_system_has_no_descriptor_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    async with child_process(("-c", "raise SystemExit(3)")) as child:
        assert await child.ended() == 3


async def test_a_cancellation_amidst_the_start_leaves_no_process_to_nobody() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        child = await ChildProcess.start(ECHO)
    assert not is_gone(child.pid)
    await child.close()
    assert is_gone(child.pid)


@pytest.mark.one_loop("Tasks are cancelled past a shield on asyncio alone.")
@pytest.mark.parametrize("has_started", [False, True])
async def test_a_task_that_is_cancelled_amidst_the_start_leaves_none_either(
    monkeypatch: pytest.MonkeyPatch, has_started: bool
) -> None:
    popen, started = subprocess.Popen, list[subprocess.Popen[bytes]]()
    begun, goes_on, is_there = (threading.Event() for _ in range(3))

    def slow(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        begun.set()
        goes_on.wait(rigs.GUARD_S)
        started.append(popen(*arguments, **options))
        is_there.set()
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", slow)
    task = asyncio.create_task(ChildProcess.start(ECHO))
    await rigs.until(begun.is_set)
    if has_started:
        goes_on.set()
        assert is_there.wait(rigs.GUARD_S)  # The loop hears of it later.
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    goes_on.set()
    await rigs.until(lambda: bool(started) and started[0].returncode is not None)


async def test_what_it_started_goes_with_it() -> None:
    async with child_process(PARENT) as child:
        grandchild = int(await child.line(80) or b"")
        assert not is_gone(grandchild)
    await rigs.until(lambda: is_gone(grandchild))


async def test_signals_are_left_to_the_parent() -> None:
    async with child_process(HEEDLESS) as child:
        assert await child.line(80) == b"ready"
        os.kill(child.pid, signal.SIGTERM)
        os.kill(child.pid, signal.SIGINT)
        await child.say(b"still there?")
        assert await child.line(80) == b"still there?"


async def test_without_a_parent_it_heeds_sigterm() -> None:
    """Else a parent that was killed would leave children that only SIGKILL ends."""
    ours, theirs = os.pipe()
    try:
        child = await ChildProcess.start((*ORPHANING, str(theirs)), descriptors=[theirs])
        try:
            orphan = int(await child.line(80) or b"")
            os.close(theirs)
            os.kill(child.pid, signal.SIGKILL)
            await child.ended()
            os.kill(orphan, signal.SIGTERM)
            with anyio.fail_after(rigs.GUARD_S):
                await anyio.wait_readable(ours)
            assert os.read(ours, 1) == b""  # Nobody holds the other end any more.
        finally:
            await child.close()
    finally:
        os.close(ours)


async def test_one_that_dies_says_no_more_and_hears_nothing() -> None:
    async with child_process(ECHO) as child:
        os.kill(child.pid, signal.SIGKILL)
        assert await child.line(80) is None
        assert ending(await child.ended()) == "SIGKILL"
        for _ in range(3):
            await child.say(b"hello?")
        child.kill()


async def test_a_line_that_is_too_long_is_an_error() -> None:
    async with child_process(("-c", "print('a' * 100_000)")) as child:
        with pytest.raises(
            errors.GeneralFailure, match="something too long: a line of over 10 bytes"
        ):
            await child.line(10)


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-11, "SIGSEGV"), (-99, "signal 99")]
)
def test_endings(code: int, text: str) -> None:
    assert ending(code) == text
