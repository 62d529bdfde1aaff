"""What the scheduler knows of one execution, and of how long its like take."""

from __future__ import annotations

from nnasync._core.clock import Deadline
from nnasync.hal import NEVER_NS, Priority

_UP = 0.1
_DOWN = 0.3
_FORGET = 0.02
_REFUSED = 0.95
_FORGIVEN = 0.98


def at_ns(deadline: Deadline | None) -> int:
    """When a deadline is; NEVER_NS without one."""
    return NEVER_NS if deadline is None else deadline.at_ns


class Estimate:
    """How long one execution of a prepared model takes, learnt from measured durations."""

    __slots__ = ("best_ns", "floor_ns", "ns", "overruns", "samples")

    def __init__(self) -> None:
        self.ns = 0.0
        self.best_ns = 0.0
        self.floor_ns = 0.0
        self.samples = 0
        self.overruns = 0.0

    def copy(self) -> Estimate:
        """An estimate that begins with what this one has learnt."""
        copy = Estimate()
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        return copy

    def observe(self, duration_ns: int) -> None:
        """Take a measured duration in."""
        self.samples += 1
        self.overruns *= _FORGIVEN
        if self.samples == 1:
            self.ns = self.best_ns = self.floor_ns = float(duration_ns)
            return
        difference = duration_ns - self.ns
        self.ns += difference * _DOWN if difference < 0 else min(difference, self.ns) * _UP
        if duration_ns < self.best_ns:
            self.best_ns = float(duration_ns)
        elif self.ns > self.best_ns:
            self.best_ns += (self.ns - self.best_ns) * _FORGET
        self.floor_ns = self.best_ns

    def overran(self, duration_ns: int) -> None:
        """Take in a duration that held the loop up far beyond the estimate."""
        self.observe(duration_ns)
        self.overruns += 1

    def refused(self) -> None:
        """Note that a job was refused on the strength of the floor."""
        self.floor_ns *= _REFUSED


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
