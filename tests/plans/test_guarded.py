"""A plan that falls back: what the reference takes over, and what it does not."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync import errors
from nnasync._core.plans.guarded import (
    RETRY_EVERY,
    TOLERATED_FAILURES,
    GuardedPlan,
    Health,
    LazyPlan,
)
from nnasync._core.workers import ABORT, GO, YIELD
from nnasync.engine import BoundCall, Given, OutputBuffer, Plan, StopFlag, Target
from nnasync.errors import DeviceDied, GeneralFailure, NNError
from nnasync.hal import Array, ExecutionPreference, Model, OutputShape
from tests.faulty import Faulty
from tests.partition.models import chain, row
from tests.rigs import doubler

FAST = ExecutionPreference.FAST_SINGLE_ANSWER


class Guarded:
    """A model on a faulty device, guarded by a reference that may be faulty as well."""

    def __init__(self, model: Model | None = None, health: Health | None = None) -> None:
        self.model = model or doubler()
        self.device = Faulty()
        self.reference = Faulty("reference")
        self.on_fallback: list[NNError] = []
        self.plan = GuardedPlan(
            self.device.compile(self.model, FAST),
            LazyPlan(lambda: self.reference.compile(self.model, FAST)),
            self.on_fallback.append,
            name="faulty",
            health=health,
        )
        self.x, self.y = row(), row(-1, -1, -1, -1)

    def call(self) -> BoundCall:
        return self.plan.bind([self.x], [self.y])

    @property
    def is_right(self) -> bool:
        return bool((self.y == 2 * self.x).all())


def repeatedly(call: BoundCall, count: int) -> None:
    for _ in range(count):
        assert call.run(StopFlag())


@pytest.mark.parametrize("error", [KeyError("table"), DeviceDied("gone"), GeneralFailure("no")])
def test_a_failed_run_is_done_by_the_reference(error: Exception) -> None:
    rig = Guarded()
    call = rig.call()
    repeatedly(call, 2)
    assert not rig.on_fallback
    assert not rig.reference.compiled
    rig.device.always(error)
    assert call.run(StopFlag())
    assert rig.is_right
    (failure,) = rig.on_fallback
    on_fallback = failure if isinstance(error, NNError) else failure.__cause__
    assert (type(on_fallback), str(on_fallback)) == (type(error), str(error))
    rig.device.heal()
    repeatedly(call, 2)
    assert (rig.device.runs, rig.reference.runs) == (5, 1)


@pytest.mark.parametrize(
    "error",
    [
        errors.MissedDeadlineTransient("late"),
        errors.MissedDeadlinePersistent("late"),
        errors.ResourceExhaustedTransient("full"),
        errors.InvalidArgument("wrong"),
        errors.OutputInsufficientSize("small", (OutputShape((1, 4), False),)),
        errors.Cancelled("gone"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_no_failure_of_the_device_does_not_fall_back(error: NNError) -> None:
    rig = Guarded()
    call = rig.call()
    rig.device.always(error)
    with pytest.raises(type(error)) as caught:
        call.run(StopFlag())
    assert caught.value is error
    assert not rig.on_fallback
    assert not rig.plan.health.suspects


def test_an_aborted_run_does_not_fall_back() -> None:
    rig = Guarded()
    call, stop = rig.call(), StopFlag()

    def interrupted(number: int) -> Exception:
        stop.abort()
        return GeneralFailure("interrupted")

    rig.device.fault = interrupted
    with pytest.raises(GeneralFailure, match="interrupted"):
        call.run(stop)
    assert not rig.on_fallback
    assert stop.raised == ABORT


def test_where_it_must_not_it_does_not_fall_back_but_is_under_suspicion() -> None:
    rig = Guarded()
    call = rig.call()
    rig.device.always(GeneralFailure("no"))
    for _ in range(5):
        with pytest.raises(GeneralFailure, match="no"):
            call.run(StopFlag(falls_back=False))
    assert not rig.on_fallback
    assert rig.plan.health.suspects == 1
    assert rig.plan.health.failures == 0
    assert call.run(StopFlag())
    assert rig.is_right


def test_a_device_that_stops_unasked_has_failed() -> None:
    rig = Guarded()
    call = rig.call()
    rig.device.fault = lambda number: True
    assert call.run(StopFlag())
    assert rig.is_right
    assert "without having been asked" in str(rig.on_fallback[0])


def test_a_run_on_the_reference_stops_and_goes_on() -> None:
    rig = Guarded(chain(4))
    call, stop = rig.call(), StopFlag()
    rig.device.fault = lambda number: GeneralFailure("once") if number == 1 else None
    stop.raised = YIELD
    assert not call.run(stop)
    stop.raised = GO
    assert call.run(stop)
    assert (rig.device.runs, rig.reference.runs, len(rig.on_fallback)) == (1, 1, 1)


@pytest.mark.parametrize("fails", [True, False])
def test_a_rewound_run_begins_on_the_device_again(fails: bool) -> None:
    rig = Guarded()
    call, stop = rig.call(), StopFlag()
    rig.device.fault = lambda number: GeneralFailure("once") if fails and number == 1 else None
    stop.raised = YIELD
    assert not call.run(stop)
    call.rewind()
    rig.x += 1
    assert call.run(StopFlag())
    assert rig.is_right
    assert rig.device.runs == 2
    assert not rig.plan.health.suspects


def test_a_run_that_stopped_on_the_device_goes_on_there() -> None:
    rig = Guarded()
    stopped, failing, stop = rig.call(), rig.call(), StopFlag()
    stop.raised = YIELD
    assert not stopped.run(stop)
    rig.device.always(GeneralFailure("no"))
    repeatedly(failing, TOLERATED_FAILURES)
    before = rig.reference.runs
    stop.raised = GO
    assert stopped.run(stop)
    assert rig.reference.runs == before


def test_a_broken_device_is_asked_now_and_then_until_it_works() -> None:
    rig = Guarded()
    calls = [rig.call(), rig.call()]
    rig.device.always(GeneralFailure("broken"))
    for number in range(TOLERATED_FAILURES):
        repeatedly(calls[number % 2], 1)
    assert rig.device.runs == TOLERATED_FAILURES
    repeatedly(calls[0], RETRY_EVERY - 1)
    assert rig.device.runs == TOLERATED_FAILURES
    repeatedly(calls[1], 1)
    assert rig.device.runs == TOLERATED_FAILURES + 1
    rig.device.heal()
    repeatedly(calls[0], RETRY_EVERY)
    assert rig.device.runs == TOLERATED_FAILURES + 2
    assert not rig.plan.health.suspects
    assert len(rig.on_fallback) == rig.reference.runs == TOLERATED_FAILURES + 2 * RETRY_EVERY - 1
    repeatedly(calls[1], 2)
    assert rig.device.runs == TOLERATED_FAILURES + 4


def test_single_failures_among_successes_are_never_a_row() -> None:
    rig = Guarded()
    call = rig.call()
    rig.device.fault = lambda number: GeneralFailure("odd") if number % 2 else None
    repeatedly(call, 20)
    assert (rig.device.runs, rig.reference.runs) == (20, 10)


def test_outputs_of_open_shape() -> None:
    builder = nn.ModelBuilder("open")
    x = builder.input("x", (0, 4))
    builder.output("y", builder.add(x, x))
    rig = Guarded(builder.build())
    rig.device.always(GeneralFailure("no"))
    buffer = OutputBuffer(np.zeros(64, np.uint8), np.dtype(np.float32), (0, 4))
    assert rig.plan.bind([rig.x], [buffer]).run(StopFlag())
    assert buffer.shape == (1, 4)
    array = buffer.array((1, 4))
    assert array is not None
    assert (array == 2 * rig.x).all()


def test_outputs_that_are_too_small_for_the_reference() -> None:
    builder = nn.ModelBuilder("open")
    x = builder.input("x", (0, 4))
    builder.output("y", builder.add(x, x))
    rig = Guarded(builder.build())
    rig.device.bind_fault = GeneralFailure("no")
    buffer = OutputBuffer(np.zeros(8, np.uint8), np.dtype(np.float32), (0, 4))
    call = rig.plan.bind([rig.x], [buffer])
    with pytest.raises(errors.OutputInsufficientSize) as caught:
        call.run(StopFlag())
    assert caught.value.output_shapes[0].dimensions == (1, 4)


def test_inputs_that_the_device_overwrote_are_read_as_they_were() -> None:
    rig = Guarded()
    rig.device.always(GeneralFailure("no"))
    memory = np.zeros(8, np.float32)
    x, y = memory[:4].reshape(1, 4), memory[2:6].reshape(1, 4)
    call = rig.plan.bind([x], [y])
    for value in (1, 5):
        x[...] = value
        assert call.run(StopFlag())
        assert y.tolist() == [[2 * value] * 4]


def test_where_the_reference_cannot_either_the_device_s_failure_counts() -> None:
    rig = Guarded()
    rig.device.always(GeneralFailure("broken"))
    rig.reference.compile_fault = lambda model: errors.ModelError("no kernel")
    call = rig.call()
    for _ in range(3):
        with pytest.raises(GeneralFailure, match="broken") as caught:
            call.run(StopFlag())
        assert "no kernel" in str(caught.value.__cause__)
    assert len(rig.reference.compiled) == 1
    assert not rig.on_fallback


def test_a_reference_without_room_is_asked_again() -> None:
    rig = Guarded()
    rig.device.always(GeneralFailure("broken"))
    rig.reference.compile_fault = lambda model: errors.ResourceExhaustedTransient("full")
    call = rig.call()
    with pytest.raises(GeneralFailure, match="broken"):
        call.run(StopFlag())
    rig.reference.compile_fault = lambda model: None
    assert call.run(StopFlag())
    assert rig.is_right


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (errors.ModelError("index 9 of 4"), errors.ModelError),
        (errors.MissedDeadlineTransient("loop"), errors.MissedDeadlineTransient),
        (GeneralFailure("too"), DeviceDied),
        (ZeroDivisionError(), DeviceDied),
    ],
)
def test_an_error_of_both(error: Exception, raised: type[Exception]) -> None:
    rig = Guarded()
    rig.device.always(DeviceDied("gone"))
    rig.reference.always(error)
    call = rig.call()
    with pytest.raises(raised) as caught:
        call.run(StopFlag())
    assert caught.value.__cause__ is error
    rig.reference.heal()
    assert call.run(StopFlag())
    assert rig.is_right


@pytest.mark.parametrize("error", [GeneralFailure("no memory of its own"), SystemExit(3)])
def test_what_cannot_be_bound_falls_back_and_is_bound_when_it_can(error: BaseException) -> None:
    rig = Guarded()
    rig.device.bind_fault = error
    call = rig.call()
    call.rewind()
    assert call.run(StopFlag())
    assert rig.is_right
    assert rig.device.runs == 0
    rig.device.bind_fault = None
    repeatedly(call, 2)
    assert (rig.device.runs, rig.reference.runs) == (2, 1)


@pytest.mark.parametrize(
    "error", [errors.InvalidArgument("x"), errors.ResourceExhaustedTransient("x")]
)
def test_a_refusal_to_be_bound_is_one(error: NNError) -> None:
    rig = Guarded()
    rig.device.bind_fault = error
    with pytest.raises(type(error)):
        rig.call()


def test_a_whole_is_under_suspicion_while_a_part_is() -> None:
    whole = Health()
    first, second = Guarded(health=Health(whole)), Guarded(health=Health(whole))
    calls = [first.call(), second.call()]
    for rig in (first, second):
        rig.device.always(GeneralFailure("no"))
    for call in calls:
        repeatedly(call, 2)
    assert whole.suspects == 2
    first.device.heal()
    repeatedly(calls[0], 1)
    assert whole.suspects == 1
    del call, calls, second, rig
    gc.collect()
    assert whole.suspects == 0


def test_trimming_reaches_both() -> None:
    rig = Guarded()
    rig.plan.trim()
    assert (rig.device.trims, rig.reference.trims) == (1, 0)
    rig.device.always(GeneralFailure("no"))
    call = rig.call()
    repeatedly(call, 1)
    rig.plan.trim()
    assert (rig.device.trims, rig.reference.trims) == (2, 1)
    repeatedly(call, 1)
    assert rig.is_right


class Idle(BoundCall, Plan):
    """A plan and its call that do nothing."""

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> Idle:
        return self

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        return True

    def rewind(self) -> None:
        pass

    def trim(self) -> None:
        pass


def test_a_run_that_does_not_fail_allocates_nothing() -> None:
    on_fallback: list[NNError] = []
    call, stop = GuardedPlan(Idle(), LazyPlan(Idle), on_fallback.append).bind([], []), StopFlag()
    call.run(stop)
    before = sys.getallocatedblocks()
    for _ in range(1000):
        call.run(stop)
    assert sys.getallocatedblocks() - before < 10


class Reading(Faulty):
    """A faulty device whose calls can run on other arrays."""

    def compile(self, model: Model, preference: ExecutionPreference) -> Any:
        plan = super().compile(model, preference)
        bind = plan.bind

        def bound(inputs: Any, outputs: Any) -> Any:
            call: Any = bind(inputs, outputs)

            own = call.run

            def run(stop: StopFlag, given: Given = None) -> bool:
                if given is None:
                    return bool(own(stop))
                self.read.append(given[0])
                return bind(given, outputs).run(stop)

            call.run, call.reads_given = run, True
            return call

        plan.bind = bound  # type: ignore[method-assign]  # the fault of this device
        return plan

    def __init__(self) -> None:
        super().__init__()
        self.read: list[Array] = []


def reading() -> tuple[Guarded, Reading, Any]:
    """A guarded model, its device, and a call that can run on other arrays."""
    rig, device = Guarded(), Reading()
    rig.plan.plan = device.compile(rig.model, FAST)
    return rig, device, rig.call()


def test_a_run_on_other_arrays_is_the_device_s() -> None:
    rig, device, call = reading()
    mine, own = row(5, 6, 7, 8), rig.x.tolist()
    assert call.run(StopFlag(falls_back=False), [mine])
    assert device.read[0] is mine
    assert rig.y.tolist() == (2 * mine).tolist()
    assert rig.x.tolist() == own


def test_a_run_on_other_arrays_that_fails_is_a_failure_of_the_device() -> None:
    rig, device, call = reading()
    device.always(GeneralFailure("no"))
    with pytest.raises(GeneralFailure, match="no"):
        call.run(StopFlag(falls_back=False), [row(5, 6, 7, 8)])
    assert rig.plan.health.suspects
    assert (rig.on_fallback, rig.reference.runs) == ([], 0)
    mine = row(9, 9, 9, 9)
    assert call.run(StopFlag(), [mine])
    assert (len(rig.on_fallback), rig.reference.runs) == (1, 1)
    assert rig.x.tolist() == mine.tolist()
    assert rig.is_right
    assert len(device.read) == 1


def test_a_device_that_cannot_read_other_arrays_does_not_seem_to() -> None:
    rig, _, _ = reading()
    assert not Guarded().call().reads_given
    both = row()
    assert not rig.plan.bind([both], [both]).reads_given
