"""Files that LiteRT runs as they are: what comes out, states, open shapes, signatures, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core import importers
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.litert import LiteRTEngine
from nnasync._core.drivers.litert.plan import MOST_SHAPES, LiteRTPlan
from nnasync._core.formats.whole import WholePort, whole
from nnasync._core.importers.tflite import load, translate, wrap
from nnasync.engine import Lowering, OutputBuffer, StopFlag
from nnasync.errors import BadState, GeneralFailure, InvalidArgument, ModelError
from nnasync.extensions import LITERT, sized
from nnasync.hal import Array, ExecutionPreference, Model, OperandType, dtype_of
from nnasync.kernels.tensor import Tensor
from tests.importers.tflite import elementwise_cases, movement_cases, window_cases
from tests.importers.tflite.judge import cases, litert, numbers, reference, written
from tests.importers.tflite_files import G, Op, Signature, T, floats, graphs_file, tflite_file

CASES = cases(elementwise_cases.CASES, movement_cases.CASES, window_cases.CASES)
SOME = list(CASES)[::12]
ALONE = ExecutionPreference.SUSTAINED_SPEED
OWN = Lowering("builtin", 1)


def run(model: Model, inputs: list[Array], lowering: Lowering = OWN) -> list[Array]:
    """All outputs of a run on LiteRT, the next states too."""
    given = [np.ascontiguousarray(each.reshape(each.shape or (1,))) for each in inputs]
    model = sized(model, (LITERT,), "LiteRT")
    targets: list[Any] = []
    for index in model.main.output_indexes:
        operand = model.main.operands[index]
        room = np.zeros(1 << 18, np.uint8)
        targets.append(OutputBuffer(room, dtype_of(operand.type), operand.dimensions))
    assert LiteRTEngine().compile(model, ALONE, lowering).bind(given, targets).run(StopFlag())
    return [target.array(target.shape) for target in targets]


def is_whole(model: Model) -> bool:
    return [each.name for each in model.extension_name_to_prefix] == [LITERT.name]


@pytest.mark.parametrize("name", SOME)
def test_whole_files_give_what_litert_gives(name: str, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    network = CASES[name](random)
    model = wrap(written(tmp_path, network))
    inputs = [numbers(random, network, network.tensors[index]) for index in network.inputs]
    zeros = [np.zeros(tensor.shape, np.float32) for tensor in network.tensors if tensor.variable]
    expected = litert(network.file(), inputs)
    for got, wanted in zip(run(model, [*inputs, *zeros]), expected, strict=False):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got.reshape(wanted.shape), wanted)


WIDE = {
    "INT64": (Op("ADD", (0, 0), (1,), "AddOptions"), [[6, 2**32]]),
    "UINT32": (Op("BITWISE_XOR", (0, 0), (1,)), [[0, 0]]),
    "FLOAT64": (Op("CAST", (0,), (1,)), [[3.0, 2.0**31]]),
}


@pytest.mark.anyio
@pytest.mark.one_loop("Types are the same on every loop.")
@pytest.mark.parametrize(
    ("type", "isolate"), [*((type, ()) for type in WIDE), ("INT64", ("litert-cpu",))]
)
async def test_arrays_of_types_that_the_hal_has_not(
    tmp_path: Path, type: str, isolate: tuple[str, ...]
) -> None:
    tensor, (op, expected) = T(type, (1, 2)), WIDE[type]
    path = tmp_path / "wide.tflite"
    path.write_bytes(tflite_file([tensor] * 2, [op], [0], [1]))
    runtime = nn.open_runtime(devices=["litert-cpu"], isolate=isolate)
    async with runtime, runtime.compile(path) as net:
        found = await net(np.array([[3, 2**31]], type.lower()))
        assert found.dtype == type.lower()
        assert found.tolist() == expected


def test_wide_integers_stay(tmp_path: Path) -> None:
    tensor = T("INT64", (1, 2))
    path = tmp_path / "wide.tflite"
    path.write_bytes(tflite_file([tensor] * 2, [Op("ADD", (0, 0), (1,), "AddOptions")], [0], [1]))
    (wide,) = run(wrap(path), [np.array([[2**40, -3]], np.int64)])
    assert wide.tolist() == [[2**41, -6]]


def words(tmp_path: Path) -> Path:
    """An operator that is not translated: ADD of INT16."""
    tensor = T("INT16", (1, 4), None, (0.001,), (0,))
    op = Op("ADD", (0, 0), (1,), "AddOptions", {"PotScaleInt16": False})
    path = tmp_path / "words.tflite"
    path.write_bytes(tflite_file([tensor, tensor], [op], [0], [1]))
    return path


def test_what_is_not_translated_is_kept_whole(tmp_path: Path) -> None:
    path = words(tmp_path)
    with pytest.raises(ModelError, match="not translated: 1 x ADD of INT16 to INT16"):
        translate(path)
    model = load(path)
    assert is_whole(model)
    assert any("as it is: has operators" in operand.name for operand in model.main.operands)
    (got,) = run(model, [np.array([[1, 2, 3, -4]], np.int16)])
    assert got.tolist() == [[2, 4, 6, -8]]
    assert ReferenceEngine().supported_operations(model) == [False]


def test_a_plan_of_a_whole_file_is_kept(tmp_path: Path) -> None:
    engine = LiteRTEngine()
    plan = engine.compile(load(words(tmp_path)), ALONE, OWN)
    again = engine.deserialize(engine.serialize(plan), OWN)
    out = np.zeros((1, 4), np.int16)
    assert again.bind([np.array([[1, 2, 3, 4]], np.int16)], [out]).run(StopFlag())
    assert out.tolist() == [[2, 4, 6, 8]]


def reshaped(folder: Path) -> Path:
    """A RESHAPE to a shape that is an input: LiteRT has its result elsewhere after each run."""
    tensors = [floats(2, 3), T("INT32", (2,)), floats(3, 2)]
    path = folder / "reshaped.tflite"
    op = Op("RESHAPE", (0, 1), (2,), "ReshapeOptions", {"NewShape": ()})
    path.write_bytes(tflite_file(tensors, [op], [0, 1], [2]))
    return path


@pytest.mark.parametrize("name", ["file-xnnpack", "file-builtin"])
def test_a_result_that_a_run_moves_is_found(name: str, tmp_path: Path) -> None:
    model, shape = wrap(reshaped(tmp_path)), np.array([3, 2], np.int32)
    plan = LiteRTEngine().compile(model, ALONE, Lowering(name, 1))
    inputs = [np.zeros((2, 3), np.float32), shape]
    out = np.zeros((3, 2), np.float32)
    call = plan.bind(inputs, [out])
    for start in range(3):
        inputs[0][...] = np.arange(6).reshape(2, 3) + start
        assert call.run(StopFlag())
        assert out.ravel().tolist() == list(range(start, start + 6))
    given = [np.full((2, 3), 7, np.float32), shape]
    assert call.run(StopFlag(), given)
    assert out.tolist() == [[7, 7]] * 3
    with pytest.raises(GeneralFailure, match="LiteRT failed"):
        call.run(StopFlag(), [given[0], np.array([4, 2], np.int32)])
    (again,) = run(model, given)
    assert again.tolist() == [[7, 7]] * 3


def test_a_number_that_a_run_makes_a_list_of_is_an_error(tmp_path: Path) -> None:
    tensors = [floats(2, 3), T("INT32", (1,)), T("FLOAT32", ())]
    path = tmp_path / "number.tflite"
    op = Op("RESHAPE", (0, 1), (2,), "ReshapeOptions", {"NewShape": ()})
    path.write_bytes(tflite_file(tensors, [op], [0, 1], [2]))
    inputs = [np.zeros((2, 3), np.float32), np.array([6], np.int32)]
    with pytest.raises(GeneralFailure, match="LiteRT failed: what was one number has 6"):
        run(wrap(path), inputs)


@pytest.mark.anyio
async def test_such_a_file_answers_rightly_at_first_too(tmp_path: Path) -> None:
    runtime = nn.open_runtime(options=nn.Options(state_dir=str(tmp_path)))
    async with runtime, runtime.compile(reshaped(tmp_path)) as net:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        for _ in range(3):
            y = await net(x, np.array([3, 2], np.int32))
            assert y.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_shapes_of_a_file_that_states_all_of_them_are_known(tmp_path: Path) -> None:
    x = T("FLOAT32", (1, 4), open=(-1, 4))
    path = tmp_path / "tanh.tflite"
    path.write_bytes(tflite_file([x, x], [Op("TANH", (0,), (1,))], [0], [1]))

    def shape(model: Model) -> tuple[int, ...]:
        return model.main.operands[model.main.output_indexes[0]].dimensions

    assert shape(wrap(path)) == (1, 4)
    assert shape(wrap(path, shapes={"t0": (3, 4)})) == (0, 4)


@pytest.mark.anyio
async def test_a_burst_of_words_carries_their_states(tmp_path: Path) -> None:
    """An INT16 network that is not translated, with its state as a variable."""
    x = T("INT16", (1, 2), None, (0.5,), (0,))
    resource, state = T("RESOURCE", (1,)), x
    name = {"Container": "", "SharedName": "sum"}
    ops = [
        Op("VAR_HANDLE", (), (1,), "VarHandleOptions", name),
        Op("READ_VARIABLE", (1,), (2,), "ReadVariableOptions"),
        Op("ADD", (0, 2), (3,), "AddOptions", {"PotScaleInt16": False}),
        Op("ASSIGN_VARIABLE", (1, 3), (), "AssignVariableOptions"),
    ]
    path = tmp_path / "sum.tflite"
    path.write_bytes(tflite_file([x, resource, state, x], ops, [0], [3]))
    runtime = nn.open_runtime(devices=["litert-cpu"], options=nn.Options(state_dir=str(tmp_path)))
    async with runtime, runtime.compile(path) as net, net.burst() as one, net.burst() as other:
        for step in range(1, 4):
            assert (await one(np.array([[1, -2]], np.int16))).tolist() == [[step, -2 * step]]
            assert (await other(np.array([[100, 0]], np.int16))).tolist() == [[100 * step, 0]]


def test_results_whose_shapes_only_a_run_tells(tmp_path: Path) -> None:
    tensors = [T("BOOL", (2, 3)), T("INT64", ())]
    path = tmp_path / "where.tflite"
    path.write_bytes(tflite_file(tensors, [Op("WHERE", (0,), (1,))], [0], [1]))
    model = sized(load(path), (LITERT,), "LiteRT")
    assert is_whole(model)
    (got,) = run(model, [np.array([[0, 1, 0], [1, 0, 1]], np.bool_)])
    assert got.dtype == np.int64
    assert got.tolist() == [[0, 1], [1, 0], [1, 2]]
    with pytest.raises(BadState, match="not kept"):
        LiteRTEngine().serialize(LiteRTEngine().compile(model, ALONE, OWN))


def test_integers_that_do_not_fit_are_an_error_where_they_are_narrow(tmp_path: Path) -> None:
    tensors = [T("INT64", (1,)), T("INT64", (1,), np.array([2**33], np.int64)), T("INT64", (1,))]
    path = tmp_path / "wide.tflite"
    path.write_bytes(tflite_file(tensors, [Op("ADD", (0, 1), (2,), "AddOptions")], [0], [2]))
    assert is_whole(load(path))
    (got,) = run(load(path), [np.array([1], np.int64)])
    assert got.tolist() == [2**33 + 1]
    port = WholePort("x", Tensor(OperandType.TENSOR_INT32, (1,)))
    content = path.read_bytes()
    model = whole(LITERT.name, content, "wide.tflite", name="", inputs=[port], outputs=[port])
    with pytest.raises(GeneralFailure, match="no int32"):
        run(model, [np.array([1], np.int32)])


@pytest.mark.parametrize("zero_point", [-4278190208, -129, 128])
def test_bytes_whose_zero_point_would_end_the_process_are_refused(
    tmp_path: Path, zero_point: int
) -> None:
    """XNNPACK defines no such tensor, and LiteRT's delegate goes on as if there were one."""
    bytes_ = T("INT8", (1, 4), None, (0.5,), (0,))
    odd = T("INT8", (1, 4), None, (0.5,), (zero_point,))
    file = tmp_path / "odd.tflite"
    ops = [Op("RESHAPE", (0,), (1,)), Op("RESHAPE", (1,), (2,))]
    file.write_bytes(tflite_file([bytes_, odd, bytes_], ops, [0], [2]))
    told = rf"operator 0 \(RESHAPE\): a zero point of {zero_point}, of INT8 -128 to 127 are legal"
    with pytest.raises(ModelError, match=told):
        wrap(file)


