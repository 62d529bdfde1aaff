"""The delays of one simulated run: drawn of measured ones, or hops of one length."""

from __future__ import annotations

from nnasync.experiments.delays import Delays, draws
from nnasync.experiments.overheads import Overheads

SLEEPS_DEEPLY_NS = 1_000_000
"""A worker that has had nothing to do for longer begins later, where delays were not measured."""

_COMES, _BEGINS, _FOLLOWS, _DEVICE, _HEARD = range(5)


class SimulatedDelays:
    """Iterators of the delays of one run; each has draws of its own (`delays.Delays`)."""

    def __init__(self, overheads: Overheads, found: Delays | None, seed: int) -> None:
        there_ns = overheads.hop_ns // 2
        self._there_ns = there_ns
        self._cold_there_ns = overheads.cold_hop_ns - there_ns
        back_ns = (overheads.hop_ns - there_ns,)
        self.comes_ns = draws(found.comes_ns if found else back_ns, seed, _COMES)
        self.follows_ns = draws(found.follows_ns if found else (0,), seed, _FOLLOWS)
        self.device_ns = draws(found.device_ns if found else (0,), seed, _DEVICE)
        self.heard_ns = draws(found.heard_ns if found else back_ns, seed, _HEARD)
        self._begins_ns = draws(found.begins_ns, seed, _BEGINS) if found else None

    def begins_ns(self, asleep_ns: int) -> int:
        """From the submission until a worker begins that has slept for so long."""
        if self._begins_ns is not None:
            return next(self._begins_ns)
        return self._cold_there_ns if asleep_ns > SLEEPS_DEEPLY_NS else self._there_ns
