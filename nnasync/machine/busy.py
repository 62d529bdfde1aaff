"""Which processes of others keep the cores busy: two looks at /proc, some time apart.

A look is the processor time of each process by its number and start, so that a number that is used
anew is another process. Our own process is no other, and neither are those that wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from nnasync._core.clock import now_ns
from nnasync.hal import Struct
from nnasync.machine.facts import text_of

_UTIME, _STIME, _START = 11, 12, 19
_LEAST = 0.05


class BusyProcess(Struct, frozen=True):
    """Another process, and how much of one core it took; more than 1 with several threads."""

    pid: int
    name: str
    cores: float


class _Look(Struct, frozen=True):
    at_ns: int
    ticks: dict[tuple[int, str], tuple[str, int]]
    """Name and processor time by number and time of the start."""


def busy_processes(wait: Callable[[], object], root: str = "/") -> list[BusyProcess]:
    """Other processes that took a twentieth of a core or more while `wait` ran, the busiest first.

    Empty where the system does not tell.
    """
    before = _look(root)
    wait()
    after = _look(root)
    return _between(before, after, _ticks_per_second(), os.getpid())


def _between(before: _Look, after: _Look, ticks_per_s: int, own: int) -> list[BusyProcess]:
    passed = (after.at_ns - before.at_ns) / 1e9 * ticks_per_s
    found = []
    for (pid, start), (name, ticks) in after.ticks.items():
        earlier = before.ticks.get((pid, start))
        if earlier is None or pid == own or passed <= 0:
            continue
        cores = (ticks - earlier[1]) / passed
        if cores >= _LEAST:
            found.append(BusyProcess(pid, name, cores))
    return sorted(found, key=lambda each: -each.cores)


def _look(root: str) -> _Look:
    folder = os.path.join(root, "proc")
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    ticks = {}
    for name in names:
        if name.isdecimal() and (told := text_of(folder, name, "stat")):
            # The name of a process may hold anything, spaces and parentheses too.
            head, _, tail = told.rpartition(")")
            fields = tail.split()
            if len(fields) > _START and (fields[_UTIME] + fields[_STIME]).isdecimal():
                used = int(fields[_UTIME]) + int(fields[_STIME])
                ticks[int(name), fields[_START]] = head.partition("(")[2], used
    return _Look(now_ns(), ticks)


def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