@pytest.mark.parametrize("scale", [-0.001, 0.0, 1e-42, float("nan")])
def test_words_whose_scale_would_end_the_process_are_refused(tmp_path: Path, scale: float) -> None:
    x, y = (T("INT16", (1, 4), None, (each,), (0,)) for each in (0.001, scale))
    op = Op("ADD", (0, 0), (1,), "AddOptions", {"PotScaleInt16": False})
    path = tmp_path / "words.tflite"
    path.write_bytes(tflite_file([x, y], [op], [0], [1]))
    with pytest.raises(ModelError, match=r"operator 0 \(ADD\): a"):
        load(path)


@pytest.mark.parametrize("repeats", [(1, -2), (1 << 20, 1 << 20)])
def test_repeats_of_a_wrong_size_are_refused(tmp_path: Path, repeats: tuple[int, int]) -> None:
    tensors = [floats(1, 2), T("INT32", (2,), np.array(repeats, np.int32)), floats(1, 4)]
    path = tmp_path / "tile.tflite"
    path.write_bytes(tflite_file(tensors, [Op("TILE", (0, 1), (2,))], [0], [2]))
    with pytest.raises(ModelError, match=r"operator 0 \(TILE\): repeats \["):
        wrap(path)


@pytest.mark.parametrize("radius", [-1 << 28, (1 << 31) - 1])
def test_a_window_that_litert_would_leave_memory_for_is_refused(
    tmp_path: Path, radius: int
) -> None:
    op = Op(
        "LOCAL_RESPONSE_NORMALIZATION",
        (0,),
        (1,),
        "LocalResponseNormalizationOptions",
        {"Radius": radius, "Bias": 1.0, "Alpha": 0.5, "Beta": 0.75},
    )
    path = tmp_path / "window.tflite"
    path.write_bytes(tflite_file([floats(1, 1, 1, 2)] * 2, [op], [0], [1]))
    with pytest.raises(ModelError, match=f"has radius {radius}"):
        wrap(path)
    assert not is_whole(load(path))


