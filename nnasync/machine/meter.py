"""How busy the cores are, and how much of that is this process."""

from __future__ import annotations

import os

from nnasync._core.clock import now_ns
from nnasync.hal import Struct

_Sample = tuple[int, float, int, int, int]


class Busy(Struct):
    """Shares between 0 and 1, of all cores that this process may use together.

    `stolen` is the part of `machine` that the hypervisor gave to other virtual machines.
    """

    machine: float
    process: float
    cores: int
    stolen: float = 0.0

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
        return self._between(self._start, self._sample())

    def lap(self) -> Busy:
        """Returns the reading of this period, and begins the next one."""
        start, self._start = self._start, self._sample()
        return self._between(start, self._start)

    def _between(self, start: _Sample, end: _Sample) -> Busy:
        wall0, own0, busy0, all0, stolen0 = start
        wall1, own1, busy1, all1, stolen1 = end
        available = max((wall1 - wall0) / 1e9, 1e-9) * len(self._cores)
        process = min((own1 - own0) / available, 1.0)
        ticks = all1 - all0
        machine = (busy1 - busy0) / ticks if ticks > 0 else process
        stolen = max(0, stolen1 - stolen0) / ticks if ticks > 0 else 0.0
        return Busy(min(machine, 1.0), process, len(self._cores), min(stolen, machine, 1.0))

    def _sample(self) -> _Sample:
        times = os.times()
        return now_ns(), times.user + times.system, *_proc_stat(self._cores)


def _proc_stat(cores: frozenset[int]) -> tuple[int, int, int]:
    """Busy, all and stolen clock ticks of the given cores; zeros where there is no /proc/stat."""
    busy = total = stolen = 0
    try:
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
    except OSError:
        return 0, 0, 0
    for name, *fields in lines:
        if name[3:].isdigit() and int(name[3:]) in cores:
            ticks = [int(field) for field in fields[:8]]
            total += sum(ticks)
            busy += sum(ticks) - ticks[3] - ticks[4]
            stolen += ticks[7] if len(ticks) > 7 else 0
    return busy, total, stolen
