"""The null engine does what it is told: latency, steps, faults, hangs, gates, limits."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from nnasync import errors, hal
from nnasync._core.drivers.null import Gate, NullEngine
from nnasync._core.workers import StopFlag
from nnasync.engine import BoundCall, Engine

pytestmark = pytest.mark.usefixtures("no_leaks")

FLOATS = hal.Operand(hal.OperandType.TENSOR_FLOAT32, (2,))
BYTES = hal.Operand(hal.OperandType.TENSOR_QUANT8_ASYMM, (2,), scale=0.5)
MODEL = hal.Model(
    hal.Subgraph(
        operands=(FLOATS, FLOATS, BYTES, BYTES),
        operations=(
            hal.Operation(hal.OperationType.RELU, (0,), (1,)),
            hal.Operation(hal.OperationType.QUANTIZE, (1,), (2,)),
            hal.Operation(hal.OperationType.RELU, (2,), (3,)),
        ),
        input_indexes=(0,),
        output_indexes=(3,),
    )
)
PREFERENCE = hal.ExecutionPreference.FAST_SINGLE_ANSWER


def outputs() -> list[hal.Array]:
    return [np.full(2, 7, np.uint8)]


def bound(engine: NullEngine, out: list[hal.Array] | None = None) -> BoundCall:
    plan = engine.compile(MODEL, PREFERENCE)
    return plan.bind([np.array([1, 2], np.float32)], outputs() if out is None else out)


class Running:
    """A call that runs in a thread."""

    def __init__(self, call: BoundCall, stop: StopFlag) -> None:
        self.finished: bool | None = None
        self._call, self._stop = call, stop
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.finished = self._call.run(self._stop)

    def join(self) -> bool | None:
        self._thread.join(timeout=30)
        return self.finished


@pytest.fixture
def running() -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(call: BoundCall, stop: StopFlag | None = None) -> Running:
        started.append(Running(call, stop or StopFlag()))
        return started[-1]

    yield start
    for each in started:
        each.join()


def test_it_satisfies_the_contract_of_engines() -> None:
    engine: Engine = NullEngine("void", concurrency=2)
    assert engine.name == "void"
    assert engine.version
    assert engine.type is hal.DeviceType.OTHER
    assert engine.concurrency == 2
    assert engine.extensions == ()
    types = [each.type for each in engine.capabilities.operand_performance]
    assert types == sorted(types)
    assert hal.OperandType.SUBGRAPH not in types
    assert engine.supported_operations(MODEL) == [True, True, True]


def test_outputs_are_zeros() -> None:
    out = outputs()
    assert bound(NullEngine(), out).run(StopFlag())
    assert out[0].tolist() == [0, 0]


def test_outputs_are_what_a_function_of_the_inputs_gives() -> None:
    out = outputs()
    engine = NullEngine(compute=lambda inputs: [0 if inputs[0] is None else inputs[0] * 3])
    call = bound(engine, out)
    assert call.run(StopFlag())
    assert out[0].tolist() == [3, 6]
    engine.compute = lambda _: [5]
    assert call.run(StopFlag())
    assert out[0].tolist() == [5, 5]
    engine.compute = lambda _: []
    with pytest.raises(ValueError, match="longer|shorter"):
        call.run(StopFlag())


def test_a_raised_flag_stops_a_run_between_steps(running: Callable[..., Running]) -> None:
    gate = Gate()
    engine = NullEngine(steps=3, gate=gate)
    out, stop = outputs(), StopFlag()
    call = bound(engine, out)
    run = running(call, stop)
    engine.when(lambda counters: counters.waiting == 1).wait_blocking(30)
    stop.raised = 1
    gate.open()
    assert run.join() is False
    assert out[0].tolist() == [7, 7]
    assert engine.counters.step == 1
    stop.raised = 0
    gate.open(2)
    assert running(call, stop).join() is True
    assert out[0].tolist() == [0, 0]
    counters = engine.counters
    assert (counters.run, counters.resume, counters.stopped, counters.finished) == (1, 1, 1, 1)
    assert counters.step == 3


def test_a_rewound_run_starts_anew() -> None:
    engine = NullEngine(steps=3, compute=lambda _: [1])
    stops = StopFlag()

    def stop_in_step_one(number: int) -> int:
        stops.raised = int(engine.counters.step == 1)
        return 0

    engine.latency_ns = stop_in_step_one
    call = bound(engine)
    assert not call.run(stops)
    assert engine.counters.step == 2
    call.rewind()
    engine.latency_ns = 0
    assert call.run(StopFlag())
    counters = engine.counters
    assert (counters.step, counters.run, counters.resume, counters.rewind) == (5, 2, 0, 1)


def test_a_flag_raised_before_the_run_stops_it_at_once() -> None:
    engine, stop = NullEngine(), StopFlag()
    stop.raised = 2
    assert not bound(engine).run(stop)
    assert engine.counters.step == 0


def test_a_wide_open_gate_lets_everything_through() -> None:
    gate = Gate()
    gate.open_wide()
    engine = NullEngine(steps=5, gate=gate)
    call = bound(engine)
    assert call.run(StopFlag())
    assert call.run(StopFlag())
    assert engine.counters.step == 10


@pytest.mark.parametrize("latency", ["number", "sequence", "function"])
def test_latency_is_at_least_what_was_asked(latency: str) -> None:
    asked: list[int] = []

    def by_number(number: int) -> int:
        asked.append(number)
        return 1000 * number

    choices = {"number": 1000, "sequence": [1000, 2000], "function": by_number}
    engine = NullEngine(latency_ns=choices[latency], steps=2)  # type: ignore[arg-type]
    call = bound(engine)
    for _ in range(3):
        assert call.run(StopFlag())
    assert [engine._latency_of(i) for i in range(3)] == {
        "number": [1000, 1000, 1000],
        "sequence": [1000, 2000, 1000],
        "function": [0, 1000, 2000],
    }[latency]
    assert latency != "function" or asked[:6] == [0, 0, 1, 1, 2, 2]


def test_it_fails_where_it_is_told_to() -> None:
    engine = NullEngine(steps=2)
    engine.fail("compile", errors.GeneralFailure("no compiler"), at=1)
    engine.fail("bind", errors.ResourceExhaustedTransient("no memory"), at=0)
    engine.fail("run", errors.DeviceDied("gone"), at=1, step=1)
    plan = engine.compile(MODEL, PREFERENCE)
    with pytest.raises(errors.GeneralFailure, match="no compiler"):
        engine.compile(MODEL, PREFERENCE)
    with pytest.raises(errors.ResourceExhaustedTransient):
        plan.bind([None], outputs())
    call = plan.bind([None], outputs())
    assert call.run(StopFlag())
    with pytest.raises(errors.DeviceDied):
        call.run(StopFlag())
    call.rewind()
    assert call.run(StopFlag())
    counters = engine.counters
    assert (counters.compile, counters.bind, counters.run) == (2, 2, 3)
    assert (counters.failed, counters.finished, counters.step) == (1, 2, 5)


def test_it_fails_always_until_it_is_healed() -> None:
    engine = NullEngine()
    engine.fail("run", ValueError("not ours"))
    call = bound(engine)
    for _ in range(3):
        with pytest.raises(ValueError, match="not ours"):
            call.run(StopFlag())
        call.rewind()
    engine.heal()
    assert call.run(StopFlag())


def test_it_hangs_until_it_is_released(running: Callable[..., Running]) -> None:
    engine, stop = NullEngine(steps=2), StopFlag()
    engine.hang(at=0, step=1)
    run = running(bound(engine), stop)
    engine.when(lambda counters: counters.hanging == 1).wait_blocking(30)
    stop.raised = 2
    assert run.finished is None
    stop.raised = 0
    engine.release()
    assert run.join() is True
    assert engine.counters.hanging == 0
    assert bound(engine).run(StopFlag())


def test_a_release_ends_only_the_hangs_of_the_moment(running: Callable[..., Running]) -> None:
    engine = NullEngine()
    engine.hang()
    first = running(bound(engine))
    engine.when(lambda counters: counters.hanging == 1).wait_blocking(30)
    engine.release()
    assert first.join() is True
    second = running(bound(engine))
    engine.when(lambda counters: counters.hanging == 1).wait_blocking(30)
    assert second.finished is None
    engine.release()
    assert second.join() is True


def test_operations_are_supported_by_type() -> None:
    engine = NullEngine(operation_types={hal.OperationType.RELU})
    assert engine.supported_operations(MODEL) == [True, False, True]
    with pytest.raises(errors.InvalidArgument, match="operation 1, QUANTIZE"):
        engine.compile(MODEL, PREFERENCE)


def test_operations_are_supported_by_their_operands() -> None:
    def floats_only(
        operation: hal.Operation, inputs: list[hal.Operand], outputs: list[hal.Operand]
    ) -> bool:
        assert len(inputs) == len(operation.inputs)
        return all(each.type == hal.OperandType.TENSOR_FLOAT32 for each in [*inputs, *outputs])

    engine = NullEngine(supports=floats_only)  # type: ignore[arg-type]
    assert engine.supported_operations(MODEL) == [True, False, False]
    engine.operation_types = {hal.OperationType.QUANTIZE}
    assert engine.supported_operations(MODEL) == [False, False, False]
    assert engine.counters.supported_operations == 2


def test_it_holds_a_limited_number_of_models() -> None:
    engine = NullEngine(max_models=2)
    first = engine.compile(MODEL, PREFERENCE)
    second = engine.compile(MODEL, PREFERENCE).bind([None], outputs())
    with pytest.raises(errors.ResourceExhaustedPersistent, match="2 prepared models"):
        engine.compile(MODEL, PREFERENCE)
    del first
    gc.collect()
    third = engine.compile(MODEL, PREFERENCE)
    with pytest.raises(errors.ResourceExhaustedPersistent):
        engine.compile(MODEL, PREFERENCE)
    third.trim()
    assert engine.counters.trim == 1
    assert second.run(StopFlag())


def test_ten_threads_on_one_plan_are_all_counted(running: Callable[..., Running]) -> None:
    engine = NullEngine(steps=3, compute=lambda inputs: [inputs[0]])
    plan = engine.compile(MODEL, PREFERENCE)
    results = [outputs() for _ in range(10)]
    calls = [plan.bind([np.full(2, i, np.float32)], out) for i, out in enumerate(results)]
    for run in [running(call) for call in calls]:
        assert run.join() is True
    assert [out[0].tolist() for out in results] == [[i, i] for i in range(10)]
    counters = engine.counters
    assert (counters.run, counters.finished, counters.step) == (10, 10, 30)


def test_a_condition_that_holds_already_is_signaled() -> None:
    engine = NullEngine()
    assert engine.when(lambda counters: counters.run == 0).done
    later = engine.when(lambda counters: counters.finished >= 2)
    call = bound(engine)
    call.run(StopFlag())
    assert not later.done
    call.run(StopFlag())
    assert later.done