POOL = {"StrideW": 1, "StrideH": 1, "FilterWidth": 1, "FilterHeight": 1}


@pytest.mark.parametrize(
    ("name", "table", "options", "text"),
    [
        ("TRANSPOSE_CONV", "TransposeConvOptions", {"StrideW": 0, "StrideH": 1}, "StrideW is 0"),
        ("TRANSPOSE_CONV", "TransposeConvOptions", {"StrideW": 1}, "StrideH is 0"),
        *(
            (f"{kind}_POOL_2D", "Pool2DOptions", POOL | {"FilterHeight": -1 << 31}, "FilterHeight")
            for kind in ("AVERAGE", "MAX", "L2")
        ),
        ("SPLIT", "SplitOptions", {"NumSplits": 2}, "splits into 2, and has 1 outputs"),
    ],
)
def test_numbers_that_litert_does_not_survive_are_refused(
    tmp_path: Path, name: str, table: str, options: dict[str, int], text: str
) -> None:
    """By a division, a loop that does not end, or a result that is not there."""
    count = {"TRANSPOSE_CONV": 3, "SPLIT": 2}.get(name, 1)
    op = Op(name, tuple(range(count)), (count,), table, options)
    path = tmp_path / "numbers.tflite"
    path.write_bytes(
        tflite_file([floats(1, 2, 2, 1)] * (count + 1), [op], list(range(count)), [count])
    )
    with pytest.raises(ModelError, match=rf"operator 0 \({name}\): .*{text}"):
        wrap(path)


