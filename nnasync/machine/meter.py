"""How busy the cores are, and how much of that is this process."""

from __future__ import annotations

import os

from nnasync._core.clock import now_ns
from nnasync.hal import Struct


class Busy(Struct):
    """Shares between 0 and 1, of all cores that this process may use together."""

    machine: float
    process: float
    cores: int

    @property
    def others(self) -> float:
        """The share of everybody else."""
        return max(0.0, self.machine - self.process)


class CpuMeter:
    """Measures from its making, or from `restart`, to each `read`."""

    def __init__(self) -> None:
        if hasattr(os, "sched_getaffinity"):
            self._cores = frozenset(os.sched_getaffinity(0))
        else:
            self._cores = frozenset(range(os.cpu_count() or 1))
        self.restart()

    def restart(self) -> None:
        """Begin a new period."""
        self._start = self._sample()

    def read(self) -> Busy:
        """Shares since the beginning; without /proc/stat the process stands for the machine."""
        (wall0, own0, busy0, all0), (wall1, own1, busy1, all1) = self._start, self._sample()
        available = max((wall1 - wall0) / 1e9, 1e-9) * len(self._cores)
        process = min((own1 - own0) / available, 1.0)
        machine = (busy1 - busy0) / (all1 - all0) if all1 > all0 else process
        return Busy(min(machine, 1.0), process, len(self._cores))

    def _sample(self) -> tuple[int, float, int, int]:
        times = os.times()
        busy, total = _proc_stat(self._cores)
        return now_ns(), times.user + times.system, busy, total


def _proc_stat(cores: frozenset[int]) -> tuple[int, int]:
    """Busy and all clock ticks of the given cores; (0, 0) where there is no /proc/stat."""
    busy = total = 0
    try:
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
    except OSError:
        return 0, 0
    for name, *fields in lines:
        if name[3:].isdigit() and int(name[3:]) in cores:
            ticks = [int(field) for field in fields[:8]]
            total += sum(ticks)
            busy += sum(ticks) - ticks[3] - ticks[4]
    return busy, total
