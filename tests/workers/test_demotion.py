"""Which executions may run, and which threads are, at the lowest OS priority."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from nnasync._core.workers import Worker
from nnasync._core.workers.demotion import Demotion, LowOsPriority
from tests.workers.steering import HIGH, LOW, MEDIUM, Rig, Steps, until

pytestmark = pytest.mark.usefixtures("no_leaks")


class Prepared:
    """Stands for a prepared model."""


def test_only_low_beside_what_is_above_it_runs_on_lowered_threads_of_engines() -> None:
    rule, model = Demotion(False, engines=True), Prepared()
    assert not rule.demotes_engine_threads(LOW)
    rule.expect(LOW, model)
    assert not rule.demotes_engine_threads(LOW)
    rule.expect(MEDIUM, model)
    assert rule.demotes_engine_threads(LOW)
    assert not rule.demotes_engine_threads(MEDIUM)
    assert not rule.demotes_engine_threads(HIGH)
    rule.expect_no_more(model)
    assert not rule.demotes_engine_threads(LOW)


def test_a_model_that_nobody_has_any_more_counts_no_longer() -> None:
    rule, model = Demotion(False, engines=True), Prepared()
    rule.expect(HIGH, model)
    del model
    gc.collect()
    assert not rule.demotes_engine_threads(LOW)


@pytest.mark.parametrize("mode", [True, False, "alone"])
def test_engines_are_left_alone_where_that_is_not_wanted(mode: LowOsPriority) -> None:
    rule, model = Demotion(mode, engines=False), Prepared()
    rule.expect(HIGH, model)
    assert not rule.demotes_engine_threads(LOW)


def test_threads_that_are_lowered_themselves_need_no_engine_s() -> None:
    rule, model = Demotion(True, engines=True), Prepared()
    rule.expect(HIGH, model)
    assert rule.demotes_threads
    assert not rule.demotes_engine_threads(LOW)


def test_threads_that_are_lowered_while_alone_give_way_to_others_and_come_back() -> None:
    rule, model = Demotion("alone", engines=True), Prepared()
    assert (rule.has_threads, rule.demotes_threads, rule.demotes_engine_threads(LOW)) == (
        True,
        True,
        False,
    )
    lowered, usual = (Worker((LOW,), demoted=each) for each in (True, False))
    regular = Worker((HIGH, MEDIUM))
    assert [rule.is_outdated(each) for each in (lowered, usual, regular)] == [False, True, False]
    rule.expect(HIGH, model)
    assert (rule.has_threads, rule.demotes_threads, rule.demotes_engine_threads(LOW)) == (
        True,
        False,
        True,
    )
    assert [rule.is_outdated(each) for each in (lowered, usual, regular)] == [True, False, False]


def test_an_execution_is_told_when_it_starts(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    above, told = Prepared(), []
    for priority in (LOW, MEDIUM, HIGH):
        for expected in (False, True):
            if expected:
                rig.workers.expect(HIGH, above)
            call = Steps()
            rig.submit(call, priority)
            call.reached()
            assert call.stop is not None
            told.append(call.stop.demoted)
            call.permit()
            until(lambda: not rig.workers.statistics().running)
            rig.workers.expect_no_more(above)
    assert told == [False, True, False, False, False, False]