def test_inputs_that_litert_takes_to_be_there_must_not_be_left_out(tmp_path: Path) -> None:
    tensors = [T("INT16", (1, 4), None, (1.0,), (0,)), T("INT32", (2,), np.zeros(2, np.int32))]
    op = Op("STRIDED_SLICE", (0, 1, 1, -1), (2,), "StridedSliceOptions")
    path = tmp_path / "slice.tflite"
    path.write_bytes(tflite_file([*tensors, tensors[0]], [op], [0], [2]))
    with pytest.raises(ModelError, match=r"operator 0 \(STRIDED_SLICE\): input 3 is left out"):
        load(path)


@pytest.mark.parametrize(
    ("name", "count", "weights", "bias"),
    [("LSTM", 20, 1, 12), ("UNIDIRECTIONAL_SEQUENCE_LSTM", 24, 1, 12)]
    + [("BIDIRECTIONAL_SEQUENCE_LSTM", 48, weights, weights + 11) for weights in (1, 18)],
)
def test_an_input_gate_has_a_bias(
    tmp_path: Path, name: str, count: int, weights: int, bias: int
) -> None:
    given = [0] * count
    given[bias] = -1
    path = tmp_path / "lstm.tflite"
    path.write_bytes(tflite_file([floats(1, 2)] * 2, [Op(name, tuple(given), (1,))], [0], [1]))
    text = rf"\({name}\): input {bias} is left out, and input {weights} is not"
    with pytest.raises(ModelError, match=text):
        wrap(path)
    given[weights] = -1
    path.write_bytes(tflite_file([floats(1, 2)] * 2, [Op(name, tuple(given), (1,))], [0], [1]))
    assert wrap(path).main.operations, "without the gate it is none of ours to refuse"


