"""Plans that run one after the other as one: order, stops, memory, shapes known only at the run."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from nnasync._core.plans.composite import Boundary, CompositePlan, CompositeStep, Wire, WireEnd
from nnasync.engine import BoundCall, Given, OutputBuffer, Plan, StopFlag, Target, deliver
from nnasync.errors import GeneralFailure, InvalidArgument, NNError, OutputInsufficientSize
from nnasync.hal import Array, OperandType, OutputShape, Shape
from tests.engine_device.rig import in_threads

FLOAT = OperandType.TENSOR_FLOAT32
Compute = Callable[..., list[Array]]


class Scripted(Plan):
    """A plan that computes with a function; notes what happens, and may do something before it."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute
        self.calls: list[ScriptedCall] = []
        self.runs = 0
        self.trims = 0
        self.before: Callable[[StopFlag], None] = lambda stop: None

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> ScriptedCall:
        self.calls.append(ScriptedCall(self, inputs, outputs))
        return self.calls[-1]

    def trim(self) -> None:
        self.trims += 1


class ScriptedCall(BoundCall):
    def __init__(
        self, plan: Scripted, inputs: Sequence[Array | None], outputs: Sequence[Target]
    ) -> None:
        self.plan, self.inputs, self.outputs = plan, inputs, outputs
        self.rewound = 0

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        self.plan.before(stop)
        if stop.raised:
            return False
        deliver(self.outputs, self.plan.compute(*self.inputs))
        self.plan.runs += 1
        return True

    def rewind(self) -> None:
        self.rewound += 1


def given(index: int = 0) -> Wire:
    return Wire(WireEnd.INPUT, index)


def result(index: int = 0) -> Wire:
    return Wire(WireEnd.OUTPUT, index)


def between(index: int = 0) -> Wire:
    return Wire(WireEnd.BOUNDARY, index)


def plus_one(x: Array) -> list[Array]:
    return [x + 1]


def row(*values: float) -> Array:
    return np.array(values, np.float32)


class Line:
    """x -> x + 1 -> x + 2 -> x + 3 in three steps, on one row of four."""

    def __init__(self, shape: Shape = (4,), compute: Compute = plus_one) -> None:
        self.plans = [Scripted(compute) for _ in range(3)]
        ends = [given(), between(0), between(1), result()]
        self.plan = CompositePlan(
            [
                CompositeStep(plan, (before,), (after,))
                for plan, before, after in zip(self.plans, ends, ends[1:], strict=False)
            ],
            [Boundary(1, FLOAT, shape), Boundary(2, FLOAT, shape, offset=64)],
            inputs=1,
            outputs=1,
        )

    @property
    def runs(self) -> list[int]:
        return [plan.runs for plan in self.plans]

    @property
    def binds(self) -> list[int]:
        return [len(plan.calls) for plan in self.plans]


def buffer(nbytes: int = 64, dimensions: Shape = (0,)) -> OutputBuffer:
    return OutputBuffer(np.zeros(nbytes, np.uint8), np.dtype(np.float32), dimensions)


def filled(target: OutputBuffer) -> list[float]:
    array = target.array(target.shape)
    assert array is not None
    return list(array)


# -- order and memory


def test_steps_run_one_after_the_other() -> None:
    line, x, y = Line(), row(1, 2, 3, 4), row(0, 0, 0, 0)
    call = line.plan.bind([x], [y])
    for turn in range(3):
        x[0] = turn
        assert call.run(StopFlag())
        assert list(y) == [turn + 3, 5, 6, 7]
    assert line.runs == [3, 3, 3]
    assert line.binds == [1, 1, 1]


def test_nothing_is_copied_between_steps() -> None:
    line, x, y = Line(), row(1, 2, 3, 4), row(0, 0, 0, 0)
    line.plan.bind([x], [y])
    first, second, third = (plan.calls[0] for plan in line.plans)
    assert first.inputs[0] is x
    assert third.outputs[0] is y
    assert first.outputs[0] is second.inputs[0]
    assert second.outputs[0] is third.inputs[0]


