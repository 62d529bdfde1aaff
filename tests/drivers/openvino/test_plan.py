"""Plans of OpenVINO: calls at once, memory, interruption, faults, and plans as bytes."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.openvino import OpenVinoEngine
from nnasync._core.drivers.openvino.infer_requests import InferRequest
from nnasync._core.drivers.openvino.plan import OpenVinoPlan
from nnasync._core.drivers.openvino.saturation import lacks_wide_sums
from nnasync._core.model.graph import Value
from nnasync._core.real_time import REAL_TIME
from nnasync._core.workers import StopFlag
from nnasync.conformance import driver_facts
from nnasync.engine import CacheFiles, Lowering, LoweringEngine, OutputBuffer
from nnasync.errors import (
    GeneralFailure,
    InvalidArgument,
    ModelError,
    OutputInsufficientSize,
)
from nnasync.hal import Array, ExecutionPreference, OperandType, OperationType
from tests.drivers.openvino.rig import F32, FAST, PRECISE, U8, given, model_of

SUSTAINED = ExecutionPreference.SUSTAINED_SPEED
CALLS = 4
ROUNDS = 40


def square(m: nn.ModelBuilder) -> Value:
    x = given(m, F32, 2, 3)
    return m.operation(OperationType.MUL, x, x, 0)


@pytest.fixture(scope="module")
def plan() -> OpenVinoPlan:
    return OpenVinoEngine().compile(model_of(square), FAST)


def test_it_is_an_engine_of_several_lowerings() -> None:
    engine = OpenVinoEngine()
    assert isinstance(engine, LoweringEngine)
    assert engine.version
    assert driver_facts(engine.name).known_gaps == {}


def test_lowerings_by_preference_and_model() -> None:
    engine = OpenVinoEngine()
    engine.cores = 2
    model = model_of(square)
    assert {lowering.threads for lowering in engine.lowerings(model, FAST)} == {1, 2}
    sustained = engine.lowerings(model, SUSTAINED)
    assert {lowering.threads for lowering in sustained} == {1}
    assert sustained[0].name == "f32"
    assert not sustained[0].reduces_precision
    assert all(each.reduces_precision for each in sustained if each.name == "bf16")
    names = {each.name for each in engine.lowerings(dense(17), FAST)}
    assert ("int8" in names) is not lacks_wide_sums()
    assert not any(each.reduces_precision for each in engine.lowerings(dense(17), FAST))
    assert "int8" not in {each.name for each in engine.lowerings(dense(200), FAST)}


def dense(zero_point: int) -> nn.Model:
    """A dense operation whose weights less the zero point are signed bytes, or are not."""

    def build(m: nn.ModelBuilder) -> Value:
        filter = m.constant(np.asarray([[0, 140]], np.uint8), scale=0.5, zero_point=zero_point)
        product = float(np.float32(0.05) * np.float32(0.5))
        zeros = m.constant(np.zeros(1, np.int32), type=OperandType.TENSOR_INT32, scale=product)
        inputs = (given(m, U8, 1, 2), filter, zeros, 0)
        return m.operation(OperationType.FULLY_CONNECTED, *inputs, scale=0.4, zero_point=3)

    return model_of(build)


def test_a_call_reads_its_memory_anew_at_each_run(plan: OpenVinoPlan) -> None:
    x, y = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    call = plan.bind([x], [y])
    for value in (2.0, 3.0):
        x[...] = value
        assert call.run(StopFlag())
        assert (y == value * value).all()
        plan.trim()


def test_memory_at_odd_addresses(plan: OpenVinoPlan) -> None:
    pool = np.zeros(64, np.uint8)
    x, y = (pool[at : at + 24].view(np.float32).reshape(2, 3) for at in (1, 33))
    x[...] = [[1, 2, 3], [4, 5, 6]]
    assert plan.bind([x], [y]).run(StopFlag())
    assert y.tolist() == [[1, 4, 9], [16, 25, 36]]


def test_calls_run_at_once(plan: OpenVinoPlan) -> None:
    inputs = [np.full((2, 3), number, np.float32) for number in range(CALLS)]
    outputs = [np.zeros((2, 3), np.float32) for _ in range(CALLS)]
    wrong: list[int] = []
    together = threading.Barrier(CALLS)

    def work(number: int) -> None:
        call = plan.bind([inputs[number]], [outputs[number]])
        together.wait(20)
        for _ in range(ROUNDS):
            outputs[number][...] = -1
            if not call.run(StopFlag()) or not (outputs[number] == number * number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CALLS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_open_outputs(plan: OpenVinoPlan) -> None:
    x = np.full((2, 3), 4, np.float32)
    roomy = OutputBuffer(np.zeros(40, np.uint8), np.dtype(np.float32), (0, 0))
    assert plan.bind([x], [roomy]).run(StopFlag())
    assert roomy.shape == (2, 3)
    assert (roomy.memory[:24].view(np.float32) == 16).all()
    tight = OutputBuffer(np.zeros(20, np.uint8), np.dtype(np.float32), (0, 0))
    with pytest.raises(OutputInsufficientSize) as raised:
        plan.bind([x], [tight])
    assert raised.value.output_shapes[0].dimensions == (2, 3)


def test_an_input_may_not_be_omitted(plan: OpenVinoPlan) -> None:
    with pytest.raises(InvalidArgument, match="input 0"):
        plan.bind([None], [np.zeros((2, 3), np.float32)])


def test_an_input_of_another_shape_is_the_engines_fault(plan: OpenVinoPlan) -> None:
    call = plan.bind([np.zeros((5, 3), np.float32)], [np.zeros((2, 3), np.float32)])
    for _ in range(2):
        with pytest.raises(GeneralFailure, match="OpenVINO failed binding memory"):
            call.run(StopFlag())
    assert plan.bind([np.zeros((2, 3), np.float32)], [np.zeros((2, 3), np.float32)]).run(StopFlag())


def test_a_stopped_run_does_not_start(plan: OpenVinoPlan) -> None:
    x, y = np.ones((2, 3), np.float32), np.full((2, 3), 7, np.float32)
    call, stop = plan.bind([x], [y]), StopFlag()
    stop.abort()
    assert not call.run(stop)
    assert (y == 7).all()
    call.rewind()
    assert call.run(StopFlag())
    assert (y == 1).all()


class Interrupting(StopFlag):
    """Aborts as soon as the engine has armed its interrupt."""

    def arm(self, interrupt: Callable[[], object]) -> bool:
        armed = super().arm(interrupt)
        self.abort()
        return armed


def long_network(m: nn.ModelBuilder) -> Value:
    x = given(m, F32, 512, 512)
    square = np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)
    filter, zeros = m.constant(square), m.constant(np.zeros(512, np.float32))
    for _ in range(40):
        x = m.operation(OperationType.FULLY_CONNECTED, x, filter, zeros, 1)
    return x


def test_a_long_run_is_interrupted_and_can_run_again() -> None:
    plan = OpenVinoEngine().compile(model_of(long_network), FAST, PRECISE)
    x, y = np.zeros((512, 512), np.float32), np.full((512, 512), 7, np.float32)
    call = plan.bind([x], [y])
    assert call.run(StopFlag())
    assert not call.run(Interrupting())
    call.rewind()
    assert call.run(StopFlag())
    assert (y == 0).all()


def test_the_first_run_can_be_interrupted_whatever_its_length() -> None:
    plan = OpenVinoEngine().compile(model_of(long_network), FAST, PRECISE)
    x, y = np.zeros((512, 512), np.float32), np.full((512, 512), 7, np.float32)
    call = plan.bind([x], [y])
    assert not call.run(Interrupting())
    assert plan.is_long is None
    call.rewind()
    assert call.run(StopFlag())
    assert (y == 0).all()
    assert plan.is_long


def test_memory_is_bound_without_the_network() -> None:
    plan = OpenVinoEngine().compile(model_of(square), FAST, PRECISE)
    x, y = np.full((2, 3), 3, np.float32), np.zeros((2, 3), np.float32)
    network = plan.networks.all[0]
    network.compiled, compiled = None, network.compiled  # The engine waits for runs under way.
    call = plan.bind([x], [y])
    network.compiled = compiled
    assert call.run(StopFlag())
    assert (y == 9).all()


@pytest.mark.parametrize("real_time", [False, True])
def test_a_request_that_is_dropped_is_gone_at_once(
    plan: OpenVinoPlan, monkeypatch: pytest.MonkeyPatch, real_time: bool
) -> None:
    monkeypatch.setattr(REAL_TIME, "is_wanted", real_time)
    array = np.zeros((2, 3), np.float32)
    request = InferRequest(plan.compiled, [array], [array.copy()])
    dropped = weakref.ref(request.infer)
    request.infer()
    del request
    assert dropped() is None


class Armed(StopFlag):
    """Counts how often it is armed."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 0

    def arm(self, interrupt: Callable[[], object]) -> bool:
        self.times += 1
        return super().arm(interrupt)


