"""What engines cannot take as it is: copied before a run, or after it.

That is images with padded rows, and with some engines inputs in read-only memory; a plan says what
it reads in place (`Plan.bind`). It is the only place where the framework copies tensors on their
way to an engine, and it counts the bytes (`memory.statistics().copied_bytes`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync._core.workers import Given, StopFlag
from nnasync.engine.contract import BoundCall, OutputBuffer, Plan, Target
from nnasync.engine.problems import check_call
from nnasync.hal import Array
from nnasync.memory import count_copied

_Move = tuple[Array, Array]


def reads_in_place(plan: Plan, array: Array) -> bool:
    """Returns whether a plan reads this input in place."""
    if _is_plain(array) and array.flags.writeable:
        return True
    return bool(plan.reads_in_place(array))


def bound(plan: Plan, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
    """Returns a call of a plan on arrays of which some have padded rows or are read-only."""
    gathers: list[_Move] = []
    scatters: list[_Move] = []
    given, targets = list(inputs), list(outputs)
    for place, source in enumerate(given):
        if source is not None and not reads_in_place(plan, source):
            given[place] = dense = np.empty(source.shape, source.dtype)
            gathers.append((dense, source))
    for place, target in enumerate(targets):
        if not isinstance(target, OutputBuffer) and not _is_plain(target):
            targets[place] = dense = np.empty(target.shape, target.dtype)
            scatters.append((target, dense))
    call = check_call(plan.bind(given, targets), plan)
    return _GatheringCall(call, gathers, scatters) if gathers or scatters else call


class _GatheringCall(BoundCall):
    """A call that uses dense copies in place of some arrays."""

    __slots__ = ("_call", "_gathers", "_is_begun", "_scatters")

    def __init__(
        self, call: BoundCall, gathers: Sequence[_Move], scatters: Sequence[_Move]
    ) -> None:
        self._call = call
        self._gathers = gathers
        self._scatters = scatters
        self._is_begun = False

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Gather unless that was done before the run was stopped, run, scatter."""
        if stop.raised:
            return False
        if not self._is_begun:
            _move(self._gathers)
            self._is_begun = True
        try:
            if not self._call.run(stop):
                return False
        except BaseException:
            self._is_begun = False
            raise
        self._is_begun = False
        _move(self._scatters)
        return True

    def rewind(self) -> None:
        """Forget a stopped or failed run."""
        self._is_begun = False
        self._call.rewind()


def _is_plain(array: Array) -> bool:
    return array.flags.c_contiguous


def _move(moves: Sequence[_Move]) -> None:
    for target, source in moves:
        np.copyto(target, source)
        count_copied(source.nbytes)


def write(inputs: Sequence[Array | None], given: Sequence[Array]) -> None:
    """Copies arrays into the memory of inputs, all of which are there."""
    for target, source in zip(inputs, given, strict=True):
        if target is not None:
            target[...] = source