def test_a_slice_has_as_many_inputs_as_litert_reads(tmp_path: Path) -> None:
    tensors = [T("UINT8", (4, 5), None), T("INT32", (2,), np.ones(2, np.int32))]
    op = Op("STRIDED_SLICE", (0, 1), (2,), "StridedSliceOptions")
    path = tmp_path / "slice.tflite"
    path.write_bytes(tflite_file([*tensors, tensors[0]], [op], [0], [2]))
    with pytest.raises(ModelError, match=r"operator 0 \(STRIDED_SLICE\): has 2 inputs"):
        load(path)


@pytest.mark.parametrize("type", ["FLOAT32", "INT64"])
def test_tensors_of_rank_0_are_taken_and_given(tmp_path: Path, type: str) -> None:
    number = T(type, ())
    path = tmp_path / "numbers.tflite"
    ops = [Op("ADD", (0, 1), (2,), "AddOptions"), Op("MUL", (2, 1), (3,), "MulOptions")]
    path.write_bytes(tflite_file([number] * 4, ops, [0, 1], [2, 3]))
    model = sized(wrap(path), (LITERT,), "LiteRT")
    dtype = dtype_of(model.main.operands[0].type)
    plan = LiteRTEngine().compile(model, ALONE, OWN)
    x, y = np.zeros(1, dtype), np.full(1, 2, dtype)
    outputs = [np.zeros(1, dtype), np.zeros(1, dtype)]
    call = plan.bind([x, y], outputs)
    for value in (5, -1):
        x[0] = value
        assert call.run(StopFlag())
        assert [int(each[0]) for each in outputs] == [value + 2, 2 * (value + 2)]


def test_variable_tensors_are_states(tmp_path: Path) -> None:
    network = CASES["RNN FLOAT32"](np.random.default_rng(3))
    path = written(tmp_path, network)
    model, translated = wrap(path), translate(path)
    assert len(model.state) == len(translated.state) == 1
    x = np.ones(network.tensors[0].shape, np.float32)
    state = np.full(network.tensors[4].shape, 0.25, np.float32)
    for wanted in (run(model, [x, state]), run(model, [x, state])):
        np.testing.assert_allclose(wanted[0], wanted[1])
    again = run(model, [x, wanted[1]])
    assert not np.allclose(again[0], wanted[0])


