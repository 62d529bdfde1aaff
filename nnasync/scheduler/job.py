"""What the scheduler knows of one execution, and of how long its like take."""

from __future__ import annotations

import math

from nnasync._core.clock import Deadline
from nnasync.hal import NEVER_NS, Priority

_UP = 0.1
_DOWN = 0.3
_FORGET = 0.02
_REFUSED = 0.95
_RARELY, _MOSTLY, _AT_FIRST = 1.27, 0.97, 0.75
_FIRST = 16
_LEARNING = 0.2
_TRIED_AGAIN = 0.98
_FAR_BEYOND = 8
_AGAIN_WITHIN = 64


def at_ns(deadline: Deadline | None) -> int:
    """When a deadline is; NEVER_NS without one."""
    return NEVER_NS if deadline is None else deadline.at_ns


class Estimate:
    """How long one execution of a prepared model takes, learnt from measured durations.

    Nothing is known before the first of them: `samples` is 0, and `high_ns` infinite. `holds_loop`
    is for who decides where executions run: whether this one might run on the thread of its loop
    when that was last asked.
    """

    __slots__ = (
        "best_ns",
        "far_beyond_at",
        "floor_ns",
        "high_ns",
        "holds_loop",
        "ns",
        "samples",
        "worker_ns",
    )

    def __init__(self) -> None:
        self.ns = 0.0
        self.best_ns = 0.0
        self.floor_ns = 0.0
        self.high_ns = math.inf
        self.worker_ns = 0.0
        self.samples = 0
        self.holds_loop = True
        self.far_beyond_at = -_AGAIN_WITHIN
        """Which sample was the last that took very much longer than `high_ns`."""

    def copy(self) -> Estimate:
        """An estimate that begins with what this one has learnt."""
        copy = Estimate()
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        return copy

    def observe(self, duration_ns: int) -> None:
        """Take a measured duration in."""
        self.samples += 1
        if self.samples == 1:
            self.ns = self.best_ns = self.floor_ns = self.high_ns = float(duration_ns)
            return
        ns, best_ns, high_ns = self.ns, self.best_ns, self.high_ns
        if duration_ns < ns:
            ns += (duration_ns - ns) * _DOWN
        elif duration_ns > 2 * ns:
            ns += ns * _UP
        else:
            ns += (duration_ns - ns) * _UP
        if duration_ns < best_ns:
            best_ns = float(duration_ns)
        elif ns > best_ns:
            best_ns += (ns - best_ns) * _FORGET
        if duration_ns <= high_ns:
            high_ns *= _MOSTLY if self.samples > _FIRST else _AT_FIRST
            self.high_ns = high_ns if high_ns > duration_ns else float(duration_ns)
        else:
            high_ns = self._raised(high_ns, duration_ns)
            self.high_ns = high_ns if high_ns < duration_ns else float(duration_ns)
        self.ns = ns
        self.best_ns = self.floor_ns = best_ns

    def _raised(self, high_ns: float, duration_ns: int) -> float:
        """`high_ns` after a run that exceeds it: in steps, but for runs that exceed it by far.

        One of those may be the doing of the operating system. A second one soon after it says that
        the length depends on the data, and each of them is a stall of whatever waits for it.
        """
        raised_ns = high_ns * _RARELY
        if duration_ns > _FAR_BEYOND * high_ns:
            if self.samples - self.far_beyond_at <= _AGAIN_WITHIN:
                raised_ns = max(raised_ns, duration_ns / _FAR_BEYOND)
            self.far_beyond_at = self.samples
        return raised_ns

    def observe_on_worker(self, duration_ns: int) -> None:
        """Take in a duration that was measured on a worker; one alone at most doubles for it."""
        self.observe(duration_ns)
        known_ns = self.worker_ns or self.ns
        taken_ns = min(float(duration_ns), 2 * known_ns)
        if self.worker_ns:
            taken_ns = known_ns + (taken_ns - known_ns) * _LEARNING
        self.worker_ns = taken_ns

    def try_worker_again(self) -> None:
        """Note that a worker was not chosen: what is known of runs there grows old."""
        if self.worker_ns > self.best_ns:
            self.worker_ns *= _TRIED_AGAIN

    def refused(self) -> None:
        """Note that a job was refused on the strength of the floor."""
        self.floor_ns *= _REFUSED

    def try_here_again(self) -> None:
        """Note that a job will not run, since runs that take longest keep it from the loop."""
        self.high_ns = max(self.ns, self.high_ns * _REFUSED)


class Job:
    """What the scheduler knows of one execution; `client` 0 is the application itself.

    `heard_after_ns` is how long after its end who waits for it hears of that, at least.
    """

    __slots__ = (
        "charged_ns",
        "client",
        "deadline_ns",
        "entry",
        "estimate",
        "floor_ns",
        "has_begun",
        "has_place",
        "heard_after_ns",
        "priority",
        "queued",
        "sequence",
        "shielded_until_ns",
        "since_ns",
        "was_displaced",
    )

    def __init__(
        self,
        priority: Priority,
        estimate: Estimate,
        deadline_ns: int = NEVER_NS,
        client: int = 0,
    ) -> None:
        self.priority = priority
        self.estimate = estimate
        self.deadline_ns = deadline_ns
        self.client = client
        self.floor_ns = self.heard_after_ns = 0.0
        self.charged_ns = 0.0
        self.sequence = -1
        self.entry = -1
        self.queued = self.has_place = self.has_begun = self.was_displaced = False
        self.since_ns = self.shielded_until_ns = 0