def test_boundaries_lie_at_their_offsets_from_a_cache_line() -> None:
    line = Line()
    line.plan.bind([row(0, 0, 0, 0)], [row(0, 0, 0, 0)])
    first, second = (address(line.plans[step].calls[0].outputs[0]) for step in (0, 1))
    assert first % 64 == 0
    assert second == first + 64


def address(target: Target) -> int:
    assert not isinstance(target, OutputBuffer)
    return int(target.__array_interface__["data"][0])


def test_an_omitted_input_stays_omitted() -> None:
    plan = Scripted(lambda x, bias: [x if bias is None else x + bias])
    step = CompositeStep(plan, (given(0), given(1)), (result(),))
    y = row(0)
    assert CompositePlan([step], [], inputs=2, outputs=1).bind([row(7), None], [y]).run(StopFlag())
    assert list(y) == [7]


def test_a_wrong_number_of_arrays() -> None:
    with pytest.raises(InvalidArgument, match="2 inputs given, expected 1"):
        Line().plan.bind([row(1), row(1)], [row(1)])
    with pytest.raises(InvalidArgument, match="0 outputs given, expected 1"):
        Line().plan.bind([row(1)], [])


def test_calls_of_one_plan_run_at_once() -> None:
    """Each waits within its second step until all are there."""
    count = 4
    line, barrier = Line(), threading.Barrier(count)

    def meet(stop: StopFlag) -> None:
        barrier.wait(60)

    line.plans[1].before = meet
    outputs = [row(0, 0, 0, 0) for _ in range(count)]
    calls = [line.plan.bind([row(n, n, n, n)], [output]) for n, output in enumerate(outputs)]
    assert in_threads(count, lambda number: calls[number].run(StopFlag())) == []
    assert [list(output) for output in outputs] == [[n + 3] * 4 for n in range(count)]


# -- stops


@pytest.mark.parametrize("border", [0, 1, 2])
def test_a_flag_raised_between_steps_stops_there(border: int) -> None:
    """The flag goes up within the step before the border, which ends all the same."""
    line, y = Line(), row(0, 0, 0, 0)
    call = line.plan.bind([row(1, 2, 3, 4)], [y])
    stop = StopFlag()
    if border:
        raising_after(line.plans[border - 1], stop)
    else:
        stop.raised = 1
    assert not call.run(stop)
    assert line.runs == [int(step < border) for step in range(3)]
    assert not call.run(stop)
    stop.raised = 0
    line.plans[border - 1].compute = plus_one
    assert call.run(stop)
    assert line.runs == [1, 1, 1]
    assert list(y) == [4, 5, 6, 7]


def raising_after(plan: Scripted, stop: StopFlag) -> None:
    def compute(x: Array) -> list[Array]:
        stop.raised = 1
        return [x + 1]

    plan.compute = compute


def test_a_step_that_stops_inside_is_resumed() -> None:
    line, y = Line(), row(0, 0, 0, 0)
    call, stop = line.plan.bind([row(1, 2, 3, 4)], [y]), StopFlag()

    def up(stop: StopFlag) -> None:
        stop.raised = 1

    line.plans[1].before = up
    assert not call.run(stop)
    assert line.runs == [1, 0, 0]
    line.plans[1].before = lambda stop: None
    assert call.run(StopFlag())
    assert line.runs == [1, 1, 1]


@pytest.mark.parametrize("border", [1, 2])
def test_a_run_that_is_rewound_begins_anew(border: int) -> None:
    line, y = Line(), row(0, 0, 0, 0)
    call, stop = line.plan.bind([row(1, 2, 3, 4)], [y]), StopFlag()
    raising_after(line.plans[border - 1], stop)
    assert not call.run(stop)
    call.rewind()
    assert [plan.calls[0].rewound for plan in line.plans] == [
        int(step == border) for step in range(3)
    ]
    call.rewind()
    line.plans[border - 1].compute = plus_one
    assert call.run(StopFlag())
    assert line.runs == [1 + int(step < border) for step in range(3)]
    assert list(y) == [4, 5, 6, 7]


