"""A plan that is replaced: between runs, never inside one, and by nothing that fails."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np
import pytest

from nnasync._core.plans.staged import StagedPlan, bare
from nnasync.engine import BoundCall, Given, Plan, StopFlag, Target
from nnasync.errors import GeneralFailure
from nnasync.hal import Array


class Form(Plan):
    """A plan that adds its number to what it reads; calls stop as often as `stops` says."""

    def __init__(self, number: int, *, stops: int = 0, fault: Exception | None = None) -> None:
        self.number = number
        self.stops = stops
        self.fault = fault
        self.bound = 0
        self.rewound = 0

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        self.bound += 1
        return _FormCall(self, inputs, outputs)

    def trim(self) -> None:
        self.rewound = -1


class _FormCall(BoundCall):
    def __init__(
        self, form: Form, inputs: Sequence[Array | None], outputs: Sequence[Target]
    ) -> None:
        self.form, self.inputs, self.outputs = form, inputs, outputs

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        if self.form.fault is not None:
            raise self.form.fault
        if self.form.stops > 0:
            self.form.stops -= 1
            return False
        target, source = self.outputs[0], self.inputs[0]
        assert isinstance(target, np.ndarray)
        assert source is not None
        np.add(source, self.form.number, out=target)
        return True

    def rewind(self) -> None:
        self.form.rewound += 1


def memory() -> tuple[list[Array], list[Array]]:
    return [np.zeros(2, np.float32)], [np.zeros(2, np.float32)]


def ran(call: BoundCall, outputs: Sequence[Array]) -> float:
    assert call.run(StopFlag())
    return float(outputs[0][0])


def test_calls_old_and_new_take_the_next_plan_from_their_next_run_on() -> None:
    plan = StagedPlan(Form(1))
    inputs, outputs = memory()
    call = plan.bind(inputs, outputs)
    assert ran(call, outputs) == 1
    plan.replace(Form(2))
    assert ran(call, outputs) == 2
    inputs, outputs = memory()
    assert ran(plan.bind(inputs, outputs), outputs) == 2


def test_a_stopped_run_ends_in_the_plan_in_which_it_began() -> None:
    plan = StagedPlan(Form(1, stops=1))
    inputs, outputs = memory()
    call = plan.bind(inputs, outputs)
    assert not call.run(StopFlag())
    plan.replace(Form(2))
    assert ran(call, outputs) == 1
    assert ran(call, outputs) == 2


def test_a_rewound_run_begins_anew_in_the_next_plan() -> None:
    first = Form(1, stops=1)
    plan = StagedPlan(first)
    inputs, outputs = memory()
    call = plan.bind(inputs, outputs)
    assert not call.run(StopFlag())
    plan.replace(Form(2))
    call.rewind()
    assert first.rewound == 1
    assert ran(call, outputs) == 2


def test_a_plan_that_fails_when_tried_takes_no_call_over() -> None:
    plan = StagedPlan(Form(1))
    inputs, outputs = memory()
    call = plan.bind(inputs, outputs)
    with pytest.raises(GeneralFailure, match="broken"):
        plan.replace(Form(2, fault=GeneralFailure("broken")))
    assert ran(call, outputs) == 1
    assert ran(plan.bind(*(again := memory())), again[1]) == 1


def test_a_call_that_the_next_plan_cannot_be_bound_to_stays() -> None:
    class Picky(Form):
        def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
            if inputs[0] is special[0][0]:
                raise GeneralFailure("not this one")
            return super().bind(inputs, outputs)

    plan = StagedPlan(Form(1))
    special, usual = memory(), memory()
    stays, goes = plan.bind(*special), plan.bind(*usual)
    plan.replace(Picky(2))
    assert ran(stays, special[1]) == 1
    assert ran(goes, usual[1]) == 2


def test_the_trial_touches_no_memory_of_calls() -> None:
    plan = StagedPlan(Form(1))
    inputs, outputs = memory()
    call = plan.bind(inputs, outputs)
    outputs[0][:] = 7
    plan.replace(Form(2))
    assert outputs[0].tolist() == [7, 7]
    assert ran(call, outputs) == 2


def test_it_is_ripe_after_so_many_executions() -> None:
    plan = StagedPlan(Form(1), ripe_after=2)
    inputs, outputs = memory()
    call = plan.bind(inputs, outputs)
    found = []
    for _ in range(3):
        found.append(plan.ripe.done)
        ran(call, outputs)
    assert found == [False, False, True]
    assert StagedPlan(Form(1)).ripe.done


def test_calls_that_are_gone_are_not_bound_again() -> None:
    plan = StagedPlan(Form(1))
    plan.bind(*memory())
    gc.collect()
    following = Form(2)
    plan.replace(following)
    assert following.bound == 0


def test_after_the_last_plan_nothing_of_the_stages_is_left() -> None:
    first, second = Form(1), Form(10)
    staged, stop = StagedPlan(first), StopFlag()
    inputs, outputs = memory()
    call = staged.bind(inputs, outputs)
    assert call.run(stop)
    staged.replace(second)
    assert bare(call) is call
    staged.finish()
    for last in (bare(call), staged.bind(inputs, outputs)):
        assert isinstance(last, _FormCall)
        assert last.form is second
        outputs[0][:] = 0
        assert last.run(stop)
        assert outputs[0].tolist() == [10, 10]


def test_a_stopped_call_keeps_its_stages() -> None:
    staged, stop = StagedPlan(Form(1, stops=1)), StopFlag()
    call = staged.bind(*memory())
    assert not call.run(stop)
    staged.finish()
    assert bare(call) is call
    assert call.run(stop)
    assert bare(call) is not call
