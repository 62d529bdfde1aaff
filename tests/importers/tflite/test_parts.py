"""What is more than one operator: branches, loops, detectors, arithmetic of shapes."""

from __future__ import annotations

import importlib
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.importers.tflite import load, translate, wrap, wrapping
from nnasync._core.importers.tflite.tflite_file import OperatorInfo, read_file
from nnasync.engine import StopFlag
from nnasync.errors import ModelError
from nnasync.hal import ExecutionPreference, OperationType, dtype_of
from tests.importers.tflite.judge import Network, compare, litert, reference
from tests.importers.tflite_files import G, Op, T, floats, graphs_file, tflite_file, weights

CONDITION = T("BOOL", (1,))


def saved(folder: Path, content: bytes) -> Path:
    path = folder / "network.tflite"
    path.write_bytes(content)
    return path


def branch() -> bytes:
    one = G([floats(2, 3)] * 2, [Op("TANH", (0,), (1,))], [0], [1])
    other = G(
        [floats(2, 3), weights(3), floats(2, 3)], [Op("MUL", (0, 1), (2,), "MulOptions")], [0], [2]
    )
    options = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}
    main = G(
        [CONDITION, floats(2, 3), floats(2, 3)],
        [Op("IF", (0, 1), (2,), "IfOptions", options)],
        [0, 1],
        [2],
    )
    return graphs_file([main, one, other])


@pytest.mark.parametrize("condition", [True, False])
def test_branches(tmp_path: Path, condition: bool) -> None:
    content = branch()
    model = translate(saved(tmp_path, content))
    assert [operation.type for operation in model.main.operations] == [OperationType.IF]
    inputs = [np.array([condition]), np.arange(6, dtype=np.float32).reshape(2, 3)]
    compare(Network([], []), reference(model, inputs), litert(content, inputs))


def test_loops(tmp_path: Path) -> None:
    count, one = T("INT32", (1,)), T("INT32", (1,), np.array([1], np.int32))
    limit, flag = T("INT32", (1,), np.array([5], np.int32)), T("BOOL", (1,))
    condition = G([count, floats(2), limit, flag], [Op("LESS", (0, 2), (3,))], [0, 1], [3])
    steps = [Op("ADD", (0, 2), (3,), "AddOptions"), Op("ADD", (1, 1), (4,), "AddOptions")]
    body = G([count, floats(2), one, count, floats(2)], steps, [0, 1], [3, 4])
    options = {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2}
    loop = Op("WHILE", (0, 1), (2, 3), "WhileOptions", options)
    main = G([count, floats(2), count, floats(2)], [loop], [0, 1], [2, 3])
    content = graphs_file([main, condition, body])
    inputs = [np.array([2], np.int32), np.array([1, -3], np.float32)]
    got = reference(translate(saved(tmp_path, content)), inputs)
    compare(Network([], []), got, litert(content, inputs))


def test_parts_that_refer_to_each_other_are_refused(tmp_path: Path) -> None:
    options = {"ThenSubgraphIndex": 0, "ElseSubgraphIndex": 0}
    tensors = [CONDITION, floats(2), floats(2)]
    loop = G(tensors, [Op("IF", (0, 1), (2,), "IfOptions", options)], [0, 1], [2])
    with pytest.raises(ModelError):
        translate(saved(tmp_path, graphs_file([loop])))


def detector(random: np.random.Generator, regular: bool, background: int) -> tuple[bytes, Any]:
    flexbuffers: Any = importlib.import_module("flatbuffers.flexbuffers")
    number, classes, most = 12, 3, 4
    options = flexbuffers.Dumps(
        {
            "max_detections": most,
            "max_classes_per_detection": 1,
            "detections_per_class": 5,
            "use_regular_nms": regular,
            "nms_score_threshold": 0.2,
            "nms_iou_threshold": 0.5,
            "num_classes": classes,
            "y_scale": 10.0,
            "x_scale": 10.0,
            "h_scale": 5.0,
            "w_scale": 5.0,
        }
    )
    anchors = random.uniform(0.1, 0.9, (number, 4)).astype(np.float32)
    tensors = [
        floats(1, number, 4),
        floats(1, number, classes + background),
        T("FLOAT32", anchors.shape, anchors),
        floats(1, most, 4),
        floats(1, most),
        floats(1, most),
        floats(1),
    ]
    op = Op(
        "CUSTOM",
        (0, 1, 2),
        (3, 4, 5, 6),
        custom="TFLite_Detection_PostProcess",
        custom_options=bytes(options),
    )
    inputs = [
        random.uniform(-1, 1, (1, number, 4)).astype(np.float32),
        random.uniform(0, 1, (1, number, classes + background)).astype(np.float32),
    ]
    return tflite_file(tensors, [op], [0, 1], [3, 4, 5, 6]), inputs


