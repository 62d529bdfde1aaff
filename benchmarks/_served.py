"""Servers of the serving benchmarks: each in a process of its own, whose processor time is read."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def server_process(script: str, kind: str) -> Iterator[tuple[int, int]]:
    """Runs `script --serve KIND` while the block runs; yields its process id and its port.

    The script prints the port when it serves.
    """
    command = [sys.executable, script, "--serve", kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None:
                raise RuntimeError("the server has no output")
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def cpu_us(pid: int, ask: Callable[[bytes], bytes], request: bytes, times: int) -> float:
    """Asks so many times; returns the processor time of the server for each, in microseconds."""
    before = _processor_ns(pid)
    for _ in range(times):
        ask(request)
    return (_processor_ns(pid) - before) / times / 1000


def _processor_ns(pid: int) -> int:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
