"""Where a prepared plan can be interrupted, and how long its steps take, measured on its runs.

Whatever engine runs it, a plan can stop where it looks at its stop flag: in and between operations,
between the segments of a cut plan, between the parts of several devices, or nowhere but at its end.
So runs are given a flag that notes when it is looked at.
"""

from __future__ import annotations

import statistics
import threading

from nnasync._core.clock import now_ns
from nnasync._core.workers import StopFlag, Task
from nnasync.tracing import Instrument
from nnasync.tracing.instruments import Traced

_FINEST = 0.005
"""Borders that are closer to each other, as a share of the run, count as one."""


class StepMeter(Instrument):
    """Notes the step borders of all runs that a runtime has on workers, one at a time."""

    def __init__(self) -> None:
        self._flag = _WatchedFlag(StopFlag())
        self._runs: list[list[float]] = []

    def task_started(self, task: Traced, begun_ns: int) -> None:
        """Gives a run a stop flag that notes when it is read."""
        if isinstance(task, Task):
            self._flag = task.stop = _WatchedFlag(task.stop)

    def task_ran(self, task: Traced, begun_ns: int, ended_ns: int, finished: bool) -> None:
        """Notes the borders of a run, as shares of its length."""
        if finished and ended_ns > begun_ns:
            length_ns = ended_ns - begun_ns
            self._runs.append([(at_ns - begun_ns) / length_ns for at_ns in self._flag.looked_at_ns])

    def borders(self) -> list[float]:
        """Returns the typical shares of a run's length at which steps end; the last one is 1."""
        found = [0.0]
        if self._runs:
            usual = statistics.mode(map(len, self._runs))
            alike = [run for run in self._runs if len(run) == usual]
            for share in map(statistics.median, zip(*alike, strict=True)):
                if found[-1] + _FINEST <= share <= 1 - _FINEST:
                    found.append(share)
        return [*found[1:], 1.0]


class _WatchedFlag(StopFlag):
    """A stop flag around another one; notes when the thread that made it reads it."""

    __slots__ = ("_raised", "_thread", "looked_at_ns")

    def __init__(self, flag: StopFlag) -> None:
        self._raised = flag.raised
        self._thread = threading.get_ident()
        self.looked_at_ns: list[int] = []
        super().__init__(flag.loop_timeout_ns, falls_back=flag.falls_back)
        self.raised, self.priority, self.demoted = flag.raised, flag.priority, flag.demoted

    @property
    def raised(self) -> int:
        """Returns whether the run is to stop; notes the time."""
        if threading.get_ident() == self._thread:
            self.looked_at_ns.append(now_ns())
        return self._raised

    @raised.setter
    def raised(self, value: int) -> None:
        self._raised = value
