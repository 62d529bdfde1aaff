"""What others had of the cores while a process and its children were at work.

Times of a process tell nothing of it alone where others compete for its cores. Linux tells how long
each core was busy, or given to other virtual machines, and how long each process ran. What remains
is the others' share.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from nnasync.machine import CpuMeter

__all__ = ["ForeignLoad", "family_s"]

_PARENT, _FIRST_TIME, _TIMES = 1, 11, 4
"""In `/proc/PID/stat`, behind the name: its parent; its times, and those of children that ended."""


class ForeignLoad:
    """Measures from its making, and then from one `lap` to the next."""

    def __init__(self, pid: int) -> None:
        """`pid` is the process at work; it, its children and this process are not foreign."""
        self._pid = pid
        self._meter = CpuMeter()
        self._at_s = time.monotonic()
        self._family_s = family_s(pid)

    def lap(self) -> float:
        """The share of all cores that others had, other guests of the hypervisor included."""
        busy = self._meter.lap()
        before_s, self._at_s = self._at_s, time.monotonic()
        ran_s, self._family_s = self._family_s, family_s(self._pid)
        available_s = max(self._at_s - before_s, 1e-9) * busy.cores
        return max(0.0, busy.others - max(0.0, self._family_s - ran_s) / available_s)


def family_s(pid: int) -> float:
    """The processor time of a process and of all that descend from it, dead ones included."""
    table = {int(each): fields for each in os.listdir("/proc") if (fields := _fields(each))}
    family = {pid}
    while more := {each for each, of in table.items() if int(of[_PARENT]) in family} - family:
        family |= more
    ticks = sum(
        int(tick)
        for each in family & table.keys()
        for tick in table[each][_FIRST_TIME : _FIRST_TIME + _TIMES]
    )
    return ticks / os.sysconf("SC_CLK_TCK")


def _fields(pid: str) -> list[str]:
    """Returns the fields that the system states of a process; empty where it is gone."""
    if not pid.isdigit():
        return []
    try:
        return Path("/proc", pid, "stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return []
