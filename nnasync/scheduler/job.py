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
_OLD = 0.9995
_FAR_BEYOND = 8
_AGAIN_WITHIN = 64


def at_ns(deadline: Deadline | None) -> int:
    """Returns the time of a deadline; NEVER_NS without one."""
    return NEVER_NS if deadline is None else deadline.at_ns


class Estimate:
    """How long one execution of a prepared model takes, learnt from measured durations.

    Nothing is known before the first of them: `samples` is 0, and `high_ns` infinite. What it takes
    on a thread of a loop with the cores to itself (`alone_ns`) and beside others (`beside_ns`), and
    what it takes on a worker (`worker_ns`), is 0 until it is known. The rest is for who decides
    where executions run: `holds_loop` is whether this one might run on the thread of its loop when
    that was last asked, `spreads` whether several are better side by side than one after the other,
    and `is_beside` whether the next one on the thread of its loop has others beside it.
    """

    __slots__ = (
        "alone_ns",
        "beside_ns",
        "best_ns",
        "far_beyond_at",
        "floor_ns",
        "high_ns",
        "holds_loop",
        "is_beside",
        "ns",
        "samples",
        "spreads",
        "weighed_at",
        "worker_ns",
    )

    def __init__(self) -> None:
        self.ns = 0.0
        self.best_ns = 0.0
        self.floor_ns = 0.0
        self.high_ns = math.inf
        self.alone_ns = self.beside_ns = self.worker_ns = 0.0
        self.samples = 0
        self.holds_loop = self.spreads = True
        self.is_beside = False
        self.weighed_at = -_AGAIN_WITHIN
        """At which sample the two ways were compared last, side by side and one after the other."""
        self.far_beyond_at = -_AGAIN_WITHIN
        """Which sample was the last that took very much longer than `high_ns`."""

    def copy(self) -> Estimate:
        """Returns an estimate that begins with what this one has learnt."""
        copy = Estimate()
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        return copy

    def observe(self, duration_ns: float, here: float = 1.0) -> None:
        """Learns from a measured duration; `here` is the share that a loop's thread would take.

        It is asked for each run, so it reckons with floats alone, which Python does soonest.
        """
        self.samples = samples = self.samples + 1
        if samples == 1:
            self.ns = self.best_ns = self.floor_ns = self.high_ns = float(duration_ns)
            return
        took_ns = held_ns = float(duration_ns)
        ns, best_ns, high_ns = self.ns, self.best_ns, self.high_ns
        if took_ns < ns:
            ns += (took_ns - ns) * _DOWN
        elif took_ns > 2.0 * ns:
            ns += ns * _UP
        else:
            ns += (took_ns - ns) * _UP
        usual_ns = ns
        if here != 1.0:
            held_ns *= here
            usual_ns *= here
        if took_ns < best_ns:
            best_ns = took_ns
        elif usual_ns > best_ns:
            best_ns += (usual_ns - best_ns) * _FORGET
        next_ns = held_ns
        if held_ns <= high_ns:
            high_ns *= _MOSTLY if samples > _FIRST else _AT_FIRST
            if high_ns > held_ns:
                next_ns = high_ns
        else:
            high_ns = self._raised(high_ns, held_ns)
            if high_ns < held_ns:
                next_ns = high_ns
        self.ns, self.high_ns = ns, next_ns
        self.best_ns = self.floor_ns = best_ns

    def _raised(self, high_ns: float, duration_ns: float) -> float:
        """Returns the new `high_ns` after a run that exceeds it: it rises in steps.

        A run that exceeds it by far may be the doing of the operating system. A second one soon
        after it says that the length depends on the data, and each of them is a stall of whatever
        waits for it.
        """
        raised_ns = high_ns * _RARELY
        if duration_ns > _FAR_BEYOND * high_ns:
            if self.samples - self.far_beyond_at <= _AGAIN_WITHIN:
                raised_ns = max(raised_ns, duration_ns / _FAR_BEYOND)
            self.far_beyond_at = self.samples
        return raised_ns

    def observe_on_worker(self, duration_ns: int) -> None:
        """Learns from a duration that was measured on a worker; one run at most doubles the value.

        Beside others runs are longer, there as here. By how much the usual one is, is no reason to
        keep the next from the thread of the loop: it counts for neither `high_ns` nor `best_ns`.
        """
        here_ns, there_ns = self.alone_ns, self.worker_ns
        if self.beside_ns > here_ns:
            here_ns = self.beside_ns
        took_ns = float(duration_ns)
        self.observe(took_ns, here_ns / there_ns if 0.0 < here_ns < there_ns else 1.0)
        self.worker_ns = _learnt(there_ns, took_ns, self.ns)

    def observe_beside(self, duration_ns: int) -> None:
        """Learns from a duration on the thread of a loop, beside others."""
        took_ns = float(duration_ns)
        self.observe(took_ns)
        self.is_beside = True
        self.learn_manner(took_ns)

    def learn_manner(self, duration_ns: float) -> None:
        """Learns how long a run on the thread of a loop takes, alone or beside others."""
        if self.is_beside:
            self.beside_ns = _learnt(self.beside_ns, duration_ns, self.ns)
            self.alone_ns *= _OLD
        else:
            self.alone_ns = _learnt(self.alone_ns, duration_ns, self.ns)
            self.beside_ns *= _OLD
            self.worker_ns *= _OLD

    def try_worker_again(self) -> None:
        """Lets what is known of runs on workers grow old, because no worker was chosen."""
        if self.worker_ns > self.best_ns:
            self.worker_ns *= _TRIED_AGAIN

    def refused(self) -> None:
        """Lowers the floor, because a job was refused on the strength of it."""
        self.floor_ns *= _REFUSED

    def try_here_again(self) -> None:
        """Lowers `high_ns` a little, so that runs it keeps from the loop are tried there again."""
        self.high_ns = max(self.ns, self.high_ns * _REFUSED)


def _learnt(known_ns: float, duration_ns: float, usual_ns: float) -> float:
    """Returns the value after one more duration, which at most doubles it.

    What was not known is taken for what is usual: the first one of its kind finds cold caches, or
    threads that sleep.
    """
    before_ns = known_ns or usual_ns
    most_ns = 2.0 * before_ns
    taken_ns = most_ns if most_ns < duration_ns else float(duration_ns)
    return before_ns + (taken_ns - before_ns) * _LEARNING


class Job:
    """What the scheduler knows of one execution; `client` 0 is the application itself.

    `heard_after_ns` is how long after its end who waits for it hears of that, at least. `active_ns`
    is how long it has run, which who runs it adds up; `resumed_ns` is since when it runs, where a
    policy decides, and negative while it does not.
    """

    __slots__ = (
        "active_ns",
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
        "resumed_ns",
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
        self.since_ns = self.shielded_until_ns = self.active_ns = 0
        self.resumed_ns = -1
