"""A plan in two forms: with several threads while nothing else runs, with one when others do.

Two cores that share one execution answer it sooner, but never twice as soon; two executions on one
core each get more done. So a run that begins while the workers are idle takes the wide form, and
one that begins beside others the narrow form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnasync._core.plans.dense_copies import reads_in_place, write
from nnasync._core.workers import Given, StopFlag
from nnasync.engine.contract import BoundCall, Plan, Target
from nnasync.hal import Array


class AdaptivePlan(Plan):
    """A wide plan and a narrow plan of the same model, chosen for each run by `is_busy`.

    The narrow plan may come later; all runs are wide until then.
    """

    def __init__(self, wide: Plan, narrow: Plan | None, is_busy: Callable[[], bool]) -> None:
        self._wide = wide
        self._narrow = narrow
        self._is_busy = is_busy

    def reads_in_place(self, array: Array) -> bool:
        """Returns whether both forms read this array in place."""
        forms = (self._wide, self._narrow)
        return all(form is None or reads_in_place(form, array) for form in forms)

    def complete(self, narrow: Plan) -> None:
        """Adds the narrow plan, from any thread."""
        self._narrow = narrow

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        """Binds the wide form; the narrow one is bound when it is first needed."""
        wide = self._wide.bind(inputs, outputs)

        def bind_narrow() -> BoundCall | None:
            return None if self._narrow is None else self._narrow.bind(inputs, outputs)

        return _AdaptiveCall(wide, bind_narrow, self._is_busy, inputs)

    def trim(self) -> None:
        """Frees idle scratch memory of both forms."""
        self._wide.trim()
        if self._narrow is not None:
            self._narrow.trim()


class _AdaptiveCall(BoundCall):
    """Both forms of one call; a stopped run goes on in the form in which it began."""

    __slots__ = (
        "_bind_narrow",
        "_inputs",
        "_is_busy",
        "_narrow",
        "_stopped",
        "_wide",
        "reads_given",
    )

    def __init__(
        self,
        wide: BoundCall,
        bind_narrow: Callable[[], BoundCall | None],
        is_busy: Callable[[], bool],
        inputs: Sequence[Array | None],
    ) -> None:
        self.reads_given = wide.reads_given
        self._inputs = inputs
        self._wide = wide
        self._bind_narrow = bind_narrow
        self._narrow: BoundCall | None = None
        self._is_busy = is_busy
        self._stopped: BoundCall | None = None

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        call = self._stopped
        if call is None:
            has_others = stop.has_others
            if has_others is None:
                has_others = self._is_busy()
            call = (self._narrow or self._narrow_call() or self._wide) if has_others else self._wide
        if given is not None and call.reads_given:
            return call.run(stop, given)
        if given is not None:
            write(self._inputs, given)
        self._stopped = call
        finished = call.run(stop)
        if finished:
            self._stopped = None
        return finished

    def rewind(self) -> None:
        call, self._stopped = self._stopped, None
        if call is not None:
            call.rewind()

    def _narrow_call(self) -> BoundCall | None:
        self._narrow = self._bind_narrow()
        return self._narrow
