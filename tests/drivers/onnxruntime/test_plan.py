"""Plans of ONNX Runtime: bound in place, several at once, open shapes, faults, interruption."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from nnasync._core.drivers.onnxruntime.bound_call import SHORT_NS, OnnxCall
from nnasync._core.drivers.onnxruntime.plan import OnnxPlan
from nnasync._core.drivers.onnxruntime.providers import package
from nnasync._core.formats.whole import WholePort, whole
from nnasync._core.importers.onnx import wrap
from nnasync.engine import Lowering, OutputBuffer, StopFlag
from nnasync.errors import GeneralFailure, InvalidArgument, ModelError, OutputInsufficientSize
from nnasync.extensions import ONNX, GraphOperation
from nnasync.hal import Array, ExecutionPreference, Model, OperandType, Shape, number_dtype
from nnasync.kernels.tensor import Tensor
from tests.importers.onnx.files import (
    BOOL,
    DOUBLE,
    FLOAT,
    INT64,
    Port,
    message,
    node,
    run,
    written,
)

SUSTAINED = ExecutionPreference.SUSTAINED_SPEED
ROW = np.array([[1, -2, 3]], np.float32)


def identity(folder: Path, port: Port, type: str = "Neg") -> Model:
    """A file with one operator of one input."""
    return wrap(written(folder, negation(port, type)))


def negation(port: Port, type: str = "Neg") -> Any:
    """The same as a message of ONNX."""
    name, element, shape = port
    return message([node(type, [name], ["y"])], [port], [("y", element, shape)])


def narrow(folder: Path, graph: Any, type: OperandType, shape: Shape) -> Model:
    """A file from x to y that stands in a model with narrower types than its own."""
    x, y = (WholePort(name, Tensor(type, shape)) for name in "xy")
    content = written(folder, graph).read_bytes()
    return whole(ONNX.name, content, "net.onnx", name="net", inputs=[x], outputs=[y])


def plan(model: Model) -> Any:
    return OnnxRuntimeEngine().compile(model, SUSTAINED)


def test_a_call_keeps_the_constants_that_its_plan_brought(tmp_path: Path) -> None:
    """A plan that is closed while a call of it runs leaves nothing but the call behind."""
    session = plan(identity(tmp_path, ("x", FLOAT, (1, 3))))._session
    constant, y = ROW.copy(), np.zeros((1, 3), np.float32)
    known = weakref.ref(constant)
    call = OnnxPlan(session, [constant], [0]).bind([], [y])
    del constant
    gc.collect()
    assert known() is not None
    assert call.run(StopFlag())
    assert (y == -ROW).all()


def test_inputs_are_read_and_outputs_written_in_place(tmp_path: Path) -> None:
    x, y = ROW.copy(), np.zeros((1, 3), np.float32)
    call = plan(identity(tmp_path, ("x", FLOAT, (1, 3)))).bind([x], [y])
    for factor in (1, 2):
        x[:] = ROW * factor
        assert call.run(StopFlag())
        assert (y == -ROW * factor).all()


def test_memory_that_is_not_aligned(tmp_path: Path) -> None:
    memory = np.zeros(32, np.uint8)
    x, y = memory[1:13].view(np.float32), memory[17:29].view(np.float32)
    x[:] = ROW[0]
    call = plan(identity(tmp_path, ("x", FLOAT, (1, 3)))).bind([x.reshape(1, 3)], [y.reshape(1, 3)])
    assert call.run(StopFlag())
    assert y.tolist() == [-1, 2, -3]


def test_two_calls_run_at_once(tmp_path: Path) -> None:
    shared = plan(identity(tmp_path, ("x", FLOAT, (64, 64))))
    xs = [np.full((64, 64), n, np.float32) for n in (1, 2)]
    ys = [np.zeros((64, 64), np.float32) for _ in xs]
    wrong: list[int] = []

    def work(number: int) -> None:
        call = shared.bind([xs[number]], [ys[number]])
        for _ in range(50):
            ys[number][:] = 0
            if not call.run(StopFlag()) or (ys[number] != -xs[number]).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("element", "values"),
    [
        (DOUBLE, np.array([1 / 3, 1e300], np.float64)),
        (INT64, np.array([2**40, -6], np.int64)),
    ],
)
def test_types_that_the_hal_has_not_are_the_extension_s(
    tmp_path: Path, element: int, values: Array
) -> None:
    (found,) = run(OnnxRuntimeEngine(), identity(tmp_path, ("x", element, (2,))), [values])
    assert found.dtype == values.dtype
    assert found.tolist() == (-values).tolist()


@pytest.mark.parametrize(
    ("element", "values"),
    [
        (12, np.array([2**32 - 1, 0], np.uint32)),
        (13, np.array([2**64 - 1, 0], np.uint64)),
        *(
            (number, np.array([0.5, -2], number_dtype(name)))
            for number, name in (
                (16, "bfloat16"),
                (17, "float8_e4m3fn"),
                (18, "float8_e4m3fnuz"),
                (19, "float8_e5m2"),
                (20, "float8_e5m2fnuz"),
            )
        ),
    ],
)
@pytest.mark.parametrize("size", [2, "n"])
def test_numbers_of_any_type_come_back_as_they_were(
    tmp_path: Path, element: int, values: Array, size: int | str
) -> None:
    graph = message(
        [node("Identity", ["x"], ["y"])],
        [("x", element, (size,))],
        [("y", element, (size,))],
        opset=19,
    )
    graph.ir_version = 9
    (found,) = run(OnnxRuntimeEngine(), wrap(written(tmp_path, graph)), [values])
    assert found.dtype == values.dtype
    assert found.tobytes() == values.tobytes()


def test_beside_narrow_operands_they_are_converted(
    tmp_path: Path,
) -> None:
    (integers,) = run(
        OnnxRuntimeEngine(),
        narrow(tmp_path, negation(("x", INT64, (2,))), OperandType.TENSOR_INT32, (2,)),
        [np.array([5, -6], np.int32)],
    )
    assert integers.dtype == np.int32
    assert integers.tolist() == [-5, 6]
    (reals,) = run(
        OnnxRuntimeEngine(),
        narrow(tmp_path, negation(("x", DOUBLE, (2,))), OperandType.TENSOR_FLOAT32, (2,)),
        [np.array([0.5, -6], np.float32)],
    )
    assert reals.dtype == np.float32
    assert reals.tolist() == [-0.5, 6]


def test_an_integer_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    graph = message(
        [node("Mul", ["x", "c"], ["y"])],
        [("x", INT64, (1,))],
        [("y", INT64, (1,))],
        {"c": np.array([2**31], np.int64)},
    )
    model = narrow(tmp_path, graph, OperandType.TENSOR_INT32, (1,))
    with pytest.raises(GeneralFailure, match="no int32"):
        run(OnnxRuntimeEngine(), model, [np.array([2], np.int32)])


def test_a_scalar_is_one_number(tmp_path: Path) -> None:
    graph = message(
        [node("ReduceSum", ["x"], ["y"], keepdims=0)], [("x", FLOAT, (1, 3))], [("y", FLOAT, ())]
    )
    (total,) = run(OnnxRuntimeEngine(), wrap(written(tmp_path, graph)), [ROW])
    assert (total.shape, total.tolist()) == ((1,), [2])


def open_shapes(folder: Path) -> Model:
    """Where x is not 0: neither input nor output has a known shape."""
    graph = message(
        [node("NonZero", ["x"], ["y"])], [("x", FLOAT, ("n",))], [("y", INT64, (1, "k"))]
    )
    return wrap(written(folder, graph))


def test_outputs_of_open_shape_tell_theirs(tmp_path: Path) -> None:
    model = open_shapes(tmp_path)
    x = np.array([0, 1, 2, 0], np.float32)
    output = OutputBuffer(np.zeros(64, np.uint8), np.dtype(np.int32), (1, 0))
    call = plan(model).bind([x], [output])
    for numbers, places in (([0, 1, 2, 0], [1, 2]), ([3, 1, 2, 0], [0, 1, 2])):
        x[:] = numbers
        assert call.run(StopFlag())
        array = output.array(output.shape)
        assert array is not None
        assert array.tolist() == [places]


def test_a_small_buffer_is_told_what_it_needs(tmp_path: Path) -> None:
    output = OutputBuffer(np.zeros(4, np.uint8), np.dtype(np.int32), (1, 0))
    call = plan(open_shapes(tmp_path)).bind([np.ones(4, np.float32)], [output])
    with pytest.raises(OutputInsufficientSize) as caught:
        call.run(StopFlag())
    assert caught.value.output_shapes[0].dimensions == (1, 4)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([None], "omitted"),
        ([np.ones((2, 3), np.float32)], "shape"),
        ([np.ones((1, 3), np.int32)], "int32"),
    ],
)
def test_what_does_not_fit_is_refused(
    inputs: list[Array | None], message: str, tmp_path: Path
) -> None:
    target = np.zeros((1, 3), np.float32)
    with pytest.raises(InvalidArgument, match=message):
        plan(identity(tmp_path, ("x", FLOAT, (1, 3)))).bind(inputs, [target])


def test_faults_have_the_words_of_the_engine(tmp_path: Path) -> None:
    graph = message(
        [node("Gather", ["c", "x"], ["y"])],
        [("x", 6, (1,))],
        [("y", FLOAT, (1,))],
        {"c": np.ones(2, np.float32)},
    )
    model = wrap(written(tmp_path, graph))
    with pytest.raises(GeneralFailure, match="ONNX Runtime failed.*indices"):
        run(OnnxRuntimeEngine(), model, [np.array([7], np.int32)])


class Endless:
    """A session whose run ends only when its options say so."""

    def __init__(self) -> None:
        self.began = threading.Event()

    def run_with_iobinding(self, binding: Any, options: Options) -> None:
        self.began.set()
        options.ended.wait()
        raise RuntimeError("terminated")


class Options:
    def __init__(self) -> None:
        self.ended = threading.Event()

    @property
    def terminate(self) -> bool:
        return self.ended.is_set()

    @terminate.setter
    def terminate(self, value: bool) -> None:
        if value:
            self.ended.set()


def test_an_abort_terminates_a_run() -> None:
    session, stop = Endless(), StopFlag()
    call = OnnxCall(session, None, Options())
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(call.run(stop)))
    thread.start()
    session.began.wait()
    stop.abort()
    thread.join()
    assert results == [False]
    assert not call.run(stop)


def test_a_long_loop_of_the_real_engine_is_terminated(tmp_path: Path) -> None:
    graph = message(
        [node("MatMul", ["x", "x"], ["v0"])]
        + [node("MatMul", [f"v{n}", "x"], [f"v{n + 1}"]) for n in range(60)]
        + [node("Identity", ["v60"], ["y"])],
        [("x", FLOAT, ("n", "n"))],
        [("y", FLOAT, ("n", "n"))],
    )
    model = wrap(written(tmp_path, graph))
    x = np.zeros((768, 768), np.float32)
    call = plan(model).bind([x], [np.zeros_like(x)])
    stop = StopFlag()
    armed = threading.Event()
    arm = stop.arm

    class Watched(StopFlag):
        def arm(self, interrupt: Any) -> bool:
            result = arm(interrupt)
            armed.set()
            return result

        def disarm(self) -> None:
            stop.disarm()

        @property
        def raised(self) -> int:
            return stop.raised

        @raised.setter
        def raised(self, value: int) -> None: ...

    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(call.run(Watched())))
    thread.start()
    armed.wait()
    stop.abort()
    thread.join()
    assert results == [False]
    assert call.run(StopFlag())


def test_a_loop_that_zeros_never_end_can_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnasync._core.drivers.onnxruntime.plan._MOST_WARM_S", 0.05)
    body = message(
        [node("Mul", ["s", "two"], ["s2"]), node("Less", ["s2", "limit"], ["c2"])],
        [("i", INT64, ()), ("c", BOOL, ()), ("s", FLOAT, (1,))],
        [("c2", BOOL, (1,)), ("s2", FLOAT, (1,))],
        {"two": np.float32(2), "limit": np.float32(40)},
    ).graph
    graph = message(
        [node("Loop", ["", "go", "x"], ["y"], body=body)],
        [("x", FLOAT, (1,))],
        [("y", FLOAT, (1,))],
        {"go": np.array(True)},
    )
    (result,) = run(OnnxRuntimeEngine(), wrap(written(tmp_path, graph)), [np.ones(1, np.float32)])
    assert result == [64]


def test_short_runs_are_not_armed(tmp_path: Path) -> None:
    x, y = ROW.copy(), np.zeros((1, 3), np.float32)
    call = plan(identity(tmp_path, ("x", FLOAT, (1, 3)))).bind([x], [y])
    armed: list[int] = []

    class Counting(StopFlag):
        def arm(self, interrupt: Any) -> bool:
            armed.append(1)
            return super().arm(interrupt)

    for _ in range(1000):
        before = len(armed)
        assert call.run(Counting())
        if len(armed) == before:
            break
    assert len(armed) < 1000
    assert SHORT_NS > 0


def test_a_file_that_onnx_runtime_refuses() -> None:
    builder = nn.ModelBuilder("broken")
    x = builder.input("x", (1, 3))
    file = builder.constant(
        np.frombuffer(b"\x08\x09\x12garbage", np.uint8), type=nn.OperandType.TENSOR_OEM_BYTE
    )
    type = builder.extension_type(ONNX.name, GraphOperation.GRAPH)
    builder.output("y", builder.operation(type, x, file, output=x))
    with pytest.raises(GeneralFailure, match="ONNX Runtime refuses"):
        plan(builder.build())


def test_a_refusal_is_an_error_and_nothing_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(package().InferenceSession, "_create_inference_session", refuse)
    with pytest.raises(GeneralFailure, match="ONNX Runtime refuses the model: no such kernel"):
        plan(identity(tmp_path, ("x", FLOAT, (1, 3))))
    assert capfd.readouterr().out == ""


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    graph = message(
        [node("Neg", ["x"], ["result"])], [("x", FLOAT, (3,))], [("result", FLOAT, (3,))]
    )
    path = written(tmp_path, graph)
    path.write_bytes(path.read_bytes().replace(b"result", b"res\xbblt"))
    with pytest.raises((GeneralFailure, ModelError), match="UTF-8|utf-8"):
        plan(wrap(path))


def test_a_file_cannot_read_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one beside it: what a model needs is in the model."""
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    monkeypatch.chdir(tmp_path)
    graph = message(
        [node("Add", ["x", "w"], ["y"])],
        [("x", FLOAT, (1, 3))],
        [("y", FLOAT, (1, 3))],
        {"w": np.ones((1, 3), np.float32)},
    )
    (tensor,) = graph.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    tensor.external_data.add(key="location", value="secret.bin")
    builder = nn.ModelBuilder("curious")
    x = builder.input("x", (1, 3))
    data = np.frombuffer(graph.SerializeToString(), np.uint8)
    file = builder.constant(data, type=nn.OperandType.TENSOR_OEM_BYTE)
    type = builder.extension_type(ONNX.name, GraphOperation.GRAPH)
    builder.output("y", builder.operation(type, x, file, output=x))
    with pytest.raises(GeneralFailure, match="ONNX Runtime refuses"):
        plan(builder.build())


@pytest.mark.parametrize(("threads", "spins"), [(1, "0"), (2, "1")])
def test_threads_spin_within_a_run_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, spins: str
) -> None:
    opened: list[Any] = []
    session = package().InferenceSession

    def recorded(*arguments: Any, **options: Any) -> Any:
        opened.append(session(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(package(), "InferenceSession", recorded)
    model = identity(tmp_path, ("x", FLOAT, (1, 3)))
    OnnxRuntimeEngine().compile(model, SUSTAINED, Lowering("onnx", threads))
    options = opened[0].get_session_options()
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == spins
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