@pytest.mark.parametrize("regular", [True, False])
def test_detectors(tmp_path: Path, regular: bool) -> None:
    for seed in range(4):
        content, inputs = detector(np.random.default_rng(seed), regular, 1)
        got = reference(translate(saved(tmp_path, content)), inputs)
        wanted = litert(content, inputs)
        count = int(wanted[3][0])
        assert got[3].tolist() == wanted[3].tolist()
        for ours, theirs in zip(got[:3], wanted[:3], strict=True):
            np.testing.assert_allclose(ours[:, :count], theirs[:, :count], rtol=1e-5, atol=1e-5)


def test_a_detector_without_a_background_is_left_to_litert(tmp_path: Path) -> None:
    path = saved(tmp_path, detector(np.random.default_rng(0), True, 0)[0])
    with pytest.raises(ModelError, match="no scores for the background"):
        translate(path)
    assert [len(model.main.operations) for model in (load(path), wrap(path))] == [1, 1]


@pytest.mark.parametrize("batch", [None, 2])
def test_arithmetic_of_shapes_is_done_while_a_file_is_read(
    tmp_path: Path, batch: int | None
) -> None:
    """What Keras writes for `Flatten`: SHAPE, STRIDED_SLICE, PACK, RESHAPE."""
    x = T("FLOAT32", (1, 2, 3), open=(-1, 2, 3))
    numbers = [T("INT32", (1,), np.array([n], np.int32)) for n in (0, 1, 1)]
    six = T("INT32", (), np.int32(6))
    tensors = [x, T("INT32", (3,)), *numbers, T("INT32", ()), six, T("INT32", (2,))]
    tensors += [T("FLOAT32", (1, 6), open=(-1, 6))]
    ops = [
        Op("SHAPE", (0,), (1,)),
        Op("STRIDED_SLICE", (1, 2, 3, 4), (5,), "StridedSliceOptions", {"ShrinkAxisMask": 1}),
        Op("PACK", (5, 6), (7,), "PackOptions", {"ValuesCount": 2}),
        Op("RESHAPE", (0, 7), (8,), "ReshapeOptions"),
    ]
    path = saved(tmp_path, tflite_file(tensors, ops, [0], [8]))
    model = translate(path, shapes={"t0": (batch, 2, 3)})
    assert [operation.type for operation in model.main.operations] == [OperationType.RESHAPE]
    values = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    assert reference(model, [values])[0].tolist() == values.reshape(2, 6).tolist()


def test_a_convolution_in_groups_over_an_open_number_of_channels(tmp_path: Path) -> None:
    x, filters = T("FLOAT32", (1, 2, 2, 4), open=(1, 2, 2, -1)), weights(6, 1, 1, 2)
    strides = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
    ops = [Op("CONV_2D", (0, 1, 2), (3,), "Conv2DOptions", strides)]
    content = tflite_file([x, filters, weights(6), floats(1, 2, 2, 6)], ops, [0], [3])
    model = translate(saved(tmp_path, content), shapes={"t0": (1, 2, 2, None)})
    assert model.main.operations[0].type == OperationType.GROUPED_CONV_2D
    values = np.arange(16, dtype=np.float32).reshape(1, 2, 2, 4)
    assert reference(model, [values])[0].tolist() == litert(content, [values])[0].tolist()


def accumulator(*, first: float, constant: T | None = None) -> bytes:
    """A network that adds its input to a variable, which CALL_ONCE sets first."""
    handle, value = T("RESOURCE", ()), floats(1, 2)
    if constant is None:
        constant = T("FLOAT32", (1, 2), np.full((1, 2), first, np.float32))
    name = ("VarHandleOptions", {"SharedName": "total"})
    init = G(
        [handle, constant],
        [Op("VAR_HANDLE", (), (0,), *name), Op("ASSIGN_VARIABLE", (0, 1), ())],
        [],
        [],
    )
    ops = [
        Op("CALL_ONCE", (), (), "CallOnceOptions", {"InitSubgraphIndex": 1}),
        Op("VAR_HANDLE", (), (1,), *name),
        Op("READ_VARIABLE", (1,), (2,)),
        Op("ADD", (0, 2), (3,), "AddOptions"),
        Op("ASSIGN_VARIABLE", (1, 3), ()),
    ]
    return graphs_file([G([value, handle, value, value], ops, [0], [3]), init])


