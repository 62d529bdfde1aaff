"""A plan in a wide and a narrow form: chosen at the start of each run, and kept until its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync._core.plans.adaptive import AdaptivePlan
from nnasync.engine import BoundCall, Given, Plan, StopFlag, Target
from nnasync.hal import Array


class Form(BoundCall, Plan):
    """A plan that tells what is done with it; its calls stop as often as `stops` says."""

    def __init__(self, name: str, told: list[str], stops: int = 0) -> None:
        self.name = name
        self.told = told
        self.stops = stops

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        self.told.append(f"bind {self.name}")
        return self

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        self.told.append(self.name)
        self.stops -= 1
        return self.stops < 0

    def rewind(self) -> None:
        self.told.append(f"rewind {self.name}")

    def trim(self) -> None:
        self.told.append(f"trim {self.name}")


def test_form_follows_the_load_and_the_narrow_one_is_bound_late() -> None:
    told: list[str] = []
    load = iter([False, True, True, False])
    plan = AdaptivePlan(Form("wide", told), Form("narrow", told), lambda: next(load))
    call = plan.bind([], [])
    assert all(call.run(StopFlag()) for _ in range(4))
    assert told == ["bind wide", "wide", "bind narrow", "narrow", "narrow", "wide"]


def test_a_run_that_surely_has_others_beside_it_is_narrow() -> None:
    told: list[str] = []
    plan = AdaptivePlan(Form("wide", told), Form("narrow", told), lambda: False)
    call, stop = plan.bind([], []), StopFlag()
    stop.has_others = True
    assert call.run(stop)
    stop.has_others = False
    assert call.run(stop)
    assert told == ["bind wide", "bind narrow", "narrow", "wide"]


def test_stopped_run_goes_on_in_its_form() -> None:
    told: list[str] = []
    load = iter([False, True])
    plan = AdaptivePlan(Form("wide", told, stops=2), Form("narrow", told), lambda: next(load))
    call = plan.bind([], [])
    assert [call.run(StopFlag()) for _ in range(4)] == [False, False, True, True]
    assert told == ["bind wide", "wide", "wide", "wide", "bind narrow", "narrow"]


def test_rewinding_forgets_the_form() -> None:
    told: list[str] = []
    load = iter([False, True])
    plan = AdaptivePlan(Form("wide", told, stops=1), Form("narrow", told), lambda: next(load))
    call = plan.bind([], [])
    call.rewind()
    assert not call.run(StopFlag())
    call.rewind()
    assert call.run(StopFlag())
    assert told == ["bind wide", "wide", "rewind wide", "bind narrow", "narrow"]


def test_both_forms_are_trimmed() -> None:
    told: list[str] = []
    AdaptivePlan(Form("wide", told), Form("narrow", told), lambda: False).trim()
    assert told == ["trim wide", "trim narrow"]


def test_a_narrow_form_may_come_later() -> None:
    told: list[str] = []
    plan = AdaptivePlan(Form("wide", told), None, lambda: True)
    call = plan.bind([], [])
    assert call.run(StopFlag())
    plan.trim()
    plan.complete(Form("narrow", told))
    assert call.run(StopFlag())
    assert told == ["bind wide", "wide", "trim wide", "bind narrow", "narrow"]


class FedForm(Form):
    """A plan whose calls may read other arrays than their own."""

    reads_given = True

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        assert given is not None
        self.told.append(f"{self.name} on {given[0].tolist()}")
        return True


def test_forms_read_other_arrays_where_they_can() -> None:
    told: list[str] = []
    load = iter([False, True])
    plan = AdaptivePlan(FedForm("wide", told), FedForm("narrow", told), lambda: next(load))
    call: Any = plan.bind([np.zeros(2)], [])
    assert call.run(StopFlag(), [np.ones(2)])
    assert call.run(StopFlag(), [np.ones(2)])
    assert told == ["bind wide", "wide on [1.0, 1.0]", "bind narrow", "narrow on [1.0, 1.0]"]


def test_for_a_form_that_reads_its_own_arrays_others_are_copied() -> None:
    told: list[str] = []
    own = np.zeros(2)
    plan = AdaptivePlan(FedForm("wide", told), Form("narrow", told), lambda: True)
    call: Any = plan.bind([own], [])
    assert call.run(StopFlag(), [np.array([1.0, 2.0])])
    assert own.tolist() == [1.0, 2.0]
    assert told == ["bind wide", "bind narrow", "narrow"]


def test_without_a_wide_form_that_can_nobody_is_told_so() -> None:
    plan = AdaptivePlan(Form("wide", []), FedForm("narrow", []), lambda: False)
    assert not plan.bind([], []).reads_given
