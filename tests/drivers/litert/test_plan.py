"""Plans of LiteRT: several calls at once, open shapes, states, memory, faults."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from msgspec.structs import replace

import nnasync as nn
from nnasync._core.drivers.litert import LiteRTEngine
from nnasync.engine import BoundCall, Lowering, OutputBuffer, StopFlag
from nnasync.errors import GeneralFailure, InvalidArgument, ModelError, OutputInsufficientSize
from nnasync.hal import Array, ExecutionPreference, Model, OperandType, OperationType
from nnasync.kernels import Tensor
from tests.drivers.litert.rig import BUILTIN, UNSIGNED, XNNPACK, agree, need_litert, plan

need_litert()

FAST = ExecutionPreference.FAST_SINGLE_ANSWER
I32, F16 = OperandType.TENSOR_INT32, OperandType.TENSOR_FLOAT16


def doubler() -> Model:
    builder = nn.ModelBuilder("doubler")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    return builder.build()


def row(*values: float) -> Array:
    return np.array([values], np.float32)


def test_a_call_reads_and_writes_the_same_arrays_again() -> None:
    x, y = row(1, 2, 3, 4), row(0, 0, 0, 0)
    call = plan(doubler()).bind([x], [y])
    for factor in (1, 5):
        x[:] = row(1, 2, 3, 4) * factor
        assert call.run(StopFlag())
        assert (y == 2 * x).all()


def test_memory_that_is_not_aligned() -> None:
    memory = np.zeros(64, np.uint8)
    x, y = memory[1:17].view(np.float32).reshape(1, 4), memory[33:49].view(np.float32)
    x[:] = row(1, 2, 3, 4)
    assert plan(doubler()).bind([x], [y.reshape(1, 4)]).run(StopFlag())
    assert y.tolist() == [2, 4, 6, 8]


def test_a_raised_flag_stops_a_run_before_it_begins() -> None:
    y = row(0, 0, 0, 0)
    call = plan(doubler()).bind([row(1, 2, 3, 4)], [y])
    stop = StopFlag()
    stop.raised = 1
    assert not call.run(stop)
    assert not y.any()
    call.rewind()
    assert call.run(StopFlag())
    assert y.any()


def test_calls_on_several_threads_at_once() -> None:
    compiled = plan(doubler())
    begin, wrong = threading.Barrier(4), []

    def work(number: int) -> None:
        x, y = row(*[number] * 4), row(0, 0, 0, 0)
        call = compiled.bind([x], [y])
        begin.wait()
        for step in range(200):
            x[:] = number + step
            if not call.run(StopFlag()) or (y != 2 * (number + step)).any():
                wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_trimming_keeps_one_interpreter_and_calls_go_on() -> None:
    compiled = plan(doubler())
    y = row(0, 0, 0, 0)
    call = compiled.bind([row(1, 2, 3, 4)], [y])
    (pool,) = compiled.pools
    pool.idle.extend([pool.session(), pool.session()])
    assert call.run(StopFlag())
    compiled.trim()
    assert len(pool.idle) == 1
    y[:] = 0
    assert call.run(StopFlag())
    assert y.tolist() == [[2, 4, 6, 8]]


def test_an_output_of_open_shape() -> None:
    model = doubler()
    operands = list(model.main.operands)
    (place,) = model.main.output_indexes
    operands[place] = replace(operands[place], dimensions=(0, 0))
    compiled = plan(replace(model, main=replace(model.main, operands=tuple(operands))))
    values = np.arange(4, dtype=np.float32).reshape(1, 4)
    buffer = OutputBuffer(np.zeros(64, np.uint8), np.dtype(np.float32), (0, 0))
    assert compiled.bind([values], [buffer]).run(StopFlag())
    assert buffer.shape == (1, 4)
    assert (buffer.memory[:16].view(np.float32) == 2 * values.reshape(-1)).all()
    small = OutputBuffer(np.zeros(15, np.uint8), np.dtype(np.float32), (0, 0))
    with pytest.raises(OutputInsufficientSize) as error:
        compiled.bind([values], [small])
    assert error.value.output_shapes[0].dimensions == (1, 4)


def tiled() -> tuple[BoundCall, Array, OutputBuffer]:
    """A row repeated as often as a run says, into memory for 12 numbers."""
    builder = nn.ModelBuilder("tiled")
    x, multiples = builder.input("x", (1, 3)), builder.input("n", (2,), type=I32)
    open_shape = Tensor(type=OperandType.TENSOR_FLOAT32)
    y = builder.operation(OperationType.TILE, x, multiples, output=open_shape)
    builder.output("y", y)
    count = np.array([2, 1], np.int32)
    buffer = OutputBuffer(np.zeros(48, np.uint8), np.dtype(np.float32), ())
    return plan(builder.build()).bind([row(1, 2, 3), count], [buffer]), count, buffer


def test_a_shape_that_the_values_of_a_run_decide() -> None:
    call, count, buffer = tiled()
    for counts in ((2, 1), (1, 4), (2, 2)):
        count[:] = counts
        assert call.run(StopFlag())
        assert buffer.shape == (counts[0], 3 * counts[1])
        found = buffer.array(buffer.shape)
        assert found is not None
        assert (found == np.tile(row(1, 2, 3), counts)).all()


@pytest.mark.parametrize("lowering", [XNNPACK, BUILTIN], ids=lambda each: each.name)
def test_tensors_that_move_when_a_result_grows(lowering: Lowering) -> None:
    builder = nn.ModelBuilder("tiled, and more")
    x, multiples = builder.input("x", (1, 3)), builder.input("n", (2,), type=I32)
    z = builder.input("z", (64, 1024))
    open_shape = Tensor(type=OperandType.TENSOR_FLOAT32)
    y = builder.operation(OperationType.TILE, x, multiples, output=open_shape)
    builder.output("y", y)
    largest = builder.operation(OperationType.MAXIMUM, z, z)
    builder.output("w", builder.operation(OperationType.MINIMUM, largest, z))
    inputs = [np.zeros((1, 3), np.float32), np.ones(2, np.int32), np.zeros((64, 1024), np.float32)]
    buffer = OutputBuffer(np.zeros(1 << 16, np.uint8), np.dtype(np.float32), ())
    w = np.zeros_like(inputs[2])
    call = plan(builder.build(), lowering).bind(inputs, [buffer, w])
    for number in (1, 7, 3, 9):
        inputs[0][:], inputs[1][:], inputs[2][:] = number, number, -number
        assert call.run(StopFlag())
        found = buffer.array(buffer.shape)
        assert found is not None
        assert found.shape == (number, 3 * number)
        assert (found == number).all()
        assert (w == -number).all()


def test_what_would_not_fit_or_is_not_legal_never_gets_to_the_engine() -> None:
    call, count, buffer = tiled()
    count[:] = 2**12, 2**12
    with pytest.raises(OutputInsufficientSize):
        call.run(StopFlag())
    count[:] = -1, 1
    with pytest.raises(GeneralFailure, match="multiples"):
        call.run(StopFlag())
    call.rewind()
    count[:] = 2**14, 2**15
    with pytest.raises(GeneralFailure, match=r"shape \(16384, 98304\): too large"):
        call.run(StopFlag())
    count[:] = 1, 1
    assert call.run(StopFlag())
    assert buffer.shape == (1, 3)


def test_an_optional_input_may_be_omitted_or_not() -> None:
    """Its shape is unknown before; each way has a file of its own."""
    builder = nn.ModelBuilder("svdf")
    x, bias = builder.input("x", (1, 3)), builder.input("bias", (0,))
    weights = [np.ones(s, np.float32) for s in ((2, 3), (2, 4))]
    state = np.zeros((1, 8), np.float32)
    _, y = builder.operation_outputs(OperationType.SVDF, x, *weights, bias, state, 1, 0)
    builder.output("y", y)
    compiled, found = plan(builder.build()), np.zeros((1, 2), np.float32)
    assert compiled.bind([row(1, 2, 3), None], [found]).run(StopFlag())
    assert found.tolist() == [[6, 6]]
    given = np.array([10, 20], np.float32)
    assert compiled.bind([row(1, 2, 3), given], [found]).run(StopFlag())
    assert found.tolist() == [[16, 26]]
    assert len(compiled.pools) == 2


def test_arrays_that_do_not_fit_are_refused() -> None:
    compiled = plan(doubler())
    with pytest.raises(InvalidArgument, match="output 0"):
        compiled.bind([row(1, 2, 3, 4)], [row(0, 0, 0)])
    with pytest.raises(InvalidArgument):
        compiled.bind([None], [row(0, 0, 0, 0)])


def test_state_goes_in_and_comes_out() -> None:
    builder = nn.ModelBuilder("rnn")
    random = np.random.default_rng(3)
    x = builder.input("x", (1, 3))
    weights = [random.uniform(-1, 1, s).astype(np.float32) for s in ((5, 3), (5, 5), (5,))]
    state = builder.state("h", (1, 5))
    new, y = builder.operation_outputs(OperationType.RNN, x, *weights, state, 4)
    builder.output("y", y)
    builder.update(state, new)
    agree(builder.build(), [row(1, -2, 3), row(0.1, 0.2, 0.3, 0.4, 0.5)])


def test_the_memory_of_an_svdf_is_kept_as_the_hal_wants_it() -> None:
    builder = nn.ModelBuilder("svdf")
    random = np.random.default_rng(3)
    x = builder.input("x", (2, 3))
    weights = [random.uniform(-1, 1, s).astype(np.float32) for s in ((4, 3), (4, 6), (2,))]
    state = builder.state("s", (2, 24))
    new, y = builder.operation_outputs(OperationType.SVDF, x, *weights, state, 2, 1)
    builder.output("y", y)
    builder.update(state, new)
    values = random.uniform(-1, 1, (2, 3)).astype(np.float32)
    before = random.uniform(-1, 1, (2, 24)).astype(np.float32)
    agree(builder.build(), [values, before])


def test_a_state_that_is_computed_is_refused() -> None:
    builder = nn.ModelBuilder("inside")
    x, h = builder.input("x", (1, 3)), builder.input("h", (1, 5))
    weights = [np.ones(s, np.float32) for s in ((5, 3), (5, 5), (5,))]
    given = builder.relu(h)
    _, y = builder.operation_outputs(OperationType.RNN, x, *weights, given, 4)
    builder.output("y", y)
    model = builder.build()
    assert LiteRTEngine().supported_operations(model) == [True, False]
    with pytest.raises(ModelError, match=r"operation 1 \(RNN\): input 4 is a state"):
        LiteRTEngine().compile(model, FAST)


def test_half_precision_is_converted_where_arrays_are_bound() -> None:
    builder = nn.ModelBuilder("halves")
    x = builder.input("x", (1, 3), type=F16)
    builder.output(
        "y", builder.operation(OperationType.MUL, x, np.array([[2, 3, 4]], np.float16), 0)
    )
    x_values = np.array([[1, 2, 60000]], np.float16)
    y = np.zeros((1, 3), np.float16)
    assert plan(builder.build()).bind([x_values], [y]).run(StopFlag())
    assert y.tolist() == [[2, 6, np.inf]]


def test_what_the_engine_says_of_a_failed_run_comes_through_and_others_go_on() -> None:
    builder = nn.ModelBuilder("gather")
    x, indexes = builder.input("x", (4,)), builder.input("i", (1,), type=I32)
    builder.output("y", builder.operation(OperationType.GATHER, x, 0, indexes))
    index, y = np.array([9], np.int32), np.zeros(1, np.float32)
    call = plan(builder.build()).bind([np.arange(4, dtype=np.float32), index], [y])
    with pytest.raises(GeneralFailure, match="index out of bounds"):
        call.run(StopFlag())
    call.rewind()
    index[0] = 3
    assert call.run(StopFlag())
    assert y[0] == 3


def test_lowerings_by_preference_and_type() -> None:
    engine = LiteRTEngine()
    engine.cores = 2
    assert [each.threads for each in engine.lowerings(doubler(), FAST)] == [2, 1]
    sustained = engine.lowerings(doubler(), ExecutionPreference.SUSTAINED_SPEED)
    assert sustained == [Lowering("xnnpack")]
    builder = nn.ModelBuilder("bytes")
    x = builder.input("x", (1, 4), type=UNSIGNED, scale=0.5, zero_point=3)
    builder.output("y", builder.relu(x))
    found = engine.lowerings(builder.build(), ExecutionPreference.LOW_POWER)
    assert [(each.name, each.is_exact) for each in found] == [("xnnpack", False), ("builtin", True)]


def test_version_is_that_of_the_package() -> None:
    assert LiteRTEngine().version[0].isdigit()


def test_a_run_on_other_arrays_leaves_those_it_is_bound_to_alone() -> None:
    x, y = row(1, 2, 3, 4), row(0, 0, 0, 0)
    call = plan(doubler()).bind([x], [y])
    assert call.reads_given
    wide = np.arange(8, dtype=np.float32).reshape(1, 8)
    assert call.run(StopFlag(), [wide[:, ::2]])
    assert y.tolist() == [[0, 4, 8, 12]]
    assert x.tolist() == [[1, 2, 3, 4]]
    assert call.run(StopFlag())
    assert y.tolist() == [[2, 4, 6, 8]]
    stop = StopFlag()
    stop.raised = 1
    assert not call.run(stop, [wide[:, 1::2]])
    assert y.tolist() == [[2, 4, 6, 8]]


def test_runs_on_other_arrays_outlive_an_interpreter() -> None:
    compiled, y = plan(doubler()), row(0, 0, 0, 0)
    call = compiled.bind([row(0, 0, 0, 0)], [y])
    assert call.reads_given
    for number in range(3):
        assert call.run(StopFlag(), [row(number, 0, 0, 1)])
        assert y.tolist() == [[2 * number, 0, 0, 2]]
        del compiled.pools[0].idle[:]
        compiled.trim()


def test_half_precision_is_not_read_as_it_is() -> None:
    builder = nn.ModelBuilder("half")
    x = builder.input("x", (1, 4), type=F16)
    builder.output("y", builder.add(x, x))
    arrays = [np.zeros((1, 4), np.float16) for _ in range(2)]
    assert not plan(builder.build()).bind(arrays[:1], arrays[1:]).reads_given


def two_states() -> Model:
    builder = nn.ModelBuilder("two states")
    x = builder.input("x", (1, 3))
    random = np.random.default_rng(3)
    for name in "hg":
        weights = [random.uniform(-1, 1, s).astype(np.float32) for s in ((16, 3), (16, 16), (16,))]
        state = builder.state(name, (1, 16))
        new, y = builder.operation_outputs(OperationType.RNN, x, *weights, state, 4)
        builder.output(f"y{name}", y)
        builder.update(state, new)
    return builder.build()


@pytest.mark.parametrize("gap", [0, 4], ids=["close together", "apart"])
def test_values_that_follow_each_other_are_copied_as_one(gap: int) -> None:
    """Three inputs, x and two states; four outputs. The engine has states next to each other."""
    model = two_states()
    random = np.random.default_rng(5)
    compiled = plan(model)

    def arrays(indexes: tuple[int, ...]) -> list[Array]:
        shapes = [model.main.operands[index].dimensions for index in indexes]
        sizes = [int(np.prod(shape)) for shape in shapes]
        memory = random.uniform(-1, 1, sum(sizes) + gap * len(sizes)).astype(np.float32)
        starts = np.cumsum([0, *(size + gap for size in sizes)])
        return [
            memory[start : start + size].reshape(shape)
            for start, size, shape in zip(starts[:-1], sizes, shapes, strict=True)
        ]

    inputs, outputs = arrays(model.main.input_indexes), arrays(model.main.output_indexes)
    apart_inputs = [array.copy() for array in inputs]
    apart_outputs = [np.zeros_like(array) for array in outputs]
    together = compiled.bind(inputs, outputs)
    alone = compiled.bind(apart_inputs, apart_outputs)
    session = compiled.pools[0].idle[0]
    _, before, after, _, _ = session.moves(inputs, outputs)
    assert sum(target.nbytes for target, _ in before) == sum(array.nbytes for array in inputs)
    assert sum(target.nbytes for target, _ in after) == sum(array.nbytes for array in outputs)
    states_are_close = len(before) < len(inputs)
    assert states_are_close == (gap == 0)
    for _ in range(3):
        for array, other in zip(inputs, apart_inputs, strict=True):
            array[...] = other[...] = random.uniform(-1, 1, array.shape)
        assert together.run(StopFlag())
        assert alone.run(StopFlag())
        for array, other in zip(outputs, apart_outputs, strict=True):
            assert array.tolist() == other.tolist()