@pytest.mark.parametrize("first", [0.0, 2.5])
def test_resource_variables_are_states(tmp_path: Path, first: float) -> None:
    path = saved(tmp_path, accumulator(first=first))
    model = translate(path)
    assert len(model.state) == (2 if first else 1)
    plan = ReferenceEngine().compile(model, ExecutionPreference.SUSTAINED_SPEED)
    operands = [model.main.operands[index] for index in model.main.input_indexes]
    given = [np.zeros(each.dimensions, dtype_of(each.type)) for each in operands]
    results = [np.zeros_like(each) for each in given]
    call, expected = plan.bind(given, results), np.full((1, 2), first, np.float32)
    for step in range(3):
        given[0][...] = step + 1
        expected += step + 1
        assert call.run(StopFlag())
        np.testing.assert_array_equal(results[0], expected)
        for pair in model.state:
            given[pair.input][...] = results[pair.output]


def test_a_first_value_of_another_shape_is_a_model_error(tmp_path: Path) -> None:
    graph = G(
        [T("RESOURCE", ()), T("FLOAT32", (3,), np.ones(3, np.float32))],
        [
            Op("VAR_HANDLE", (), (0,), "VarHandleOptions", {"SharedName": "total"}),
            Op("ASSIGN_VARIABLE", (0, 1), ()),
        ],
        [],
        [],
    )
    main = G(
        [floats(1, 2), T("RESOURCE", ()), floats(1, 2), floats(1, 2)],
        [
            Op("CALL_ONCE", (), (), "CallOnceOptions", {"InitSubgraphIndex": 1}),
            Op("VAR_HANDLE", (), (1,), "VarHandleOptions", {"SharedName": "total"}),
            Op("READ_VARIABLE", (1,), (2,)),
            Op("ADD", (0, 2), (3,), "AddOptions"),
        ],
        [0],
        [3],
    )
    with pytest.raises(ModelError, match=r"operator 2 \(READ_VARIABLE\)"):
        translate(saved(tmp_path, graphs_file([main, graph])))


def words_with_variables(first: int = 0) -> bytes:
    """A stream of int16: a delay line, read twice, and a sum; one that is not translated."""
    row, line, longer = (T("INT16", (size, 2), None, (0.5,), (0,)) for size in (1, 2, 3))
    handle, axis = T("RESOURCE", ()), T("INT32", (1,), np.array([0], np.int32))
    begin, sizes = (T("INT32", (2,), np.array(n, np.int32)) for n in ([1, 0], [2, 2]))
    start, zeros = (
        T("INT16", (size, 2), np.full((size, 2), value, np.int16), (0.5,), (0,))
        for size, value in ((2, first), (1, 0))
    )
    names = [("VarHandleOptions", {"SharedName": name}) for name in ("line", "sum")]
    add = ("AddOptions", {"PotScaleInt16": False})
    tensors = [row, handle, line, longer, begin, sizes, line]
    tensors += [handle, row, row, line, axis, row]
    ops = [
        Op("CALL_ONCE", (), (), "CallOnceOptions", {"InitSubgraphIndex": 1}),
        Op("VAR_HANDLE", (), (1,), *names[0]),
        Op("READ_VARIABLE", (1,), (2,)),
        Op("CONCATENATION", (2, 0), (3,), "ConcatenationOptions", {"Axis": 0}),
        Op("SLICE", (3, 4, 5), (6,)),
        Op("ASSIGN_VARIABLE", (1, 6), ()),
        Op("VAR_HANDLE", (), (7,), *names[1]),
        Op("READ_VARIABLE", (7,), (8,)),
        Op("ADD", (0, 8), (9,), *add),
        Op("ASSIGN_VARIABLE", (7, 9), ()),
        Op("READ_VARIABLE", (1,), (10,)),
        Op("SUM", (10, 11), (12,), "ReducerOptions", {"KeepDims": True}),
    ]
    init = G(
        [handle, start, handle, zeros],
        [
            Op("VAR_HANDLE", (), (0,), *names[0]),
            Op("ASSIGN_VARIABLE", (0, 1), ()),
            Op("VAR_HANDLE", (), (2,), *names[1]),
            Op("ASSIGN_VARIABLE", (2, 3), ()),
        ],
        [],
        [],
    )
    return graphs_file([G(tensors, ops, [0], [9, 12]), init])