def test_what_is_known_to_be_short_is_not_armed() -> None:
    plan = OpenVinoEngine().compile(model_of(square), FAST, PRECISE)
    x, y = np.full((2, 3), 3, np.float32), np.zeros((2, 3), np.float32)
    first, second = plan.bind([x], [y]), plan.bind([x], [y])
    stop = Armed()
    assert first.run(stop)
    assert stop.times == 1
    plan.is_long = False
    for call in (first, second):
        assert call.run(stop)
    assert stop.times == 1
    assert (y == 9).all()


def test_an_output_that_is_an_input() -> None:
    model = model_of(lambda m: m.operation(OperationType.CAST, given(m, F32, 3), output=_floats()))
    x, y = np.asarray([1, 2, 3], np.float32), np.zeros(3, np.float32)
    assert OpenVinoEngine().compile(model, FAST).bind([x], [y]).run(StopFlag())
    assert y.tolist() == [1, 2, 3]


def _floats() -> nn.kernels.Tensor:
    return nn.kernels.Tensor(type=F32, shape=(3,))


def test_what_is_not_lowered_is_refused_with_its_reason() -> None:
    def build(m: nn.ModelBuilder) -> Value:
        x = given(m, OperandType.TENSOR_INT32, 2)
        return m.operation(OperationType.MUL, x, x, 0)

    with pytest.raises(ModelError, match="operation 0: MUL: .* float32"):
        OpenVinoEngine().compile(model_of(build), FAST)


