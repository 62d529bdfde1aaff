"""How late the timers of an event loop are that does nothing else, on the same machine meanwhile.

A process with a loop of its own sleeps again and again, as short as it may, and notes how long
after the planned time it goes on. What a server is late beyond that is its own doing; the rest is
the machine's: on cores that are all taken, a thread that wakes waits until the system takes a core
away from another one. In real time it goes ahead of all that the server does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import uvloop

PAUSE_S = 0.01
_REAL_TIME = "--real-time"


async def _lateness_ms(is_over: asyncio.Event) -> list[float]:
    found: list[float] = []
    while not is_over.is_set():
        planned_s = time.monotonic() + PAUSE_S  # The clock of uvloop has whole milliseconds.
        await asyncio.sleep(PAUSE_S)
        found.append((time.monotonic() - planned_s) * 1000)
    return found


async def _until_asked() -> None:
    """Measures until standard input ends, then prints the figures."""
    is_over = asyncio.Event()
    print("ready", flush=True)
    asyncio.get_running_loop().add_reader(sys.stdin, is_over.set)
    print(json.dumps(await _lateness_ms(is_over)))


class IdleLoop:
    """The figures of an idle event loop, available once its block has ended."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []


@contextlib.contextmanager
def ahead_of_all() -> Iterator[None]:
    """Gives the calling thread a real-time priority above all of a server's while the block runs.

    What it starts does not inherit it.
    """
    priority = os.sched_param(os.sched_get_priority_min(os.SCHED_RR) + 3)
    usual = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, priority)
    try:
        yield
    finally:
        os.sched_setscheduler(0, *usual)


@contextlib.contextmanager
def idle_loop(*, real_time: bool) -> Iterator[IdleLoop]:
    """Measures the lag of an idle loop in another process while the block runs."""
    found = IdleLoop()
    command = [sys.executable, "-m", __spec__.name, *[_REAL_TIME] * real_time]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            if process.stdout is None or process.stdin is None:
                raise RuntimeError("the process has no pipes")
            process.stdout.readline()
            yield found
            process.stdin.close()
            found.late_ms = [max(0.0, each) for each in json.loads(process.stdout.readline())]
        finally:
            process.kill()


if __name__ == "__main__":
    with ahead_of_all() if _REAL_TIME in sys.argv else contextlib.nullcontext():
        uvloop.run(_until_asked())
