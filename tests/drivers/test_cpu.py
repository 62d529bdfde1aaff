"""The reference engine: plans that resume, run on many threads at once and say what is wrong."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.cpu.plan import ReferenceCall, ReferencePlan
from nnasync._core.workers import StopFlag
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import Array, ExecutionPreference, OperandLifeTime, OperationType

FAST = ExecutionPreference.FAST_SINGLE_ANSWER
SHAPE = (1, 12, 12, 3)
S = TypeVar("S", bound=hal.Struct)


def network() -> hal.Model:
    """Convolutions with a residual sum, a reshape in the middle and a softmax."""
    rng = np.random.default_rng(0)

    def some(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32) * 0.4

    m = nn.ModelBuilder("small")
    x = m.input("image", SHAPE)
    y = m.conv_2d(x, some(8, 3, 3, 3), some(8), stride=2, padding="same", activation="relu6")
    z = m.depthwise_conv_2d(y, some(1, 3, 3, 8), some(8), padding="same")
    y = m.add(y, z)
    y = m.reshape(y, (1, 6 * 6 * 8))
    y = m.fully_connected(y, some(10, 288), some(10))
    m.output("scores", m.softmax(y))
    return m.build()


@pytest.fixture(scope="module")
def plan() -> ReferencePlan:
    return ReferenceEngine().compile(network(), FAST)


class StopAfter(StopFlag):
    """Raised once it has been looked at a number of times."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    @property
    def raised(self) -> int:  # type: ignore[override]
        self._looks -= 1
        return int(self._looks < 0)