def test_a_failed_step_is_rewound_and_the_next_run_begins_anew() -> None:
    line, y = Line(), row(0, 0, 0, 0)
    call = line.plan.bind([row(1, 2, 3, 4)], [y])

    def broken(x: Array) -> list[Array]:
        raise GeneralFailure("broken")

    line.plans[1].compute = broken
    with pytest.raises(GeneralFailure, match="broken"):
        call.run(StopFlag())
    assert line.plans[1].calls[0].rewound == 1
    line.plans[1].compute = plus_one
    assert call.run(StopFlag())
    assert line.runs == [2, 1, 1]
    assert list(y) == [4, 5, 6, 7]


# -- trimming


def test_trimming_unbinds_idle_calls_and_trims_the_plans() -> None:
    line, y = Line(), row(0, 0, 0, 0)
    call = line.plan.bind([row(1, 2, 3, 4)], [y])
    line.plan.trim()
    assert [plan.trims for plan in line.plans] == [1, 1, 1]
    assert call.run(StopFlag())
    assert line.binds == [2, 2, 2]
    assert list(y) == [4, 5, 6, 7]


def test_trimming_leaves_a_stopped_run_alone() -> None:
    line, y = Line(), row(0, 0, 0, 0)
    call, stop = line.plan.bind([row(1, 2, 3, 4)], [y]), StopFlag()
    raising_after(line.plans[0], stop)
    assert not call.run(stop)
    line.plan.trim()
    stop.raised = 0
    assert call.run(stop)
    assert line.binds == [1, 1, 1]
    assert list(y) == [4, 5, 6, 7]


def test_memory_of_a_dropped_call_is_used_again() -> None:
    line = Line()
    places = []
    for _ in range(3):
        call = line.plan.bind([row(0, 0, 0, 0)], [row(0, 0, 0, 0)])
        places.append(address(line.plans[0].calls[-1].outputs[0]))
        del call
        gc.collect()
    assert len(set(places)) == 1


# -- shapes that only the run tells


def test_a_boundary_of_unknown_shape_grows() -> None:
    line, target = Line((0,)), buffer()
    call = line.plan.bind([row(1, 2, 3)], [target])
    assert call.run(StopFlag())
    assert target.shape == (3,)
    assert filled(target) == [4, 5, 6]


def test_steps_are_bound_again_when_shapes_change() -> None:
    shown = [row(1, 2, 3)]
    line, target = Line((0,), lambda x: [x[:2] + 1]), buffer()
    line.plans[0].compute = lambda x: [shown[0]]
    call = line.plan.bind([row(0)], [target])
    assert call.run(StopFlag())
    before = line.binds
    assert call.run(StopFlag())
    assert line.binds == before
    shown[0] = row(5)
    assert call.run(StopFlag())
    assert filled(target) == [7]
    assert line.binds[0] == before[0]
    assert line.binds[1] == before[1] + 1
    shown[0] = row(1, 2, 3, 4, 5)
    assert call.run(StopFlag())
    assert filled(target) == [3, 4]


def test_a_stop_between_steps_of_unknown_shape() -> None:
    line, target, stop = Line((0,)), buffer(), StopFlag()
    call = line.plan.bind([row(1, 2)], [target])
    assert call.run(StopFlag())
    raising_after(line.plans[0], stop)
    assert not call.run(stop)
    stop.raised = 0
    assert call.run(stop)
    assert line.runs[1:] == [2, 2]
    assert filled(target) == [4, 5]


def test_steps_that_are_settled_are_bound_at_once() -> None:
    line = Line()
    line.plan.bind([row(1, 2, 3, 4)], [buffer()])
    assert line.binds == [1, 1, 0]


