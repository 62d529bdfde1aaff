"""A plan of which only so many executions may run at once, whoever runs them.

The gate in front of the workers sees to that, and nobody waits there on a thread. But one plan may
take the place of another that had no limit, or a wider one: what was let through before runs the
new plan, too. Those few wait here, on their threads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from nnasync._core.plans.dense_copies import reads_in_place
from nnasync._core.workers import Given, StopFlag
from nnasync.engine.contract import BoundCall, Plan, Target
from nnasync.hal import Array

_LOOK_AGAIN_S = 0.01
"""Who waits looks so often whether it was stopped."""


def limited(plan: Plan, concurrency: int) -> Plan:
    """Returns the plan with this limit; 0 is none."""
    return LimitedPlan(plan, concurrency) if concurrency else plan


class LimitedPlan(Plan):
    """A plan, at most `concurrency` of whose executions are under way."""

    def __init__(self, plan: Plan, concurrency: int) -> None:
        self._plan = plan
        self._places = threading.Semaphore(concurrency)

    def reads_in_place(self, array: Array) -> bool:
        """Returns whether the plan reads this array in place."""
        return reads_in_place(self._plan, array)

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        """Returns a call that takes a place for each run; raises what the plan raises."""
        return _LimitedCall(self._plan.bind(inputs, outputs), self._places)

    def trim(self) -> None:
        """Frees idle scratch memory."""
        self._plan.trim()


class _LimitedCall(BoundCall):
    """A call that has a place while it runs; one that was stopped has none until it goes on."""

    __slots__ = ("_call", "_places", "reads_given")

    def __init__(self, call: BoundCall, places: threading.Semaphore) -> None:
        self._call = call
        self._places = places
        self.reads_given = call.reads_given

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Runs or goes on once there is a place; False where it was stopped before."""
        while not self._places.acquire(timeout=_LOOK_AGAIN_S):
            if stop.raised:
                return False
        try:
            return self._call.run(stop) if given is None else self._call.run(stop, given)
        finally:
            self._places.release()

    def rewind(self) -> None:
        """Discards a run that was stopped or failed."""
        self._call.rewind()
