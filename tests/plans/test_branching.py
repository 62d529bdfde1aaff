"""IF and WHILE over plans: what runs, in which memory, how it stops, resumes and times out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from nnasync._core.plans import branching
from nnasync._core.plans.branching import IfPlan, WhilePlan
from nnasync.engine import BoundCall, Given, OutputBuffer, Plan, StopFlag
from nnasync.errors import GeneralFailure, InvalidArgument, MissedDeadlineTransient
from nnasync.hal import Array
from tests.rigs import LateStop

Compute = Callable[[Sequence[Any]], Sequence[Any]]


class Steps(Plan):
    """A plan of so many operations, the last of which computes; it counts what happens."""

    def __init__(self, compute: Compute, steps: int = 1) -> None:
        self.compute = compute
        self.steps = steps
        self.bound: list[tuple[list[Array | None], list[Any]]] = []
        self.runs = 0
        self.rewinds = 0
        self.trims = 0
        self.fault: Exception | None = None

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Any]) -> _Steps:
        self.bound.append((list(inputs), list(outputs)))
        return _Steps(self, inputs, outputs)

    def trim(self) -> None:
        self.trims += 1


class _Steps(BoundCall):
    def __init__(self, plan: Steps, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.plan, self.inputs, self.outputs = plan, inputs, outputs
        self.done = 0

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        while self.done < self.plan.steps:
            if stop.raised:
                return False
            self.done += 1
        if self.plan.fault is not None:
            raise self.plan.fault
        for target, value in zip(self.outputs, self.plan.compute(self.inputs), strict=True):
            target[...] = value
        self.done = 0
        self.plan.runs += 1
        return True

    def rewind(self) -> None:
        self.done = 0
        self.plan.rewinds += 1


def numbers(*values: float) -> Array:
    return np.array(values, np.float32)


def flag(value: bool) -> Array:
    return np.array([value])


def one() -> Array:
    return numbers(0)


def resumed(call: Any, period: int = 3, most: int = 1000) -> int:
    """Run to the end with a flag that is up at each so-many-eth look; how often that stopped it."""
    stop: Any = Now(period)
    for stopped in range(most):
        if call.run(stop):
            return stopped
    raise AssertionError("no progress")


class Now(StopFlag):
    def __init__(self, period: int) -> None:
        self.looks, self.period = 0, period
        super().__init__()

    @property
    def raised(self) -> int:
        self.looks += 1
        return int(self.looks % self.period == 0)

    @raised.setter
    def raised(self, value: int) -> None:
        pass


RAISED = StopFlag()
RAISED.raised = 1


# -- IF


def negate_or_double(steps: int = 1) -> tuple[IfPlan, Steps, Steps]:
    """Input 0 decides; input 1 is negated or doubled."""
    then = Steps(lambda inputs: [-inputs[0]], steps)
    otherwise = Steps(lambda inputs: [2 * inputs[0]], steps)
    return IfPlan(0, then, otherwise, [1]), then, otherwise


def test_an_if_runs_one_of_both_as_its_condition_says_at_each_run() -> None:
    plan, then, otherwise = negate_or_double()
    condition, x, y = flag(True), numbers(3), one()
    call = plan.bind([condition, x], [y])
    assert call.run(StopFlag())
    assert y.tolist() == [-3]
    condition[0] = False
    assert call.run(StopFlag())
    assert y.tolist() == [6]
    assert (then.runs, otherwise.runs) == (1, 1)


def test_an_if_reads_constants_and_omitted_values() -> None:
    constant = numbers(5)
    constant.flags.writeable = False
    then = Steps(lambda inputs: [inputs[0] + (inputs[1] is None)])
    plan = IfPlan(flag(True), then, Steps(lambda inputs: [0]), [constant, None])
    y = one()
    assert plan.bind([], [y]).run(StopFlag())
    assert y.tolist() == [6]
    (kept, _), _ = then.bound[0]
    assert kept is not None
    assert kept.flags.writeable
    assert kept.__array_interface__["data"][0] % 64 == 0


def test_an_if_that_was_stopped_goes_on_in_the_same_branch() -> None:
    plan, then, otherwise = negate_or_double(steps=3)
    condition, x, y = flag(True), numbers(3), one()
    call = plan.bind([condition, x], [y])
    assert not call.run(RAISED)
    stop: Any = Now(3)
    assert not call.run(stop)
    condition[0] = False
    resumed(call)
    assert y.tolist() == [-3]
    assert (then.runs, otherwise.runs) == (1, 0)


def test_a_rewound_if_reads_its_condition_again() -> None:
    plan, then, otherwise = negate_or_double(steps=3)
    condition, x, y = flag(True), numbers(3), one()
    call = plan.bind([condition, x], [y])
    call.rewind()
    stop: Any = Now(3)
    assert not call.run(stop)
    call.rewind()
    assert (then.rewinds, otherwise.rewinds) == (1, 0)
    condition[0] = False
    assert call.run(StopFlag())
    assert y.tolist() == [6]


@pytest.mark.parametrize("condition", [None, np.array([True, True])])
def test_a_condition_is_one_boolean(condition: Array | None) -> None:
    plan, _, _ = negate_or_double()
    with pytest.raises(GeneralFailure, match="one boolean"):
        plan.bind([condition, numbers(3)], [one()]).run(StopFlag())


def test_trimming_reaches_both_plans() -> None:
    plan, then, otherwise = negate_or_double()
    plan.trim()
    loop, condition, body = counting()
    loop.trim()
    assert [each.trims for each in (then, otherwise, condition, body)] == [1, 1, 1, 1]


# -- WHILE


def counting(steps: int = 1) -> tuple[WhilePlan, Steps, Steps]:
    """While count < limit: count += 1, total = total * 2 + step. Only limit and step stay."""
    condition = Steps(lambda inputs: [inputs[0] < inputs[2]], steps)
    body = Steps(lambda inputs: [inputs[0] + 1, inputs[1] * 2 + inputs[3]], steps)
    return WhilePlan(condition, body, [0, numbers(1), 1, 2], carried=2), condition, body


def expected(turns: int, step: float) -> float:
    total = 1.0
    for _ in range(turns):
        total = total * 2 + step
    return total


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_a_while_runs_its_body_as_often_as_the_condition_says(turns: int) -> None:
    plan, condition, body = counting()
    inputs = [numbers(0), numbers(turns), numbers(3)]
    count, total = one(), one()
    call = plan.bind(inputs, [count, total])
    for _ in range(2):
        assert call.run(StopFlag())
        assert (count.tolist(), total.tolist()) == ([turns], [expected(turns, 3)])
    assert (condition.runs, body.runs) == (2 * turns + 2, 2 * turns)
    assert [each.tolist() for each in inputs] == [[0], [turns], [3]]


def test_the_buffers_change_places_and_never_the_plans() -> None:
    """The body never writes what it reads, nor what the caller gave."""
    plan, condition, body = counting()
    call = plan.bind([numbers(0), numbers(9), numbers(3)], [one(), one()])
    assert call.run(StopFlag())
    assert (len(condition.bound), len(body.bound)) == (2, 2)
    (first, written), (second, rewritten) = body.bound
    assert first[:2] == rewritten
    assert second[:2] == written
    assert first[2] is second[2]


def test_a_while_may_put_out_less_than_it_carries() -> None:
    plan, _, _ = counting()
    count = one()
    assert plan.bind([numbers(0), numbers(4), numbers(1)], [count]).run(StopFlag())
    assert count.tolist() == [4]


def test_outputs_may_be_memory_of_unknown_shape() -> None:
    plan, _, _ = counting()
    target = OutputBuffer(np.zeros(8, np.uint8), np.dtype(np.float32), ())
    assert plan.bind([numbers(0), numbers(4), numbers(1)], [target]).run(StopFlag())
    assert target.shape == (1,)
    assert target.memory[:4].view(np.float32).tolist() == [4]


def test_a_while_stops_and_resumes_anywhere() -> None:
    plan, condition, body = counting(steps=2)
    count, total = one(), one()
    call = plan.bind([numbers(0), numbers(5), numbers(3)], [count, total])
    assert not call.run(RAISED)
    for _ in range(2):
        assert resumed(call) > 5
        assert (count.tolist(), total.tolist()) == ([5], [expected(5, 3)])
    assert (condition.runs, body.runs) == (12, 10)


def test_engines_that_do_not_look_at_the_flag_stop_between_runs() -> None:
    """An endless loop of such ends when the flag is raised."""
    stop = StopFlag()
    turns: list[int] = []

    def turn(inputs: Sequence[Any]) -> list[Any]:
        turns.append(1)
        if len(turns) == 3:
            stop.raised = 2
        return [inputs[0] + 1]

    condition = Steps(lambda inputs: [True], steps=0)
    plan = WhilePlan(condition, Steps(turn, steps=0), [0], carried=1)
    call = plan.bind([numbers(0)], [one()])
    assert not call.run(stop)
    assert (len(turns), condition.runs) == (3, 3)


@pytest.mark.parametrize("looks", range(24))
def test_a_rewound_while_starts_anew(looks: int) -> None:
    plan, _condition, _body = counting(steps=2)
    count, total = one(), one()
    call = plan.bind([numbers(0), numbers(3), numbers(3)], [count, total])
    call.rewind()
    stop: Any = LateStop(looks)
    if not call.run(stop):
        call.rewind()
    assert call.run(StopFlag())
    assert (count.tolist(), total.tolist()) == ([3], [expected(3, 3)])


def test_a_fault_leaves_a_call_that_can_run_again() -> None:
    plan, _condition, body = counting()
    count, total = one(), one()
    call = plan.bind([numbers(0), numbers(3), numbers(3)], [count, total])
    body.fault = GeneralFailure("broken")
    with pytest.raises(GeneralFailure, match="broken"):
        call.run(StopFlag())
    call.rewind()
    assert body.rewinds == 1
    body.fault = None
    assert call.run(StopFlag())
    assert count.tolist() == [3]


class Clock:
    def __init__(self) -> None:
        self.ns = 100

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(branching, "now_ns", made)
    return made


def timed(clock: Clock, turns: int, condition_ns: int, body_ns: int) -> WhilePlan:
    """A loop on a clock that only its plans move."""

    def passing(ns: int, compute: Compute) -> Compute:
        def run(inputs: Sequence[Any]) -> Sequence[Any]:
            clock.ns += ns
            return compute(inputs)

        return run

    return WhilePlan(
        Steps(passing(condition_ns, lambda inputs: [inputs[0] < turns])),
        Steps(passing(body_ns, lambda inputs: [inputs[0] + 1])),
        [0],
        carried=1,
        name="operation 3 (WHILE)",
    )


def test_a_loop_has_time_up_to_its_timeout(clock: Clock) -> None:
    """Three turns of 10 ns; the last look at the clock is after the third condition."""
    count = one()
    call = timed(clock, 3, 1, 9).bind([numbers(0)], [count])
    assert call.run(StopFlag(21))
    assert count.tolist() == [3]
    with pytest.raises(MissedDeadlineTransient, match=r"operation 3 \(WHILE\): .* more than 2e-08"):
        call.run(StopFlag(20))
    call.rewind()
    assert call.run(StopFlag(21))


def test_a_loop_that_has_ended_is_never_late(clock: Clock) -> None:
    call = timed(clock, 0, 1000, 0).bind([numbers(0)], [one()])
    assert call.run(StopFlag(0))


def test_a_suspension_counts_for_the_timeout(clock: Clock) -> None:
    call = timed(clock, 3, 1, 1).bind([numbers(0)], [one()])
    stop: Any = LateStop(3)
    stop.loop_timeout_ns = 50
    assert not call.run(stop)
    clock.ns += 60
    with pytest.raises(MissedDeadlineTransient):
        call.run(StopFlag(50))


def test_what_does_not_fit() -> None:
    plan, _, _ = counting()
    with pytest.raises(InvalidArgument, match="cannot be omitted"):
        plan.bind([None, numbers(1), numbers(1)], [one()])
    with pytest.raises(InvalidArgument, match="3 outputs of a loop that carries 2"):
        plan.bind([numbers(0), numbers(1), numbers(1)], [one(), one(), one()])
    inner = Steps(lambda inputs: inputs)
    for carried in (0, 2):
        with pytest.raises(InvalidArgument, match=f"carries {carried} of 1"):
            WhilePlan(inner, inner, [0], carried=carried)


def test_loops_nest() -> None:
    """Sum over i of i repetitions of + 1: a loop whose body is a loop."""
    inner = WhilePlan(
        Steps(lambda inputs: [inputs[0] < inputs[2]]),
        Steps(lambda inputs: [inputs[0] + 1, inputs[1] + 1]),
        [numbers(0), 1, 0],
        carried=2,
    )

    class Body(Steps):
        """(i, total) to (i + 1, total after the inner loop)."""

        def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
            spare = one()
            return _Chain(
                inner.bind(inputs, [spare, outputs[1]]),
                Steps(lambda given: [given[0] + 1]).bind(inputs, outputs[:1]),
            )

    outer = WhilePlan(Steps(lambda inputs: [inputs[0] < 5]), Body(lambda x: x), [0, 1], carried=2)
    count, total = one(), one()
    call = outer.bind([numbers(0), numbers(0)], [count, total])
    for _ in range(2):
        resumed(call, period=7)
        assert (count.tolist(), total.tolist()) == ([5], [10])


class _Chain(BoundCall):
    """Calls one after the other."""

    def __init__(self, *calls: Any) -> None:
        self.calls = calls
        self.at = 0

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        while self.at < len(self.calls):
            if not self.calls[self.at].run(stop):
                return False
            self.at += 1
        self.at = 0
        return True

    def rewind(self) -> None:
        self.calls[min(self.at, len(self.calls) - 1)].rewind()
        self.at = 0
