"""What engines cannot take as it is: copied before a run and after it, counted, once a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from nnasync._core.plans.dense_copies import bound, reads_in_place
from nnasync._core.workers import StopFlag
from nnasync.engine import BoundCall, Given, Plan
from nnasync.engine.contract import OutputBuffer
from nnasync.errors import GeneralFailure
from nnasync.hal import Array
from nnasync.memory import statistics

SHAPE = (1, 2, 3, 3)
NBYTES = 18


def padded() -> Array:
    """An image of 3 pixels a row, which has room for 4."""
    return np.zeros((1, 2, 4, 3), np.uint8)[:, :, :3]


class Doubling(BoundCall, Plan):
    """A plan, and its call, that doubles in two steps."""

    def __init__(self, reads: Any = None) -> None:
        self.bound_to: tuple[Sequence[Any], Sequence[Any]] = ((), ())
        self.fails = False
        self.rewound = 0
        self._step = 0
        if reads is not None:
            self.reads_in_place = reads  # type: ignore[method-assign]  # a plan of the test

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Doubling:
        self.bound_to = (inputs, outputs)
        return self

    def trim(self) -> None:
        """Nothing is kept."""

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        if self.fails:
            raise GeneralFailure("no luck")
        (source, *_), (target, *_) = self.bound_to
        if self._step == 0:
            self._half = source * 1
            self._step = 1
        if stop.raised:
            return False
        self._step = 0
        target[...] = self._half * 2
        return True

    def rewind(self) -> None:
        self._step = 0
        self.rewound += 1


def copied(run: Any) -> int:
    before = statistics().copied_bytes
    run()
    return statistics().copied_bytes - before


def test_what_is_plain_is_bound_as_it_is() -> None:
    plan = Doubling()
    x, y = np.zeros(SHAPE, np.uint8), np.zeros(SHAPE, np.uint8)
    memory = OutputBuffer(np.zeros(4, np.uint8), np.dtype(np.uint8), (0,))
    assert bound(plan, [x, None], [y, memory]) is plan
    assert plan.bound_to[0][0] is x
    assert plan.bound_to[1][0] is y
    assert plan.bound_to[1][1] is memory


def test_padded_rows_are_gathered_and_scattered() -> None:
    plan, x, y = Doubling(), padded(), padded()
    call = bound(plan, [x], [y])
    for value in (1, 2):
        x[...] = value
        assert copied(lambda: call.run(StopFlag())) == 2 * NBYTES
        assert (y == 2 * value).all()
    assert all(each[0].flags.c_contiguous for each in plan.bound_to)


def test_a_plan_says_what_it_reads_in_place() -> None:
    for answer in (True, False):
        asked: list[Array] = []
        plan = Doubling(lambda array, asked=asked, answer=answer: (asked.append(array), answer)[1])
        x, y = padded(), np.zeros(SHAPE, np.uint8)
        call = bound(plan, [x], [y])
        x[...] = 3
        assert copied(lambda call=call: call.run(StopFlag())) == (0 if answer else NBYTES)
        assert (y == 6).all()
        assert len(asked) == 1


@pytest.mark.parametrize("reads", [None, lambda array: True, lambda array: False])
def test_memory_that_is_read_only(reads: Any) -> None:
    plan, x, y = Doubling(reads), np.ones(SHAPE, np.uint8), np.zeros(SHAPE, np.uint8)
    x.flags.writeable = False
    call = bound(plan, [x], [y])
    in_place = reads is None or reads(x)
    assert reads_in_place(plan, x) is in_place
    assert copied(lambda: call.run(StopFlag())) == (0 if in_place else NBYTES)
    assert (y == 2).all()


def test_a_run_that_was_stopped_goes_on_with_what_it_had() -> None:
    plan, x, y = Doubling(), padded(), np.zeros(SHAPE, np.uint8)
    call = bound(plan, [x], [y])
    x[...] = 1
    stop = StopFlag()
    stop.raised = 1
    assert copied(lambda: call.run(stop)) == 0
    plan._step = 0
    going = StopFlag()
    assert call.run(going)
    x[...] = 2

    class Later(StopFlag):
        """Raised when the plan looks, not before."""

        looks = 0

        @property
        def raised(self) -> int:
            self.looks += 1
            return int(self.looks > 1)

        @raised.setter
        def raised(self, value: int) -> None:
            """Nobody else raises it."""

    assert copied(lambda: call.run(Later())) == NBYTES
    assert copied(lambda: call.run(StopFlag())) == 0
    assert (y == 4).all()


def test_a_run_that_is_forgotten_or_fails_begins_anew() -> None:
    plan, x, y = Doubling(), padded(), padded()
    call = bound(plan, [x], [y])
    plan.fails = True
    with pytest.raises(GeneralFailure):
        call.run(StopFlag())
    assert (y == 0).all()
    plan.fails = False
    x[...] = 5
    assert copied(lambda: call.run(StopFlag())) == 2 * NBYTES
    assert (y == 10).all()
    call.rewind()
    assert plan.rewound == 1
