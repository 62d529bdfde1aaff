"""The delays of one simulated run: drawn of measured ones, or hops of one length."""

from __future__ import annotations

import bisect

from nnasync.experiments.delays import AfterRest, Delays, draws
from nnasync.experiments.overheads import Overheads

SLEEPS_DEEPLY_NS = 1_000_000
"""A worker that has had nothing to do for longer begins later, where delays were not measured."""

_COMES, _BEGINS, _FOLLOWS, _DEVICE, _HEARD, _TOLD, _CALLS, _ANSWERS = range(8)


class SimulatedDelays:
    """The delays of one run, each drawn from an iterator of its own (see `delays.Delays`)."""

    def __init__(self, overheads: Overheads, found: Delays | None, *seeds: int) -> None:
        there_ns = overheads.hop_ns // 2
        self._there_ns = there_ns
        self._cold_there_ns = overheads.cold_hop_ns - there_ns
        back_ns = (overheads.hop_ns - there_ns,)
        delays = found or Delays(comes_ns=back_ns, heard_ns=back_ns)
        self._comes = _AfterRests(delays.comes_ns, delays.comes_after, (*seeds, _COMES))
        self._heard = _AfterRests(delays.heard_ns, delays.heard_after, (*seeds, _HEARD))
        self.follows_ns = draws(found.follows_ns if found else (0,), *seeds, _FOLLOWS)
        self.device_ns = draws(found.device_ns if found else (0,), *seeds, _DEVICE)
        self.told_ns = draws(delays.told_ns, *seeds, _TOLD)
        self.calls_ns = draws(delays.calls_ns, *seeds, _CALLS)
        self.answers_ns = draws(delays.answers_ns, *seeds, _ANSWERS)
        self._begins_ns = draws(found.begins_ns, *seeds, _BEGINS) if found else None

    def comes_ns(self, rested_ns: int) -> int:
        """Draws the time until an idle loop begins the call.

        `rested_ns` is how long it was idle.
        """
        return self._comes.next_ns(rested_ns)

    def heard_ns(self, rested_ns: int) -> int:
        """Draws the time from the end of a run until an idle loop takes up the answer."""
        return self._heard.next_ns(rested_ns)

    def begins_ns(self, asleep_ns: int) -> int:
        """Draws the time from submission until a worker begins that has slept for so long."""
        if self._begins_ns is not None:
            return next(self._begins_ns)
        return self._cold_there_ns if asleep_ns > SLEEPS_DEEPLY_NS else self._there_ns


class Waking:
    """A thread that waits for events: events that come while it wakes share one wake-up."""

    def __init__(self) -> None:
        self._there_ns = -1

    def there_ns(self, now: int, late_ns: int) -> int:
        """Returns when the thread can take an event; `late_ns` is how long it takes to wake."""
        if now >= self._there_ns:
            self._there_ns = now + late_ns
        return self._there_ns


class _AfterRests:
    """A delay that may depend on how long the loop has rested."""

    def __init__(
        self, values_ns: tuple[int, ...], after: tuple[AfterRest, ...], seeds: tuple[int, ...]
    ) -> None:
        self._from_ns = [each.from_ns for each in after[1:]]
        groups = [each.values_ns for each in after] or [values_ns]
        self._draws = [draws(each, *seeds, number) for number, each in enumerate(groups)]

    def next_ns(self, rested_ns: int) -> int:
        return next(self._draws[bisect.bisect_right(self._from_ns, rested_ns)])
