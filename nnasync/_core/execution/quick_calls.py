"""Plain calls of one network on its own loop: one array that fits.

Most calls are that, and for a small network what surrounds the arithmetic costs more than the
arithmetic. Nothing suspends between the copy of the input and that of the output of one that runs
on this thread, so one slot does for all of those, and what belongs to it is looked up once. A call
that is any different, or comes when it has to wait, is answered with None before anything has
happened. Where it is plain all the same, and is surely run by a worker or by whoever is free first,
it goes on beside others, in a slot for itself; else it goes the longer way.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nnasync._core.clock import Deadline, due_ns
from nnasync._core.deferred import deferred
from nnasync._core.execution.ports import Port
from nnasync._core.execution.prepared_kinds import is_quick
from nnasync._core.execution.slots import IdleSlots, Slot, Slots
from nnasync._core.wakeup import Wakeup
from nnasync.device import InlineRun, PreparedModel, QuickPreparedModel
from nnasync.errors import MissedDeadline
from nnasync.hal import Array
from nnasync.scheduler import NEVER_NS

if TYPE_CHECKING:
    from nnasync._core.execution import quick_open
    from nnasync._core.execution.flexible import FlexibleCalls
    from nnasync._core.execution.quick_open import QuickOpenCalls
else:
    quick_open = deferred("nnasync._core.execution.quick_open")


def quick_calls(
    prepared: PreparedModel,
    slots: IdleSlots[Any],
    take: Callable[[], Slot],
    wakeup: Wakeup,
) -> QuickCalls | None:
    """Returns the plain calls of a network with these slots; None where its device has none.

    `take` gives one of the slots, which is not given back.
    """
    if slots.port is None or not is_quick(prepared):
        return None
    return QuickCalls(prepared, slots, slots.port, take, wakeup)


def quick_calls_of(
    prepared: PreparedModel, slots: Slots, flexible: FlexibleCalls | None, wakeup: Wakeup
) -> QuickCalls | QuickOpenCalls | None:
    """Returns the plain calls of a network; its shapes are open where it has `flexible` calls."""
    if flexible is None:
        return quick_calls(prepared, slots, slots.take_ahead, wakeup)
    return quick_open.QuickOpenCalls(prepared, flexible, wakeup) if is_quick(prepared) else None


class QuickCalls:
    """Made for the slots of one network or burst; to be used on its loop."""

    __slots__ = (
        "_beside",
        "_declined_ns",
        "_dtype",
        "_input",
        "_is_away",
        "_is_whole",
        "_never_runs",
        "_prepared",
        "_read",
        "_run",
        "_shape",
        "_slot",
        "_slots",
        "_take",
        "_wakeup",
        "ends_turn",
    )

    def __init__(
        self,
        prepared: QuickPreparedModel,
        slots: IdleSlots[Any],
        port: Port,
        take: Callable[[], Slot],
        wakeup: Wakeup,
    ) -> None:
        """`port` is the only input; `take` gives a slot that is not given back."""
        self._prepared = prepared
        self._slots = slots
        self._dtype, self._shape = port.dtype, port.shape
        self._take = take
        self._wakeup = wakeup
        self._is_whole = slots.is_whole
        self._slot: Slot | None = None
        self._run: InlineRun | None = None
        self._beside: InlineRun | None = None
        self._is_away = False
        """Whether the last call went beside others: so the next one does, unless that says no."""
        self._input: Any = None
        self._read: Callable[[], Any] = _nothing
        self._never_runs = False
        self.ends_turn = False
        """Whether `next_turn` is to be awaited after the call that was just answered."""
        self._declined_ns: int | None = None
        """The deadline of the last call, if that was plain and yet answered with None."""

    def call(
        self, arrays: Sequence[Any], deadline: Deadline | None, out: Array | None = None
    ) -> Any:
        """Returns the output, or a tuple of outputs; None where this is no plain call.

        The only output is written to `out` if that is given, which must fit. Raises
        what an execution raises.
        """
        self._declined_ns = None
        if len(arrays) != 1:
            return None
        array = arrays[0]
        if (
            array.__class__ is not np.ndarray
            or array.dtype is not self._dtype
            or array.shape != self._shape
            or not self._wakeup.is_undisturbed()
        ):
            return None
        deadline_ns = NEVER_NS if deadline is None else due_ns(deadline)
        if deadline_ns is None:
            return None
        run = self._run
        if run is None and (self._is_away or (run := self._ready()) is None):
            self._declined_ns = deadline_ns
            return None
        given: Sequence[Any] | None = arrays
        if not self._is_whole:
            given = None
            self._input[...] = array
        try:
            if not run.run(given, deadline_ns):
                self._declined_ns = deadline_ns
                return None
        except MissedDeadline:
            raise  # Nothing was begun, or all of it has ended.
        except BaseException:
            self._run = None  # As any slot whose execution failed, this one is not used again.
            raise
        self.ends_turn = run.ends_turn
        if out is not None:
            # Where there is a run there is the slot that it was bound to.
            out[...] = self._slot.outputs[0]  # type: ignore[union-attr]
            return out
        return self._read()

    def next_turn(self) -> Awaitable[None]:
        """Returns what lets the loop turn after a call that `ends_turn`."""
        return self._run.next_turn()  # type: ignore[union-attr]  # It has just run that call.

    def goes_beside(self) -> bool:
        """Returns whether the call that was just answered with None goes on by `call_beside`."""
        deadline_ns = self._declined_ns
        if deadline_ns is None:
            return False
        run = self._run or self._beside or self._found_beside()
        self._is_away = run is not None and run.goes_beside(deadline_ns)
        return self._is_away

    async def call_beside(self, array: Any) -> Any:
        """Run a call that `goes_beside` others, with its one array; the outputs, as of `call`."""
        run, slots = self._run or self._beside, self._slots
        deadline_ns = self._declined_ns
        slot = slots.take()
        slot.inputs[0][...] = array
        try:
            # There are both, as it has said, and nothing has happened since.
            await run.run_beside(slot.request, deadline_ns)  # type: ignore[union-attr, arg-type]
        except BaseException:
            slots.give_up(slot, slot.request)
            raise
        value = slot.read(None)
        slots.give_back(slot)
        return value

    def _ready(self) -> InlineRun | None:
        """Take a slot and what runs it, as soon as executions run on this thread at all."""
        if self._never_runs or not self._prepared.runs_here_now():
            return None
        slot = self._take()
        self._run = self._prepared.quick_run(slot.request)
        self._never_runs = self._run is None
        self._slot, self._input = slot, slot.inputs[0]
        is_single = len(slot.outputs) == 1
        self._read = slot.outputs[0].copy if is_single else functools.partial(slot.read, None)
        return self._run

    def _found_beside(self) -> InlineRun | None:
        """Returns what runs calls beside others where none runs here; it keeps no slot."""
        if self._never_runs:
            return None
        slot = self._take()
        self._beside = run = self._prepared.quick_run(slot.request)
        self._never_runs = run is None
        self._slots.give_back(slot)
        return run


def _nothing() -> None:
    """Returns None, for there are no outputs before there was a run."""
