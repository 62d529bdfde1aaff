"""Plain calls of a network with open shapes, whose inputs have the shapes of one of the last calls.

As `quick_calls` does it: all that a run needs was looked up when those shapes came before. Nothing
suspends between the copies of the inputs and those of the outputs, so the request stays with those
that are kept meanwhile. Whatever is any different is answered with None before anything has
happened, and goes the longer way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnasync._core.clock import Deadline, due_ns
from nnasync._core.execution.filled_request import FilledRequest
from nnasync._core.execution.flexible import FlexibleCalls
from nnasync._core.wakeup import Wakeup
from nnasync.device import InlineRun, QuickPreparedModel
from nnasync.errors import MissedDeadline, OutputInsufficientSize
from nnasync.hal import Array
from nnasync.scheduler import NEVER_NS


class QuickOpenCalls:
    """The plain calls of one network with open shapes; to be used on its loop."""

    __slots__ = ("_calls", "_prepared", "_wakeup")

    ends_turn = False

    def __init__(self, prepared: QuickPreparedModel, calls: FlexibleCalls, wakeup: Wakeup) -> None:
        self._prepared = prepared
        self._calls = calls
        self._wakeup = wakeup

    def call(
        self, arrays: Sequence[Any], deadline: Deadline | None, out: Array | None = None
    ) -> Any:
        """Returns the output, or a tuple of outputs; None where this is no plain call.

        Raises what an execution raises.
        """
        filled = self._calls.kept_for(arrays)
        if filled is None or out is not None or not self._wakeup.is_undisturbed():
            return None
        deadline_ns = NEVER_NS if deadline is None else due_ns(deadline)
        if deadline_ns is None:
            return None
        run = filled.run or self._ready(filled)
        if run is None:
            return None
        filled.fill(arrays)
        try:
            if not run.run(None, deadline_ns):
                return None
        except OutputInsufficientSize as error:
            self._calls.outgrown(filled, error)
            return None
        except MissedDeadline:
            raise  # Nothing was begun, or all of it has ended.
        except BaseException:
            self._calls.forget(filled)
            raise
        return self._calls.copied(filled, run.output_shapes)

    async def next_turn(self) -> None:
        """Is never called, since `ends_turn` is always False."""

    def goes_beside(self) -> bool:
        """Returns False: no such call goes on by `call_beside`."""
        return False

    async def call_beside(self, array: Any) -> Any:
        """Is never called, since `goes_beside` is always False."""

    def _ready(self, filled: FilledRequest) -> InlineRun | None:
        """Returns what runs a request on this thread; None until executions run here at all."""
        if not self._prepared.runs_here_now():
            return None
        filled.run = self._prepared.quick_run(filled.request)
        return filled.run
