"""A plan that is replaced by a better one while its calls are in use.

A quick plan answers at once, a better one is made meanwhile and takes over between executions. The
new plan is bound to the memory of every call that exists before any of them changes, on the thread
that brings it, so that no execution waits for that. A call changes when its next run begins; a run
that was stopped goes on in the plan in which it began. What the new plan cannot be bound to stays
with the old one. After the last plan nothing changes any more: new calls are those of that plan,
and `bare` takes the others apart, so that nothing is left of the stages in the way of a run.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from nnasync._core.workers import Given, StopFlag
from nnasync.engine.contract import BoundCall, OutputBuffer, Plan, Target
from nnasync.fences import Fence
from nnasync.hal import Array

logger = logging.getLogger(__name__)


class StagedPlan(Plan):
    """A plan that begins as `first`, and changes to the next one with `replace`."""

    def __init__(self, first: Plan, *, ripe_after: int = 0) -> None:
        """Takes the first plan; `ripe` is signaled after `ripe_after` executions, at once for 0."""
        self.plan = first
        """What new calls are bound to."""
        self._calls: weakref.WeakSet[StagedCall] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._left = ripe_after
        self._is_last = False
        self.ripe = Fence()
        if ripe_after < 1:
            self.ripe.signal()

    def finish(self) -> None:
        """Notes that no other plan follows."""
        self._is_last = True
        self._left = 0

    def reads_in_place(self, array: Array) -> bool:
        """Returns whether all plans that may run it read this array in place."""
        return self.plan.reads_in_place(array) if self._is_last else array.flags.c_contiguous

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        """Returns a call of the current plan; raises what that raises."""
        plan = self.plan
        if self._is_last:
            return plan.bind(inputs, outputs)
        call = StagedCall(self, plan.bind(inputs, outputs), inputs, outputs)
        with self._lock:
            self._calls.add(call)
            replaced = self.plan is not plan
        if replaced:
            _offer(call, self.plan)
        return call

    def trim(self) -> None:
        """Frees idle scratch memory."""
        self.plan.trim()

    def replace(self, plan: Plan, begin: Callable[[], object] = lambda: None) -> None:
        """Have calls take this plan from their next run on; may be called on any thread.

        The plan is tried once, on memory of its own, so that the first to take it finds it warm.
        Raises what the plan raises then; nothing changes in that case. Else `begin` is called,
        before any call takes the plan.
        """
        with self._lock:
            calls = list(self._calls)
        if calls:
            _try(plan, calls[0])
        begin()
        for call in calls:
            _offer(call, plan)
        with self._lock:
            late = [call for call in self._calls if call not in calls]
            self.plan = plan
        for call in late:
            _offer(call, plan)

    def count_run(self) -> None:
        """Notes that an execution has ended."""
        if self._left > 0:
            self._left -= 1
            if self._left <= 0:
                self.ripe.signal()


class StagedCall(BoundCall):
    """A call that changes to the next plan between its runs; used by one thread at a time."""

    __slots__ = ("__weakref__", "_call", "_inputs", "_is_stopped", "_next", "_outputs", "_staged")

    def __init__(
        self,
        staged: StagedPlan,
        call: BoundCall,
        inputs: Sequence[Array | None],
        outputs: Sequence[Target],
    ) -> None:
        self._staged = staged
        self._call = call
        self._inputs = inputs
        self._outputs = outputs
        self._next: BoundCall | None = None
        self._is_stopped = False

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Run to the end, or until the plan stops."""
        if not self._is_stopped:
            following = self._next
            if following is not None:
                self._call, self._next = following, None
        self._is_stopped = True
        finished = self._call.run(stop)
        self._is_stopped = not finished
        if finished and self._staged._left > 0:
            self._staged.count_run()
        return finished

    def rewind(self) -> None:
        """Forget a stopped or failed run."""
        self._is_stopped = False
        self._call.rewind()

    def take_up(self, plan: Plan) -> None:
        """Binds the plan of the next run; raises the errors of that plan."""
        self._next = plan.bind(self._inputs, self._outputs)


def bare(call: BoundCall) -> BoundCall:
    """Returns an idle call without the stages around it, as it runs from now on."""
    if not isinstance(call, StagedCall) or call._is_stopped or not call._staged._is_last:
        return call
    return call._next or call._call


def _offer(call: StagedCall, plan: Plan) -> None:
    try:
        call.take_up(plan)
    except Exception as error:
        logger.info("a call stays with the first plan of its network: %s", error)


def _try(plan: Plan, like: StagedCall) -> None:
    """Runs a plan once on zeros, in memory like that of a call."""
    inputs = [None if each is None else np.zeros_like(each) for each in like._inputs]
    outputs: list[Target] = [
        OutputBuffer(np.zeros_like(each.memory), each.dtype, each.dimensions)
        if isinstance(each, OutputBuffer)
        else np.zeros_like(each)
        for each in like._outputs
    ]
    call, stop = plan.bind(inputs, outputs), StopFlag(falls_back=False)
    try:
        while not call.run(stop):
            pass
    finally:
        call.rewind()