@pytest.mark.anyio
@pytest.mark.one_loop("States are the same on every loop.")
async def test_variables_of_whole_files_are_states(tmp_path: Path) -> None:
    """Streams have their own, and every stream begins anew, as an interpreter of LiteRT does."""
    content = words_with_variables()
    path = saved(tmp_path, content)
    assert "ADD of INT16" in nn.describe(path).kept_whole
    engine = importlib.import_module("ai_edge_litert.interpreter")
    rows = np.random.default_rng(0).integers(-99, 99, (5, 1, 2)).astype(np.int16)
    runtime = nn.open_runtime(devices=["litert-cpu"])
    async with runtime, runtime.compile(path) as net, net.burst() as one, net.burst() as other:
        assert len(net.inputs) == 1
        for burst, sign in ((one, 1), (other, -1)):
            runner = engine.Interpreter(model_content=content)
            runner.allocate_tensors()
            for row in rows:
                runner.set_tensor(0, row * sign)
                runner.invoke()
                total, recent = await burst(row * sign)
                assert total.tolist() == runner.get_tensor(9).tolist()
                assert recent.tolist() == runner.get_tensor(12).tolist()
        state = await one.state()
    assert {name: value.shape for name, value in state.items()} == {"line": (2, 2), "sum": (1, 2)}


def test_floats_are_states_of_whole_files_too(tmp_path: Path) -> None:
    model = wrap(saved(tmp_path, accumulator(first=0)))
    assert len(model.state) == 1
    assert [model.main.operands[n].name for n in model.main.input_indexes] == ["t0", "total"]


def test_variables_are_not_left_in_litert(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"VAR_HANDLE.*would stay .* begins with other numbers"):
        wrap(saved(tmp_path, accumulator(first=2.5)))
    with pytest.raises(ModelError, match=r"begins with what is no constant of its type"):
        wrap(saved(tmp_path, accumulator(first=0, constant=T("INT8", (3,), np.zeros(3, np.int8)))))
    with pytest.raises(ModelError, match=r"VAR_HANDLE.*'line' begins with other numbers"):
        load(saved(tmp_path, words_with_variables(first=1)))


def test_an_operator_without_an_input_that_litert_reads_is_refused(tmp_path: Path) -> None:
    tensors = [T("INT16", (3,)), T("INT32", (1,), np.array([1], np.int32)), T("INT16", (2,))]
    path = saved(tmp_path, tflite_file(tensors, [Op("SLICE", (0, 1), (2,))], [0], [2]))
    with pytest.raises(ModelError, match=r"operator 0 \(SLICE\): has 2 inputs"):
        load(path)


def test_flipped_bytes_of_variables_give_a_model_or_a_model_error(tmp_path: Path) -> None:
    data, choose = words_with_variables(), random.Random(7)
    for _ in range(200):
        broken = bytearray(data)
        for _ in range(choose.choice((1, 2, 6))):
            broken[choose.randrange(len(broken))] = choose.choice((0, 1, 2, 127, 255))
        try:
            load(saved(tmp_path, bytes(broken)))
        except ModelError as error:
            assert "network.tflite" in str(error)


def biased(padding: int, stride: tuple[int, int], shape: tuple[int, ...]) -> bytes:
    """MediaPipe's transposed convolution, whose parameters are a struct of C."""
    source = np.random.default_rng(3)
    kernel, bias = source.standard_normal((2, 3, 2, 4)), source.standard_normal(2)
    tensors = [
        floats(*shape),
        T("FLOAT32", kernel.shape, kernel.astype(np.float32)),
        T("FLOAT32", bias.shape, bias.astype(np.float32)),
        floats(1, 1, 1, 2),
    ]
    op = Op(
        "CUSTOM",
        (0, 1, 2),
        (3,),
        custom="Convolution2DTransposeBias",
        custom_options=struct.pack("<3i", padding, *stride),
    )
    sizes = zip(shape[1:3], kernel.shape[1:3], reversed(stride), strict=True)
    result = [
        step * (n - 1) + window - (max(0, window - (n - 1) % step - 1) if padding == 1 else 0)
        for n, window, step in sizes
    ]
    tensors[3] = floats(shape[0], *result, 2)
    return tflite_file(tensors, [op], [0], [3])