def image(seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


def bound(plan: ReferencePlan, x: Array) -> tuple[ReferenceCall, Array]:
    y = np.zeros((1, 10), np.float32)
    call = plan.bind([x], [y])
    assert isinstance(call, ReferenceCall)
    return call, y


def result(plan: ReferencePlan, x: Array) -> Array:
    call, y = bound(plan, x)
    assert call.run(StopFlag())
    return y


def test_a_run_is_repeatable_and_reads_its_arrays_each_time(plan: ReferencePlan) -> None:
    x = image(1)
    call, y = bound(plan, x)
    assert call.run(StopFlag())
    first = y.copy()
    x[...] = image(2)
    assert call.run(StopFlag())
    assert not np.array_equal(first, y)
    x[...] = image(1)
    assert call.run(StopFlag())
    np.testing.assert_array_equal(first, y)
    assert abs(y.sum() - 1) < 1e-5


def test_stopped_at_every_operation_the_result_is_the_same(plan: ReferencePlan) -> None:
    expected = result(plan, image(3))
    call, y = bound(plan, image(3))
    runs = 1
    while not call.run(StopAfter(1)):
        assert not y.any()
        runs += 1
    assert runs == 6
    np.testing.assert_array_equal(y, expected)


def test_inputs_are_read_before_the_first_operation(plan: ReferencePlan) -> None:
    x = image(4)
    call, y = bound(plan, x)
    assert not call.run(StopAfter(2))
    x[...] = 0
    assert call.run(StopFlag())
    np.testing.assert_array_equal(y, result(plan, image(4)))


def test_a_run_on_other_arrays_leaves_those_it_is_bound_to_alone(plan: ReferencePlan) -> None:
    x = image(4)
    call, y = bound(plan, x)
    assert call.reads_given
    wide = np.repeat(image(5), 2, axis=-1)
    assert call.run(StopFlag(), [wide[..., ::2]])
    np.testing.assert_array_equal(y, result(plan, image(5)))
    assert call.run(StopFlag())
    np.testing.assert_array_equal(y, result(plan, image(4)))
    assert not call.run(StopAfter(0), [x])
    assert call.run(StopFlag())
    np.testing.assert_array_equal(y, result(plan, image(4)))


def test_rewind_starts_over_and_gives_the_lane_back(plan: ReferencePlan) -> None:
    call, y = bound(plan, image(5))
    call.rewind()
    assert not call.run(StopAfter(3))
    call.rewind()
    call.rewind()
    program = call._program
    lane = program.lease()
    program.give_back(lane)
    assert call.run(StopFlag())
    np.testing.assert_array_equal(y, result(plan, image(5)))
    assert program.lease() is lane
    program.give_back(lane)


def test_a_stop_before_the_start_takes_no_lane(plan: ReferencePlan) -> None:
    stop = StopFlag()
    stop.raised = 2
    call, _ = bound(plan, image(5))
    program = call._program
    lane = program.lease()
    program.give_back(lane)
    assert not call.run(stop)
    assert program.lease() is lane
    program.give_back(lane)


def test_two_stopped_calls_do_not_disturb_each_other(plan: ReferencePlan) -> None:
    pairs = [(seed, *bound(plan, image(seed))) for seed in range(3)]
    for looks in (2, 3, 2):
        for _, call, _ in pairs:
            call.run(StopAfter(looks))
    for seed, call, y in pairs:
        assert call.run(StopFlag())
        np.testing.assert_array_equal(y, result(plan, image(seed)))


def test_ten_threads_get_what_one_gets_alone(plan: ReferencePlan) -> None:
    expected = [result(plan, image(seed)) for seed in range(10)]
    wrong: list[int] = []
    barrier = threading.Barrier(10)

    def work(seed: int) -> None:
        call, y = bound(plan, image(seed))
        barrier.wait()
        for _ in range(20):
            if not call.run(StopFlag()) or not np.array_equal(y, expected[seed]):
                wrong.append(seed)
            y[...] = 0

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_trim_while_running_and_after(plan: ReferencePlan) -> None:
    expected = result(plan, image(6))
    call, y = bound(plan, image(6))
    assert not call.run(StopAfter(3))
    plan.trim()
    assert call.run(StopFlag())
    np.testing.assert_array_equal(y, expected)
    plan.trim()
    plan.trim()
    np.testing.assert_array_equal(result(plan, image(6)), expected)


def test_a_step_that_raises_gives_its_lane_back(plan: ReferencePlan) -> None:
    class Broken(StopFlag):
        @property
        def raised(self) -> int:
            self.looks = getattr(self, "looks", 0) + 1
            if self.looks > 2:
                raise RuntimeError("broken")
            return 0

        @raised.setter
        def raised(self, value: int) -> None:
            pass

    call, y = bound(plan, image(7))
    with pytest.raises(RuntimeError, match="broken"):
        call.run(Broken())
    assert call.run(StopFlag())
    np.testing.assert_array_equal(y, result(plan, image(7)))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "0 inputs given, expected 1"),
        ([np.zeros((1, 12, 12, 4), np.float32)], r"input 0 is float32\[1, 12, 12, 4\], expected"),
        ([np.zeros(SHAPE, np.float64)], "input 0 is float64"),
    ],
)
def test_bind_refuses(plan: ReferencePlan, inputs: list[Array | None], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        plan.bind(inputs, [np.zeros((1, 10), np.float32)])
    with pytest.raises(InvalidArgument, match="output 0 is int32"):
        plan.bind([image(0)], [np.zeros((1, 10), np.int32)])


def test_floats_that_overflow_raise_no_warnings(plan: ReferencePlan) -> None:
    y = result(plan, np.full(SHAPE, np.float32(3e38)))
    assert y.shape == (1, 10)
    assert result(plan, np.full(SHAPE, np.float32(np.nan))).shape == (1, 10)


def changed(model: hal.Model, position: int, **fields: object) -> hal.Model:
    """The model with other fields of one operation."""
    operations = list(model.main.operations)
    operations[position] = hal_replace(operations[position], **fields)
    return hal_replace(model, main=hal_replace(model.main, operations=tuple(operations)))


def hal_replace(struct: S, **fields: object) -> S:
    return msgspec.structs.replace(struct, **fields)


def test_supported_operations_are_told_apart() -> None:
    engine, model = ReferenceEngine(), network()
    assert engine.supported_operations(model) == [True] * 6
    unknown = changed(model, 3, type=int(OperationType.OEM_OPERATION))
    assert engine.supported_operations(unknown) == [True, True, True, False, True, True]
    wrong = changed(model, 2, inputs=model.main.operations[2].inputs[:2])
    assert engine.supported_operations(wrong) == [True, True, False, True, True, True]


def test_compile_says_which_operation_is_at_fault() -> None:
    model = network()
    engine = ReferenceEngine()
    wrong = changed(model, 2, inputs=model.main.operations[2].inputs[:2])
    with pytest.raises(ModelError, match=r"operation 2 \(ADD\): ADD: has 2 inputs, expected 3"):
        engine.compile(wrong, FAST)
    unknown = changed(model, 3, type=int(OperationType.OEM_OPERATION))
    with pytest.raises(ModelError, match=r"operation 3 \(OEM_OPERATION\): .*not supported"):
        engine.compile(unknown, FAST)


def test_unknown_shapes_are_inferred_and_unknown_inputs_take_those_of_the_request() -> None:
    model = network()
    engine = ReferenceEngine()
    loose = [
        hal_replace(operand, dimensions=())
        if operand.lifetime == OperandLifeTime.TEMPORARY_VARIABLE
        else operand
        for operand in model.main.operands
    ]
    without = hal_replace(model, main=hal_replace(model.main, operands=tuple(loose)))
    assert all(engine.supported_operations(without))
    np.testing.assert_array_equal(
        result(engine.compile(without, FAST), image(1)),
        result(engine.compile(model, FAST), image(1)),
    )
    operands = list(loose)
    index = model.main.input_indexes[0]
    operands[index] = hal_replace(operands[index], dimensions=(0, 12, 12, 3))
    unknown = hal_replace(model, main=hal_replace(model.main, operands=tuple(operands)))
    assert engine.supported_operations(unknown) == [True] * 6
    np.testing.assert_array_equal(
        result(engine.compile(unknown, FAST), image(1)),
        result(engine.compile(model, FAST), image(1)),
    )


def test_constants_that_leave_their_memory() -> None:
    model = network()
    cut = hal_replace(model, operand_values=bytes(model.operand_values)[:8])
    with pytest.raises(ModelError, match="operand .*: its constant lies at"):
        ReferenceEngine().compile(cut, FAST)


def test_what_the_engine_says_of_itself() -> None:
    engine = ReferenceEngine()
    assert engine.name == "nnasync-reference"
    assert engine.version
    types = [entry.type for entry in engine.capabilities.operand_performance]
    assert types == sorted(types)
    assert hal.OperandType.SUBGRAPH not in types
    assert {entry.info.exec_time for entry in engine.capabilities.operand_performance} == {1.0}


def test_an_input_that_is_also_an_output_of_a_reshape() -> None:
    m = nn.ModelBuilder("view")
    x = m.input("x", (2, 6))
    m.output("y", m.reshape(x, (3, 4)))
    plan = ReferencePlan(m.build())
    source, target = np.arange(12, dtype=np.float32).reshape(2, 6), np.zeros((3, 4), np.float32)
    assert plan.bind([source], [target]).run(StopFlag())
    np.testing.assert_array_equal(target.reshape(-1), np.arange(12))


def test_after_the_first_run_nothing_is_allocated(shared: Path) -> None:
    import tracemalloc

    plan = ReferencePlan(nn.load(shared / "models" / "mobilenet_v1_0.25_128_quant.tflite"))
    x, y = np.zeros((1, 128, 128, 3), np.uint8), np.zeros((1, 1001), np.uint8)
    call = plan.bind([x], [y])
    stop = StopFlag()
    assert call.run(stop)
    tracemalloc.start()
    try:
        assert call.run(stop)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        assert call.run(stop)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 4096
    assert peak - before < 256 * 1024