def test_open_dimensions_take_any_size(tmp_path: Path) -> None:
    tensors = [T("FLOAT32", (1, 4), open=(-1, 4)), T("FLOAT32", (1, 4), open=(-1, 4))]
    path = tmp_path / "open.tflite"
    path.write_bytes(tflite_file(tensors, [Op("TANH", (0,), (1,))], [0], [1]))
    name = "t0"
    for make in (wrap, translate):
        assert make(path).main.operands[0].dimensions == (1, 4)
        assert make(path, shapes={name: (3, 4)}).main.operands[0].dimensions == (3, 4)
        model = make(path, shapes={name: (None, 4)})
        x = np.ones((5, 4), np.float32)
        (got,) = run(model, [x]) if make is wrap else reference(model, [x])
        np.testing.assert_allclose(got, np.tanh(x), rtol=1e-5)
        with pytest.raises(InvalidArgument, match=r"shape \[None, 4\], not \[1, 5\]"):
            make(path, shapes={name: (1, 5)})
        with pytest.raises(InvalidArgument, match="no input 'x', only t0"):
            make(path, shapes={"x": (1, 4)})


@pytest.mark.parametrize(
    ("stated", "left_open", "taken"),
    [
        ((1, 1, 4), (-1, -1, 4), (1, 0, 4)),  # A 1 behind the number of examples holds a place.
        ((1, 7, 4), (-1, -1, 4), (1, 7, 4)),
        ((1, 1, 4), (1, 1, 4), (1, 1, 4)),
        ((1,), (-1,), (1,)),
    ],
)
def test_sizes_that_say_nothing_stay_open(
    stated: tuple[int, ...], left_open: tuple[int, ...], taken: tuple[int, ...], tmp_path: Path
) -> None:
    tensor = T("FLOAT32", stated, open=left_open)
    path = tmp_path / "open.tflite"
    path.write_bytes(tflite_file([tensor, tensor], [Op("TANH", (0,), (1,))], [0], [1]))
    for make in (wrap, translate):
        model = make(path)
        assert model.main.operands[0].dimensions == taken
        x = np.ones([n or 5 for n in taken], np.float32)
        (got,) = run(model, [x]) if make is wrap else reference(model, [x])
        np.testing.assert_allclose(got, np.tanh(x), rtol=1e-5)


