"""A plan that falls back: if its device fails to run it, the reference runs it instead.

A run that raises a DeviceError, or anything that is no typed error, begins anew on the reference,
on the same arrays, and its caller notices nothing but the time. The reference's plan is compiled
when it is first needed, and kept. An input that shares memory with an output is copied before each
run, since the failing run may have overwritten it.

No other error falls back: a missed deadline, a refusal and a mistake of the caller would be the
same on the reference, and a run that was told to abort has nobody who waits for it. Nor does a run
whose flag says that this is not the place (`StopFlag.falls_back`): on the thread of an event loop,
which the reference would hold up, or in a trial, which is to tell of the failure.

A device that failed `TOLERATED_FAILURES` times in a row is not asked any more but for every
`RETRY_EVERY`-th run; the first of those that succeeds ends this.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

import numpy as np

from nnasync._core.endings import renewed_in_child
from nnasync._core.plans.dense_copies import reads_in_place, write
from nnasync._core.workers import ABORT, Given, StopFlag, contained, stopped
from nnasync.engine.contract import BoundCall, OutputBuffer, Plan, Target
from nnasync.engine.problems import check_call
from nnasync.errors import CallerError, Cancelled, DeviceError, GeneralFailure, NNError, Refused
from nnasync.fences import fresh
from nnasync.hal import Array

TOLERATED_FAILURES = 3
"""After this many failures in a row, runs go straight to the reference."""

RETRY_EVERY = 32
"""Of the runs that do, each of this number is tried on the device all the same."""

# Reentrant: a health that is dropped takes it, perhaps in the midst of another that holds it.
_lock = renewed_in_child(threading.RLock())


class Health:
    """Records how a plan's device did lately.

    `failures` are those in a row. `suspects`, read without a lock by every run, counts the plan and
    its parts that failed last time: while there is one, no run may hold up the thread of a loop.
    """

    __slots__ = ("_is_suspect", "_skipped", "_whole", "failure", "failures", "suspects")

    def __init__(self, whole: Health | None = None) -> None:
        """`whole` is the health of the plan that this one is a part of."""
        self._whole = whole
        self._is_suspect = False
        self._skipped = 0
        self.failures = 0
        self.suspects = 0
        self.failure: NNError = GeneralFailure("nothing has failed")

    def failed(self, failure: NNError) -> None:
        """Notes that the device failed."""
        with _lock:
            self.failures += 1
        self.doubted(failure)

    def doubted(self, failure: NNError) -> None:
        """Notes a failure in a run that is repeated on the device.

        The repetition is what counts.
        """
        with _lock:
            self.failure = failure
            self._suspect(is_suspect=True)

    def succeeded(self) -> None:
        """Notes that the device did its work."""
        with _lock:
            self.failures = self._skipped = 0
            self._suspect(is_suspect=False)

    def skips(self) -> bool:
        """Returns whether the run that begins now goes straight to the reference."""
        if self.failures < TOLERATED_FAILURES:
            return False
        with _lock:
            self._skipped += 1
            return self._skipped % RETRY_EVERY != 0

    def __del__(self) -> None:
        self.succeeded()

    def _suspect(self, *, is_suspect: bool) -> None:
        change = is_suspect - self._is_suspect
        self._is_suspect = is_suspect
        health: Health | None = self
        while health is not None:
            health.suspects += change
            health = health._whole


class LazyPlan(Plan):
    """The plan of the reference, which is compiled when it first runs."""

    def __init__(self, compile_reference: Callable[[], Plan]) -> None:
        self._compile = compile_reference
        self._lock = threading.Lock()
        self._plan: Plan | None = None
        self._failure: NNError | None = None

    def plan(self) -> Plan:
        """Returns the compiled plan; compiles it the first time.

        Raises GeneralFailure, again and again, where the reference cannot run the model, Refused.
        """
        plan = self._plan
        if plan is not None:
            return plan
        with self._lock:
            if self._failure is not None:
                raise fresh(self._failure) from self._failure.__cause__
            if self._plan is None:
                self._plan = self._compiled()
            return self._plan

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        """Returns a call that is bound when it first runs."""
        return _LateCall(self.plan, inputs, outputs)

    def trim(self) -> None:
        """Frees idle scratch memory."""
        if self._plan is not None:
            self._plan.trim()

    def _compiled(self) -> Plan:
        try:
            return self._compile()
        except Refused:
            raise
        except Exception as error:
            failure = GeneralFailure(f"the reference cannot step in: {error}")
            failure.__cause__ = error
            self._failure = untraced(failure)
            raise failure from error


class GuardedPlan(Plan):
    """A plan of a device, and the reference that runs what the device fails to run."""

    def __init__(
        self,
        plan: Plan,
        reference_plan: LazyPlan,
        on_fallback: Callable[[NNError], object],
        *,
        name: str = "the device",
        health: Health | None = None,
    ) -> None:
        """`on_fallback` hears, on the thread of the run.

        Of the failure for which the reference steps in.

        `health` is given where it counts for that of a whole.
        """
        self.plan = plan
        self.reference_plan = reference_plan
        self.on_fallback = on_fallback
        self.name = name
        self.health = health or Health()

    def reads_in_place(self, array: Array) -> bool:
        """Returns whether the device's plan reads this array in place, as the reference's does."""
        return reads_in_place(self.plan, array)

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        """Returns a call of the device's plan; where binding fails, each run tries it again."""
        try:
            call = check_call(self.plan.bind(inputs, outputs), self.plan)
        except (CallerError, Cancelled, Refused):
            raise
        except (Exception, SystemExit):
            call = _LateCall(lambda: self.plan, inputs, outputs)
        shared = _shared(inputs, outputs)
        if not shared:
            return _GuardedCall(self, call, inputs, outputs)
        copies = {n: array.copy() for n, array in shared.items()}
        kept = [copies.get(n, each) for n, each in enumerate(inputs)]
        return _KeepingCall(
            self, call, kept, outputs, [(copies[n], array) for n, array in shared.items()]
        )

    def trim(self) -> None:
        """Frees idle scratch memory of both plans."""
        self.plan.trim()
        self.reference_plan.trim()