class Fork:
    """Steps: x -> a (shown), a -> b (shown), all of open shape."""

    def __init__(self) -> None:
        self.plans = [Scripted(lambda x: [np.append(x, x)]) for _ in range(2)]
        self.plan = CompositePlan(
            [
                CompositeStep(self.plans[0], (given(),), (result(0),)),
                CompositeStep(self.plans[1], (result(0),), (result(1),), "the second"),
            ],
            [],
            inputs=1,
            outputs=2,
        )


def test_an_output_of_unknown_shape_that_is_read_further_on() -> None:
    fork, a, b = Fork(), buffer(), buffer()
    assert fork.plan.bind([row(1, 2)], [a, b]).run(StopFlag())
    assert filled(a) == [1, 2, 1, 2]
    assert filled(b) == [1, 2, 1, 2] * 2


def test_outputs_that_are_too_small_are_all_told_at_once() -> None:
    fork, a, b = Fork(), buffer(8), buffer(8)
    call = fork.plan.bind([row(1, 2)], [a, b])
    with pytest.raises(OutputInsufficientSize, match=r"output 0 is too small for \[4\]") as caught:
        call.run(StopFlag())
    assert caught.value.output_shapes == (OutputShape((4,), False), OutputShape((8,), False))
    assert fork.plan.bind([row(1, 2)], [buffer(16), c := buffer(32)]).run(StopFlag())
    assert filled(c) == [1, 2, 1, 2] * 2


def test_the_buffers_of_the_request_are_used_again_after_they_were_too_small() -> None:
    fork, a, b, x = Fork(), buffer(8), buffer(64), row(3, 1, 1)
    fork.plans[0].compute = lambda x: [x[: int(x[0])]]
    call = fork.plan.bind([x], [a, b])
    with pytest.raises(OutputInsufficientSize):
        call.run(StopFlag())
    x[0] = 2
    assert call.run(StopFlag())
    assert filled(a) == [2, 1]
    assert filled(b) == [2, 1, 2, 1]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OutputInsufficientSize("small"), "does not say which"),
        (OutputInsufficientSize("small", (OutputShape((2,)),)), "does not say which"),
        (
            OutputInsufficientSize("small", (OutputShape((2,), False),) * 2),
            "does not say which",
        ),
        (OutputInsufficientSize("small", (OutputShape((2,), False),)), "wants 8 bytes"),
        (
            OutputInsufficientSize("small", (OutputShape((2**40,), False),)),
            "of at most 4294967295",
        ),
    ],
)
def test_an_engine_that_asks_for_what_cannot_be(error: NNError, text: str) -> None:
    fork = Fork()

    def lying(x: Array) -> list[Array]:
        raise error

    fork.plans[1].compute = lying
    call = fork.plan.bind([row(1, 2)], [buffer(), buffer()])
    with pytest.raises(GeneralFailure, match=text):
        call.run(StopFlag())


def test_an_engine_that_finds_a_known_shape_too_small() -> None:
    line = Line((0,))

    def lying(x: Array) -> list[Array]:
        raise OutputInsufficientSize("small", (OutputShape((9,), False),))

    line.plans[2].compute = lying
    with pytest.raises(GeneralFailure, match=r"step 2 wants \[9\] for an output of known shape"):
        line.plan.bind([row(1, 2)], [row(0, 0)]).run(StopFlag())


def test_a_step_that_does_not_take_a_shape_is_at_fault() -> None:
    fork = Fork()

    class Picky(Scripted):
        def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> ScriptedCall:
            raise InvalidArgument("input 0 is float32[4], expected float32[3]")

    fork.plan = CompositePlan(
        [
            CompositeStep(fork.plans[0], (given(),), (result(0),)),
            CompositeStep(Picky(plus_one), (result(0),), (result(1),), "the second"),
        ],
        [],
        inputs=1,
        outputs=2,
    )
    with pytest.raises(GeneralFailure, match="the second does not take what came before: input 0"):
        fork.plan.bind([row(1, 2)], [buffer(), buffer()]).run(StopFlag())