def test_a_file_that_states_sizes_which_it_cannot_have_runs_with_others(tmp_path: Path) -> None:
    """Converters put 1 for the height and width of a picture; the window is larger."""
    x, y = T("FLOAT32", (1, 1, 1, 1), open=(1, -1, -1, 1)), T("FLOAT32", (1, 1, 1, 1))
    kernel = T("FLOAT32", (1, 3, 3, 1), np.ones((1, 3, 3, 1), np.float32))
    bias = T("FLOAT32", (1,), np.zeros(1, np.float32))
    options = {"Padding": 1, "StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1}
    conv = Op("CONV_2D", (0, 1, 2), (3,), "Conv2DOptions", options)
    path = tmp_path / "picture.tflite"
    y = T("FLOAT32", (1, 1, 1, 1), open=(1, -1, -1, 1))
    path.write_bytes(tflite_file([x, kernel, bias, y], [conv], [0], [3]))
    picture = np.arange(20, dtype=np.float32).reshape(1, 4, 5, 1)
    wanted = sum(picture[:, a : a + 2, b : b + 3] for a in range(3) for b in range(3))
    for (got,) in (run(wrap(path), [picture]), reference(translate(path), [picture])):
        np.testing.assert_allclose(got, wanted)


def test_interpreters_are_kept_for_a_few_shapes_only(tmp_path: Path) -> None:
    """Whoever calls chooses shapes, and each takes as much memory as a model."""
    tensor = T("FLOAT32", (1, 1, 4), open=(1, -1, 4))
    path = tmp_path / "open.tflite"
    path.write_bytes(tflite_file([tensor, tensor], [Op("TANH", (0,), (1,))], [0], [1]))
    plan = LiteRTEngine().compile(sized(wrap(path), (LITERT,), "LiteRT"), ALONE, OWN)
    assert isinstance(plan, LiteRTPlan)
    usual, x = plan.pools[0], np.ones((1, 2, 4), np.float32)
    first, y = plan.bind([x], [np.zeros_like(x)]), np.zeros_like(x)
    for size in range(3, 3 * MOST_SHAPES):
        plan.bind([x], [y])
        given = np.ones((1, size, 4), np.float32)
        assert plan.bind([given], [np.zeros_like(given)]).run(StopFlag())
    assert len(plan.pools) == MOST_SHAPES + 1
    assert plan.pools[0] is usual
    in_use = plan.pools[-2]
    assert plan.bind([x], [y]).run(StopFlag())
    assert plan.pools[-1] is in_use
    np.testing.assert_allclose(y, np.tanh(x), rtol=1e-5)
    assert first.run(StopFlag())


def test_an_output_that_is_an_input_as_it_is_may_have_open_dimensions(tmp_path: Path) -> None:
    tensor = T("FLOAT32", (1, 1, 4), open=(1, -1, 4))
    path = tmp_path / "same.tflite"
    path.write_bytes(tflite_file([tensor, tensor], [Op("CAST", (0,), (1,))], [0], [1]))
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    np.testing.assert_array_equal(reference(translate(path), [x])[0], x)


def test_a_signature_has_its_subgraph_and_its_names(tmp_path: Path) -> None:
    parts = [G([floats(1, 3)] * 2, [Op(name, (0,), (1,))], [0], [1]) for name in ("TANH", "RELU")]
    signatures = [
        Signature(name, number, {"x": 0}, {"y": 1}) for number, name in enumerate(("one", "two"))
    ]
    path = tmp_path / "two.tflite"
    path.write_bytes(graphs_file(parts, signatures))
    x = np.array([[-1, 0, 2]], np.float32)
    for make in (wrap, translate):
        for name, wanted in (("one", np.tanh(x)), ("two", np.maximum(x, 0))):
            model = make(path, signature=name)
            main = model.main
            ports = (*main.input_indexes, *main.output_indexes)
            assert [main.operands[index].name for index in ports] == ["x", "y"]
            np.testing.assert_allclose(run(model, [x])[0], wanted, rtol=1e-5)
        assert make(path).main.operands[0].name == "t0"
        with pytest.raises(
            InvalidArgument, match="no signature 'three'; its signatures: 'one', 'two'"
        ):
            make(path, signature="three")


def test_custom_operators_are_refused_with_the_true_reason(tmp_path: Path) -> None:
    x = floats(1, 3)
    ops = [
        Op("CUSTOM", (0,), (1,), custom="edgetpu-custom-op"),
        Op("CUSTOM", (1,), (2,), custom="FlexErf"),
        Op("CUSTOM", (2,), (3,), custom="Whistle"),
        Op("MULTINOMIAL", (3, 4), (5,)),
    ]
    path = tmp_path / "custom.tflite"
    axis = T("INT32", (), np.int32(0))
    path.write_bytes(tflite_file([x, x, x, x, axis, x], ops, [0], [5]))
    with pytest.raises(ModelError) as caught:
        load(path)
    message = str(caught.value)
    assert "1 x edgetpu-custom-op, first operator 0: compiled for an Edge TPU" in message
    assert "1 x FlexErf, first operator 1: an operator of TensorFlow" in message
    assert "1 x Whistle, first operator 2: a custom operator" in message
    assert "not translated: " in message
    assert "1 x MULTINOMIAL, first operator 3" in message


def test_a_state_that_litert_would_overrun_is_refused(shared: Path) -> None:
    with pytest.raises(ModelError, match="7 x SVDF.*its state has 8 bits"):
        wrap(shared / "models" / "keyword_scrambled_8bit.tflite")


def test_the_device_offers_the_extension() -> None:
    assert LITERT in LiteRTEngine.extensions


def test_options_are_for_the_files_that_have_what_they_name(tmp_path: Path) -> None:
    for name, option in (("x.onnx", {"signature": "x"}), ("x.nnm", {"shapes": {}})):
        with pytest.raises(InvalidArgument, match=rf"{next(iter(option))}= is for \.tflite"):
            importers.load(tmp_path / name, **option)