def test_a_lowering_that_does_not_exist() -> None:
    with pytest.raises(InvalidArgument, match="int3"):
        OpenVinoEngine().compile(model_of(square), FAST, Lowering("int3"))


def test_a_plan_as_files(plan: OpenVinoPlan) -> None:
    engine = OpenVinoEngine()
    files = engine.serialize(plan)
    for lowering in (PRECISE, None):
        again = engine.deserialize(files, lowering)
        assert (again.precision, again.threads) == (PRECISE.name, PRECISE.threads)
        x, y = np.full((2, 3), 5, np.float32), np.zeros((2, 3), np.float32)
        assert again.bind([x], [y]).run(StopFlag())
        assert (y == 25).all()
    with pytest.raises(InvalidArgument, match="bf16"):
        engine.deserialize(files, Lowering("bf16"))
    with pytest.raises(InvalidArgument, match="no plan"):
        engine.deserialize(CacheFiles((b"something", b"else")), PRECISE)
    with pytest.raises(InvalidArgument, match="no plan"):
        engine.deserialize(CacheFiles((b"one file",)), PRECISE)


def test_the_package_is_imported_when_a_plan_needs_it() -> None:
    script = (
        "import sys; import nnasync as nn; from nnasync._core.drivers.openvino import "
        "OpenVinoEngine;"
        "m = nn.ModelBuilder(); x = m.input('x', (2,)); m.output('y', m.relu(x));"
        "assert OpenVinoEngine().supported_operations(m.build()) == [True];"
        "assert 'openvino' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_states_of_a_stream() -> None:
    m = nn.ModelBuilder("sum")
    x = m.input("x", (1, 2))
    total = m.state("total", (1, 2))
    new = m.add(x, total)
    m.update(total, new)
    m.output("y", m.relu(new))
    model = m.build()
    inputs: list[Array] = [np.zeros((1, 2), np.float32) for _ in model.main.input_indexes]
    outputs: list[Array] = [np.zeros((1, 2), np.float32) for _ in model.main.output_indexes]
    call = OpenVinoEngine().compile(model, FAST).bind(inputs, outputs)
    for number in (1, 2, 3):
        inputs[0][...] = number
        assert call.run(StopFlag())
        for pair in model.state:
            inputs[pair.input][...] = outputs[pair.output]
    assert max(float(output.max()) for output in outputs) == 6