class _GuardedCall(BoundCall):
    """A call of the device, with one of the reference once that was needed."""

    __slots__ = (
        "_call",
        "_failure",
        "_health",
        "_inputs",
        "_is_midway",
        "_outputs",
        "_plan",
        "_reference",
        "reads_given",
    )

    def __init__(
        self,
        plan: GuardedPlan,
        call: BoundCall,
        inputs: Sequence[Array | None],
        outputs: Sequence[Target],
    ) -> None:
        self._plan = plan
        self._health = plan.health
        self._call = call
        self.reads_given = call.reads_given
        self._inputs = inputs
        self._outputs = outputs
        self._reference: BoundCall | None = None
        # Why the run that is under way is on the reference; None: it is on the device.
        self._failure: NNError | None = None
        self._is_midway = False

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Run or go on, on the device or, once that has failed, on the reference."""
        if given is not None and (self._health.suspects or stop.falls_back):
            write(self._inputs, given)  # The reference may have to read them.
            given = None
        # Most runs do no more than this, so it is not shared with `_run_and_recover`.
        if self._health.suspects or self._failure is not None:
            return self._run_and_recover(stop)
        try:
            if self._call.run(stop) if given is None else self._call.run(stop, given):
                self._is_midway = False
                return True
        except (Exception, SystemExit) as error:
            return self._fall_back(error, stop)
        return self._stopped(stop)

    def rewind(self) -> None:
        """Discard a stopped or failed run, on the device or on the reference."""
        self._is_midway = False
        failure, self._failure = self._failure, None
        if failure is None:
            self._call.rewind()
        elif self._reference is not None:
            self._reference.rewind()

    @property
    def _begins(self) -> bool:
        return self._failure is None and not self._is_midway

    def _run_and_recover(self, stop: StopFlag) -> bool:
        """Runs on the device while it is suspected, and on the reference if that fails."""
        if self._begins and self._health.skips():
            return self._hand_over(self._health.failure, stop)
        if self._failure is not None:
            return self._run_reference(self._failure, stop)
        try:
            if self._call.run(stop):
                self._is_midway = False
                self._health.succeeded()
                return True
        except (Exception, SystemExit) as error:
            return self._fall_back(error, stop)
        return self._stopped(stop)

    def _stopped(self, stop: StopFlag) -> bool:
        if stop.raised:
            self._is_midway = True
            return False
        return self._fall_back(stopped(self._plan.name), stop)

    def _fall_back(self, error: BaseException, stop: StopFlag) -> bool:
        """Runs on the reference from the start, unless the error is no failure of the device."""
        failure = untraced(contained(error, self._plan.name))
        if not isinstance(failure, DeviceError) or stop.raised == ABORT:
            raise error
        self._is_midway = False
        with contextlib.suppress(Exception):
            self._call.rewind()
        if not stop.falls_back:
            self._health.doubted(failure)
            raise fresh(failure) from failure.__cause__
        self._health.failed(failure)
        return self._hand_over(failure, stop)

    def _hand_over(self, failure: NNError, stop: StopFlag) -> bool:
        """Runs on the reference from the start; raises the failure where that cannot be done."""
        if not stop.falls_back:
            raise fresh(failure) from failure.__cause__
        if self._reference is None:
            try:
                plan = self._plan.reference_plan.plan()
            except NNError as error:
                raise fresh(failure) from error
            self._reference = plan.bind(self._inputs, self._outputs)
        self._plan.on_fallback(failure)
        self._failure = failure
        return self._run_reference(failure, stop)

    def _run_reference(self, failure: NNError, stop: StopFlag) -> bool:
        reference = self._reference
        if reference is None:
            raise GeneralFailure("the reference was not bound")
        try:
            finished = reference.run(stop)
        except Exception as error:
            self._failure = None
            with contextlib.suppress(Exception):
                reference.rewind()
            raise decided(failure, error) from error
        if finished:
            self._failure = None
        return finished


class _KeepingCall(_GuardedCall):
    """A call that copies inputs before each run, as the device may overwrite them."""

    __slots__ = ("_kept",)

    def __init__(
        self,
        plan: GuardedPlan,
        call: BoundCall,
        inputs: Sequence[Array | None],
        outputs: Sequence[Target],
        kept: Sequence[tuple[Array, Array]],
    ) -> None:
        super().__init__(plan, call, inputs, outputs)
        self.reads_given = False
        self._kept = kept

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        if self._begins:
            for copy, source in self._kept:
                np.copyto(copy, source)
        return super().run(stop)


class _LateCall(BoundCall):
    """A call that is bound when it first runs."""

    __slots__ = ("_bound", "_inputs", "_outputs", "_plan")

    def __init__(
        self,
        plan: Callable[[], Plan],
        inputs: Sequence[Array | None],
        outputs: Sequence[Target],
    ) -> None:
        self._plan = plan
        self._inputs = inputs
        self._outputs = outputs
        self._bound: BoundCall | None = None

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        if self._bound is None:
            plan = self._plan()
            self._bound = check_call(plan.bind(self._inputs, self._outputs), plan)
        return self._bound.run(stop)

    def rewind(self) -> None:
        if self._bound is not None:
            self._bound.rewind()


def untraced(failure: NNError) -> NNError:
    """Returns a copy without traceback, which would keep the memory of the failed execution."""
    twin, cause = fresh(failure), failure.__cause__
    if isinstance(cause, Exception):
        twin.__cause__ = fresh(cause)
    return twin if isinstance(twin, NNError) else GeneralFailure(str(twin))


def decided(failure: NNError, error: Exception) -> Exception:
    """Returns the error to be raised `from` the latter, when device and reference have failed.

    That the caller erred, or must wait, only the reference says; else the device's failure counts.
    """
    return fresh(error if isinstance(error, CallerError | Cancelled | Refused) else failure)


def _shared(inputs: Sequence[Array | None], outputs: Sequence[Target]) -> dict[int, Array]:
    """Returns the inputs that share memory with an output, by number."""
    written = [_span(each.memory if isinstance(each, OutputBuffer) else each) for each in outputs]
    found = {}
    for number, each in enumerate(inputs):
        if each is None:
            continue
        start, end = _span(each)
        if any(start < stop and begin < end for begin, stop in written):
            found[number] = each
    return found


def _span(array: Array) -> tuple[int, int]:
    start: int = array.__array_interface__["data"][0]
    return start, start + array.nbytes
