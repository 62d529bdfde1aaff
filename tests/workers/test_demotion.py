"""Which executions may run, and which threads are, at the lowest OS priority."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.workers import Worker
from nnasync._core.workers.demotion import Demotion, LowOsPriority
from nnasync.hal import Priority
from tests.workers.steering import HIGH, LOW, MEDIUM, Rig, Steps, until

pytestmark = pytest.mark.usefixtures("no_leaks")


class Prepared:
    """Stands for a prepared model."""


def test_only_low_beside_what_is_above_it_runs_on_lowered_threads_of_engines() -> None:
    rule, model = Demotion(False, engines=True), Prepared()
    told = [rule.demotes_engine_threads]
    for priority in (LOW, MEDIUM):
        rule.expect(priority, model)
        told.append(rule.demotes_engine_threads)
    rule.expect_no_more(model)
    told.append(rule.demotes_engine_threads)
    assert told == [False, False, True, False]


def test_a_model_that_nobody_has_any_more_counts_no_longer() -> None:
    rule, model = Demotion(False, engines=True), Prepared()
    rule.expect(HIGH, model)
    del model
    gc.collect()
    assert not rule.demotes_engine_threads


@pytest.mark.parametrize("mode", [True, False, "alone"])
def test_engines_are_left_alone_where_that_is_not_wanted(mode: LowOsPriority) -> None:
    rule, model = Demotion(mode, engines=False), Prepared()
    rule.expect(HIGH, model)
    assert not rule.demotes_engine_threads
    rule.close()


def test_threads_that_are_lowered_themselves_need_no_engine_s() -> None:
    rule, model = Demotion(True, engines=True), Prepared()
    rule.expect(HIGH, model)
    assert rule.demotes_threads
    assert not rule.demotes_engine_threads
    rule.close()


def test_threads_that_are_lowered_while_alone_give_way_to_others_and_come_back() -> None:
    rule, model = Demotion("alone", engines=True), Prepared()
    assert (rule.demotes_threads, rule.demotes_engine_threads) == (True, False)
    lowered, usual = (Worker((LOW,), demoted=each) for each in (True, False))
    regular = Worker((HIGH, MEDIUM))
    assert [rule.is_outdated(each) for each in (lowered, usual, regular)] == [False, True, False]
    rule.expect(HIGH, model)
    assert (rule.demotes_threads, rule.demotes_engine_threads) == (False, True)
    assert [rule.is_outdated(each) for each in (lowered, usual, regular)] == [True, False, False]
    rule.close()


def test_quiet_lowers_threads_beside_models_above_while_others_leave_the_cores() -> None:
    rule, model = Demotion("quiet", engines=True), Prepared()

    def says() -> tuple[bool, bool, bool]:
        return rule.asks_for_others, rule.demotes_threads, rule.demotes_engine_threads

    assert says() == (False, False, False)
    rule.expect(HIGH, model)
    assert says() == (True, False, True)
    looks = 0
    while not rule.note_others(0.1):
        looks += 1
    assert looks > 3
    assert says() == (True, True, False)
    assert not rule.note_others(0.45)
    assert rule.note_others(0.6)
    assert says() == (True, False, True)
    assert not any(rule.note_others(share) for share in [0.1] * looks + [0.45] + [0.1] * looks)
    while not rule.note_others(0.1):
        pass
    rule.expect_no_more(model)
    assert says() == (False, False, False)
    rule.close()


@pytest.mark.skipif(sys.platform != "linux", reason="nobody tells elsewhere how busy cores are")
@given(
    st.lists(
        st.one_of(
            st.floats(0, 1),
            st.sampled_from([0.0, 0.1, 1.0, "no more looks"]),
            st.tuples(st.sampled_from((LOW, MEDIUM, HIGH)), st.booleans()),
        ),
        max_size=80,
    )
)
def test_auto_is_quiet_beside_high_and_never_otherwise(
    events: list[float | str | tuple[Priority, bool]],
) -> None:
    modes: tuple[LowOsPriority, ...] = ("auto", "quiet", False)
    rules = auto, quiet, never = [Demotion(mode, engines=True) for mode in modes]
    models = {priority: Prepared() for priority in (LOW, MEDIUM, HIGH)}
    there: set[Priority] = set()
    calm_looks = 0
    for event in events:
        if isinstance(event, tuple):
            priority, comes = event
            (there.add if comes else there.discard)(priority)
            for rule in rules:
                if comes:
                    rule.expect(priority, models[priority])
                else:
                    rule.expect_no_more(models[priority])
        elif isinstance(event, str):
            calm_looks = 0
            for rule in rules:
                rule.look_no_more()
        else:
            calm_looks = calm_looks + 1 if event < 0.5 else 0
            for rule in rules:
                did = rule.demotes_threads
                assert rule.note_others(event) is (rule.demotes_threads is not did)
        assert auto.asks_for_others is (HIGH in there)
        if HIGH in there:
            assert auto.demotes_threads is quiet.demotes_threads
        else:
            assert not auto.demotes_threads
            assert auto.demotes_engine_threads is never.demotes_engine_threads
        if auto.demotes_threads:
            assert calm_looks >= 10, "it is not lowered before a second of quiet"
            assert not auto.demotes_engine_threads
    for rule in rules:
        rule.close()


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