@pytest.mark.parametrize("padding", [1, 2], ids=["SAME", "VALID"])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (2, 3)], ids=str)
def test_transposed_convolutions_of_mediapipe(
    tmp_path: Path, padding: int, stride: tuple[int, int]
) -> None:
    """XNNPACK, which is a part of LiteRT, has them, too."""
    content = biased(padding, stride, (1, 4, 5, 4))
    x = np.random.default_rng(4).standard_normal((1, 4, 5, 4)).astype(np.float32)
    engine = importlib.import_module("ai_edge_litert.interpreter")
    runner = engine.Interpreter(model_content=content)
    runner.allocate_tensors()
    runner.set_tensor(0, x)
    runner.invoke()
    (got,) = reference(translate(saved(tmp_path, content)), [x])
    np.testing.assert_allclose(got, runner.get_tensor(3), rtol=1e-5, atol=1e-5)


def unpooled(options: bytes = struct.pack("<10i", 2, 2, 2, 2, 2, *[0] * 5)) -> bytes:
    """What MediaPipe's networks for hair do: pool, remember the places, and put numbers there."""
    half = floats(1, 2, 2, 3)
    ops = [
        Op("CUSTOM", (0,), (1, 2), custom="MaxPoolingWithArgmax2D", custom_options=options),
        Op("CUSTOM", (1, 2), (3,), custom="MaxUnpooling2D", custom_options=options),
    ]
    return tflite_file([floats(1, 4, 4, 3), half, half, floats(1, 4, 4, 3)], ops, [0], [3])


@pytest.mark.anyio
@pytest.mark.one_loop("Operators are the same on every loop.")
async def test_pools_of_mediapipe_run_whole(tmp_path: Path) -> None:
    x = np.random.default_rng(5).standard_normal((1, 4, 4, 3)).astype(np.float32)
    blocks = x.reshape(1, 2, 2, 2, 2, 3)
    largest = blocks.max(axis=(2, 4), keepdims=True)
    expected = np.where(blocks == largest, blocks, 0).reshape(x.shape)
    runtime = nn.open_runtime(devices=["litert-cpu"])
    async with runtime, runtime.compile(saved(tmp_path, unpooled())) as net:
        assert (await net(x)).tolist() == expected.tolist()


def test_places_come_from_a_pool_alone(tmp_path: Path) -> None:
    """XNNPACK writes to them, wherever that is."""
    half, options = floats(1, 2, 2, 3), struct.pack("<10i", 2, 2, 2, 2, 2, *[0] * 5)
    op = Op("CUSTOM", (0, 1), (2,), custom="MaxUnpooling2D", custom_options=options)
    path = saved(tmp_path, tflite_file([half, half, floats(1, 4, 4, 3)], [op], [0, 1], [2]))
    with pytest.raises(ModelError, match="has places of no such pool"):
        load(path)


@pytest.mark.parametrize("count", [1, 40])
def test_a_graph_is_read_as_often_for_many_as_for_one(count: int) -> None:
    reads = 0

    class Operators(tuple[OperatorInfo, ...]):
        def __iter__(self) -> Iterator[OperatorInfo]:
            nonlocal reads
            reads += 1
            return super().__iter__()

    graph = read_file(memoryview(unpooled())).graphs[0]
    operators = Operators(graph.operators * count)
    wrapping._check_mediapipe(msgspec.structs.replace(graph, operators=operators))
    assert reads == 2


@pytest.mark.parametrize(
    "options", [b"", struct.pack("<10i", 1, 0, 2, 2, 2, *[0] * 5), struct.pack("<10i", *[9] * 10)]
)
def test_their_parameters_are_checked(tmp_path: Path, options: bytes) -> None:
    with pytest.raises(ModelError, match="MaxPoolingWithArgmax2D.* has illegal parameters"):
        load(saved(tmp_path, unpooled(options)))
