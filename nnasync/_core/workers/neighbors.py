"""Neighbors: other programs on the cores, and whether workers are nicer than the loop beside them.

The system gives threads of the same niceness equal shares of a core. A thread of a loop that has
just run has had more than its share, if only for a moment; woken then beside a worker that
computes, it waits for the system's next look at the core, up to 4 ms at 250 Hz, since nothing else
interrupts the worker. A nicer worker owes the loop the core nearly always (one of niceness 5
has a quarter of it where both want it), and the loop runs at once. For that the worker has to have
the lower weight: a short time slice decides only among threads that have not had their share. Nor
does it take the core from a thread of the usual niceness when it wakes (SCHED_BATCH): woken for a
moment, between two waits for the interpreter lock, it would send the loop, or a worker that holds
the lock, off the core, and leave it then to whoever is next.

Beside other programs that keep the cores busy the lower weight is paid for: the worker has a
quarter of a core then, instead of half of it. So workers are nicer only while others leave room.
Every fifth of a second, as long as workers run executions, the processor time of everybody else is
measured, but for other processes of the same application, whose workers are as nice. Two looks in a
row at crowded cores, and two seconds without, change it. A thread cannot become less nice again
without a privilege: other threads take over (`crew`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from nnasync._core.clock import EarliestAlarm, Watchdog, now_ns
from nnasync._core.kin import KIN
from nnasync._core.workers.belief import Belief
from nnasync._core.workers.running import Running
from nnasync.machine.meter import Busy, CpuMeter

_PERIOD_NS = 200_000_000
_CROWDED, _CALM = 2, 10
"""Looks in a row."""
_FULL = 0.85
"""Share of all cores that are busy from which on somebody may have to wait for one."""
_FOREIGN_CORES = 0.25
"""So much of a core, taken by other programs, is worth a change."""


class Niceness:
    """Whether workers are to be nicer than their loop; its users hold the lock of the workers."""

    def __init__(self, *, is_wanted: bool) -> None:
        self.is_wanted = self.is_greater = is_wanted
        """`is_greater` is whether threads that start now should be nicer."""
        self._crowd = Belief(proof=_CROWDED, most_proof=_CROWDED, doubts=_CALM)

    def note(self, busy: Busy, kin_cores: float = 0.0) -> bool:
        """Takes in how busy the cores were; returns whether other threads should take over.

        `kin_cores` is how many of them other processes of the same application used.
        """
        foreign_cores = (busy.machine - busy.stolen - busy.process) * busy.cores - kin_cores
        crowded = busy.machine >= _FULL and foreign_cores >= _FOREIGN_CORES
        changes = self._crowd.note(speaks_for=crowded)
        self.is_greater = self.is_wanted and not self._crowd.holds
        return changes


class Neighbors:
    """Looks how busy other programs keep the cores while workers run executions."""

    def __init__(
        self, watchdog: Watchdog, lock: threading.Lock, running: Running, *, nicer: bool
    ) -> None:
        """`nicer` is whether workers are to be nicer at all."""
        self.niceness = Niceness(is_wanted=nicer)
        self.on_crowd: Callable[[], object] = lambda: None
        """Called with the lock held when workers should no longer be nicer."""
        self._lock, self._running = lock, running
        self._alarm = EarliestAlarm(watchdog, self._look)
        self._meter: CpuMeter | None = None
        self._kin: tuple[int, dict[int, int]] = 0, {}
        self._begun = 0
        self._closed = False
        self.is_looking = not nicer
        """Whether nobody need have it `look_on` when a worker begins an execution."""

    def look_on(self) -> None:
        """Looks as long as workers begin executions, as one does now; with the lock held."""
        if not self._closed:
            self._alarm.arm(now_ns() + _PERIOD_NS)
            self.is_looking = self._alarm.is_armed

    def close(self) -> None:
        """Stops looking."""
        self._closed = True
        self._alarm.disarm()

    def _look(self) -> None:
        """Looks once, as the callback of an alarm; takes the lock."""
        meter = self._meter
        busy, kin_cores = None if meter is None else meter.lap(), self._kin_cores()
        with self._lock:
            self._alarm.rang()
            goes_on = self._begun != self._running.begun or len(self._running) > 0
            self._begun = self._running.begun
            changes = busy is not None and self.niceness.note(busy, kin_cores)
            if changes and not self.niceness.is_greater:
                self.on_crowd()
            if goes_on:
                self._meter = meter or CpuMeter()
                self.look_on()
            else:
                self._meter, self.is_looking = None, False

    def _kin_cores(self) -> float:
        """Returns how many cores other processes of the application used since the last look."""
        before_ns, before = self._kin
        now, ran = self._kin = now_ns(), KIN.ran_ns()
        used_ns = sum(ns - before.get(pid, ns) for pid, ns in ran.items())
        return used_ns / max(now - before_ns, 1)
