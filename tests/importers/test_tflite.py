"""TFLite files: real ones, small ones of each operator, and broken ones."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
import tflite
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from nnasync._core import importers
from nnasync._core.importers.tflite import translate
from nnasync._core.validation import operand_value, validate_model
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import (
    ChannelQuant,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    OperationType,
)
from tests.importers.tflite.judge import reference
from tests.importers.tflite_files import (
    Op,
    T,
    buffer,
    floats,
    integers,
    load_bytes,
    load_parts,
    operator_code,
    q8,
    tensor_table,
    tflite_file,
    translate_parts,
    vector,
    weights,
)

DTYPES = {
    "float32": OperandType.TENSOR_FLOAT32,
    "uint8": OperandType.TENSOR_QUANT8_ASYMM,
    "int8": OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    "int16": OperandType.TENSOR_QUANT16_SYMM,
    "int32": OperandType.TENSOR_INT32,
}


def types(model: Model) -> list[int]:
    return [operation.type for operation in model.main.operations]


def operand(model: Model, operation: int, position: int) -> Operand:
    main = model.main
    return main.operands[main.operations[operation].inputs[position]]


def output(model: Model, position: int = 0) -> Operand:
    return model.main.operands[model.main.output_indexes[position]]


def scalars(model: Model, operation: int) -> list[Any]:
    """Values of the scalar parameters of an operation."""
    found = [
        operand_value(model, operand(model, operation, p))
        for p in range(len(model.main.operations[operation].inputs))
    ]
    return [v.item() for v in found if v is not None and v.ndim == 0]


def names_of(shared: Path) -> list[dict[str, Any]]:
    index: list[dict[str, Any]] = json.loads((shared / "models" / "index.json").read_text())
    return index


def test_real_models_have_the_inputs_outputs_and_states_of_the_index(shared: Path) -> None:
    for entry in names_of(shared):
        model = importers.load(shared / "models" / entry["file"])
        validate_model(model)
        main = model.main
        states = {pair.input for pair in model.state}, {pair.output for pair in model.state}
        for kind, indexes, state in (
            ("inputs", main.input_indexes, states[0]),
            ("outputs", main.output_indexes, states[1]),
        ):
            found = [main.operands[index] for p, index in enumerate(indexes) if p not in state]
            for expected, given_ in zip(entry.get(kind, []), found, strict=bool(entry.get(kind))):
                assert given_.name == (expected["name"] or f"{kind[:-1]}0"), entry["name"]
                assert given_.dimensions == tuple(expected["shape"]), entry["name"]
                assert given_.type == DTYPES[expected["dtype"]], entry["name"]
                assert given_.scale == pytest.approx(expected["scale"]), entry["name"]
                assert given_.zero_point == expected["zero_point"], entry["name"]


def test_states_of_real_models(shared: Path) -> None:
    counts = {
        name: len(importers.load(shared / "models" / f"{name}.tflite").state)
        for name in ("tts_float", "mnist_lstm", "person_detect", "dtln_noise_suppression")
    }
    assert counts == {
        "tts_float": 7,
        "mnist_lstm": 2,
        "person_detect": 0,
        "dtln_noise_suppression": 4,
    }


def test_large_constants_stay_in_the_file(shared: Path) -> None:
    model = importers.load(shared / "models" / "mobilenet_v1_0.25_128.tflite")
    sizes = {pool.name: pool.size for pool in model.pools}
    assert sizes == {"mmap_fd": (shared / "models" / "mobilenet_v1_0.25_128.tflite").stat().st_size}
    large = [o for o in model.main.operands if o.lifetime == OperandLifeTime.CONSTANT_REFERENCE]
    assert sum(o.location.length for o in large) > 1_800_000


def test_truncated_real_models_are_refused(shared: Path, tmp_path: Path) -> None:
    data = (shared / "models" / "hello_world_int8.tflite").read_bytes()
    for length in range(0, len(data), 37):
        with pytest.raises(ModelError, match=r"model\.tflite"):
            load_bytes(data[:length], tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "hello_world_float",
        "hello_world_int8",
        "mnist_lstm",
        "person_detect",
        "tts_float",
        "keyword_scrambled_8bit",
    ],
)
def test_flipped_bytes_give_a_model_or_a_model_error(
    shared: Path, tmp_path: Path, name: str
) -> None:
    data = (shared / "models" / f"{name}.tflite").read_bytes()
    check_flips(data, tmp_path, rounds=150, number=len(name))


def check_flips(data: bytes, folder: Path, *, rounds: int, number: int) -> None:
    """Most of the structure of a file is near its ends: flips fall there more often."""
    choose = random.Random(number)
    for _ in range(rounds):
        broken = bytearray(data)
        for _ in range(choose.choice((1, 1, 2, 8))):
            near = choose.choice((64, 512, 4096, len(data)))
            position = choose.randrange(min(near, len(data)))
            if choose.random() < 0.5:
                position = len(data) - 1 - position
            broken[position] = choose.choice((0, 1, 127, 128, 255, choose.randrange(256)))
        try:
            validate_model(load_bytes(bytes(broken), folder))
        except ModelError as error:
            check_message(error)


def small_network() -> bytes:
    """Convolution, pooling, reshape, fully connected and softmax, in int8."""
    tensors = [
        q8(1, 8, 8, 2),
        T("INT8", (4, 3, 3, 2), np.ones(72, np.int8), (0.1, 0.2, 0.3, 0.4), (0,) * 4, 0),
        integers(1, 2, 3, 4),
        q8(1, 4, 4, 4),
        q8(1, 2, 2, 4),
        integers(1, -1),
        q8(1, 16),
        q8(5, 16, data=np.ones((5, 16), np.int8)),
        integers(1, 2, 3, 4, 5),
        q8(1, 5),
        T("INT8", (1, 5), None, (1 / 256,), (-128,)),
    ]
    ops = [
        Op("CONV_2D", (0, 1, 2), (3,), "Conv2DOptions", {"StrideW": 2, "StrideH": 2}),
        Op(
            "AVERAGE_POOL_2D",
            (3,),
            (4,),
            "Pool2DOptions",
            {"Padding": 1, "StrideW": 2, "StrideH": 2, "FilterWidth": 2, "FilterHeight": 2},
        ),
        Op("RESHAPE", (4, 5), (6,), "ReshapeOptions", {"NewShape": (1, 16)}),
        Op("FULLY_CONNECTED", (6, 7, 8), (9,), "FullyConnectedOptions", {}),
        Op("SOFTMAX", (9,), (10,), "SoftmaxOptions", {"Beta": 1.0}),
    ]
    return tflite_file(tensors, ops, [0], [10])


def test_small_network(tmp_path: Path) -> None:
    model = load_bytes(small_network(), tmp_path)
    assert types(model) == [
        OperationType.CONV_2D,
        OperationType.AVERAGE_POOL_2D,
        OperationType.RESHAPE,
        OperationType.FULLY_CONNECTED,
        OperationType.SOFTMAX,
    ]
    filter, bias = operand(model, 0, 1), operand(model, 0, 2)
    assert filter.type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    assert filter.extra_params == ChannelQuant(
        tuple(float(np.float32(s)) for s in (0.1, 0.2, 0.3, 0.4)), 0
    )
    assert (bias.scale, bias.zero_point) == (0.0, 0)
    assert operand(model, 3, 2).scale == 0.25
    assert scalars(model, 0) == [1, 2, 2, 0]
    assert scalars(model, 1) == [2, 2, 2, 2, 2, 0]
    assert scalars(model, 4) == [1.0]
    assert model.main.operands[model.main.input_indexes[0]].zero_point == 3


@seed(20)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_change_of_a_file_gives_a_model_or_a_model_error(
    tmp_path: Path, data: st.DataObject
) -> None:
    broken = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(broken) - 1))
        broken[position] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(broken)) | st.just(len(broken)))
    try:
        validate_model(load_bytes(bytes(broken[:end]), tmp_path))
    except ModelError as error:
        check_message(error)


def check_message(error: ModelError) -> None:
    assert "model.tflite" in str(error)


SMALL = small_network()


def test_truncations_are_refused(tmp_path: Path) -> None:
    for length in (*range(0, len(SMALL), 11), *range(len(SMALL) - 32, len(SMALL))):
        with pytest.raises(ModelError):
            load_bytes(SMALL[:length], tmp_path)


def test_vectors_that_share_bytes_do_not_multiply_the_work(tmp_path: Path) -> None:
    """Many operators that all refer to one long list are refused before they are read."""
    b = flatbuffers.Builder(1024)
    code = operator_code(b, Op("ADD", (), ()))
    long = vector(b, [0] * 20_000, 4, b.PrependInt32)
    tflite.OperatorStart(b)
    tflite.OperatorAddInputs(b, long)
    operator = tflite.OperatorEnd(b)
    tensor = tensor_table(b, 0, floats(1))
    operators = vector(b, [operator] * 2_000, 4, b.PrependUOffsetTRelative)
    tensors = vector(b, [tensor], 4, b.PrependUOffsetTRelative)
    tflite.SubGraphStart(b)
    tflite.SubGraphAddTensors(b, tensors)
    tflite.SubGraphAddOperators(b, operators)
    graph = tflite.SubGraphEnd(b)
    parts = [vector(b, [item], 4, b.PrependUOffsetTRelative) for item in (code, graph)]
    empty = buffer(b, None)
    buffers = vector(b, [empty, empty], 4, b.PrependUOffsetTRelative)
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, 3)
    tflite.ModelAddOperatorCodes(b, parts[0])
    tflite.ModelAddSubgraphs(b, parts[1])
    tflite.ModelAddBuffers(b, buffers)
    b.Finish(tflite.ModelEnd(b), b"TFL3")
    with pytest.raises(ModelError, match="too often"):
        load_bytes(bytes(b.Output()), tmp_path)


def test_missing_bias_becomes_zeros(tmp_path: Path) -> None:
    options = {"StrideW": 1, "StrideH": 1, "FusedActivationFunction": 3}
    model = load_parts(
        tmp_path,
        [floats(1, 4, 4, 2), weights(3, 1, 1, 2), floats(1, 4, 4, 3)],
        [Op("CONV_2D", (0, 1, -1), (2,), "Conv2DOptions", options)],
    )
    bias = operand_value(model, operand(model, 0, 2))
    assert bias is not None
    assert bias.tolist() == [0, 0, 0]
    assert scalars(model, 0) == [1, 1, 1, 3]


def test_dilation_adds_the_layout(tmp_path: Path) -> None:
    options = {"StrideW": 1, "StrideH": 1, "DilationWFactor": 3, "DilationHFactor": 2}
    model = load_parts(
        tmp_path,
        [floats(1, 9, 9, 2), weights(1, 3, 3, 4), weights(4), floats(1, 9, 9, 4)],
        [
            Op(
                "DEPTHWISE_CONV_2D",
                (0, 1, 2),
                (3,),
                "DepthwiseConv2DOptions",
                {**options, "DepthMultiplier": 2},
            )
        ],
    )
    assert scalars(model, 0) == [1, 1, 1, 2, 0, False, 3, 2]


def test_fully_connected_keeps_dimensions_through_a_reshape(tmp_path: Path) -> None:
    model = load_parts(
        tmp_path,
        [floats(2, 3, 4), weights(5, 4), weights(5), floats(2, 3, 5)],
        [Op("FULLY_CONNECTED", (0, 1, 2), (3,), "FullyConnectedOptions", {"KeepNumDims": True})],
    )
    assert types(model) == [OperationType.FULLY_CONNECTED, OperationType.RESHAPE]
    assert output(model).dimensions == (2, 3, 5)


def test_reshape_takes_its_target_from_options_or_result(tmp_path: Path) -> None:
    for op in (
        Op("RESHAPE", (0,), (1,), "ReshapeOptions", {"NewShape": (4, -1)}),
        Op("RESHAPE", (0,), (1,)),
    ):
        model = load_parts(tmp_path, [floats(2, 6), floats(4, 3)], [op])
        assert output(model).dimensions == (4, 3)


def test_results_without_a_shape_are_inferred(tmp_path: Path) -> None:
    model = load_parts(
        tmp_path,
        [floats(2, 6), floats(), floats()],
        [Op("LOGISTIC", (0,), (1,)), Op("TANH", (1,), (2,))],
    )
    assert output(model).dimensions == (2, 6)


def test_other_operators(tmp_path: Path) -> None:
    image, half = floats(1, 4, 4, 2), T("FLOAT16", (2,), np.array([1, 2], np.float16))
    cases: list[tuple[OperationType, list[T], Op]] = [
        (
            OperationType.MEAN,
            [image, integers(1, 2), floats(1, 2)],
            Op("MEAN", (0, 1), (2,), "ReducerOptions", {}),
        ),
        (
            OperationType.PAD,
            [image, T("INT32", (4, 2), np.ones((4, 2), np.int32)), floats(3, 6, 6, 4)],
            Op("PAD", (0, 1), (2,)),
        ),
        (
            OperationType.CONCATENATION,
            [image, floats(1, 4, 4, 4)],
            Op("CONCATENATION", (0, 0), (1,), "ConcatenationOptions", {"Axis": -1}),
        ),
        (
            OperationType.MAX_POOL_2D,
            [image, floats(1, 2, 2, 2)],
            Op(
                "MAX_POOL_2D",
                (0,),
                (1,),
                "Pool2DOptions",
                {"Padding": 0, "StrideW": 2, "StrideH": 2, "FilterWidth": 3, "FilterHeight": 3},
            ),
        ),
        (OperationType.QUANTIZE, [image, q8(1, 4, 4, 2)], Op("QUANTIZE", (0,), (1,))),
        (OperationType.DEQUANTIZE, [q8(3, 4), floats(3, 4)], Op("DEQUANTIZE", (0,), (1,))),
        (
            OperationType.SUB,
            [image, T("FLOAT32", (), np.float32(2)), image],
            Op("SUB", (0, 1), (2,), "SubOptions", {"FusedActivationFunction": 1}),
        ),
        (OperationType.HARD_SWISH, [image, image], Op("HARD_SWISH", (0,), (1,))),
        (OperationType.RELU6, [image, image], Op("RELU6", (0,), (1,))),
    ]
    for expected, tensors, op in cases:
        assert types(load_parts(tmp_path, tensors, [op])) == [expected]
    model = load_parts(
        tmp_path,
        [floats(3, 2), half, floats(2), floats(3, 2)],
        [Op("DEQUANTIZE", (1,), (2,)), Op("MUL", (0, 2), (3,), "MulOptions", {})],
    )
    assert types(model) == [OperationType.MUL]
    factor = operand_value(model, operand(model, 0, 1))
    assert factor is not None
    assert factor.tolist() == [1, 2]


def test_other_scales_are_reached_through_floats(tmp_path: Path) -> None:
    model = load_parts(tmp_path, [q8(2, 3), q8(2, 3, scale=0.25)], [Op("RELU", (0,), (1,))])
    assert types(model) == [
        OperationType.RELU,
        OperationType.DEQUANTIZE,
        OperationType.QUANTIZE,
    ]
    assert output(model).scale == 0.25


def test_variable_tensors_become_states(tmp_path: Path) -> None:
    tensors = [
        floats(1, 3),
        weights(2, 3),
        weights(2, 2),
        weights(2),
        T("FLOAT32", (1, 2), variable=True),
        floats(1, 2),
    ]
    op = Op("RNN", (0, 1, 2, 3, 4), (5,), "RNNOptions", {"FusedActivationFunction": 4})
    model = load_parts(tmp_path, tensors, [op])
    assert [(pair.input, pair.output) for pair in model.state] == [(1, 1)]
    assert model.main.operands[model.main.input_indexes[1]].name == "t4"


def test_svdf(tmp_path: Path) -> None:
    tensors = [
        floats(1, 3),
        weights(4, 3),
        weights(4, 5),
        T("FLOAT32", (1, 20), variable=True),
        floats(1, 2),
    ]
    op = Op("SVDF", (0, 1, 2, -1, 3), (4,), "SVDFOptions", {"Rank": 2})
    model = load_parts(tmp_path, tensors, [op])
    assert len(model.state) == 1
    assert operand(model, 0, 3).lifetime == OperandLifeTime.NO_VALUE
    op = Op("SVDF", (0, 1, 2, -1, -1), (4,), "SVDFOptions", {"Rank": 2})
    with pytest.raises(ModelError, match="1 x SVDF without a state"):
        translate_parts(tmp_path, tensors, [op])


def test_all_unsupported_operators_are_listed_at_once(tmp_path: Path) -> None:
    x = floats(1, 3)
    with pytest.raises(ModelError) as caught:
        translate_parts(
            tmp_path,
            [x, x, x, x, weights(2, 3), floats(1, 2), x],
            [
                Op("CUSTOM", (0,), (1,), custom="Whistle"),
                Op("MULTINOMIAL", (1,), (2,)),
                Op("MULTINOMIAL", (2,), (3,)),
                Op(
                    "FULLY_CONNECTED",
                    (3, 4),
                    (5,),
                    "FullyConnectedOptions",
                    {"FusedActivationFunction": 4},
                ),
                Op("TANH", (5,), (6,)),
            ],
        )
    message = str(caught.value)
    assert "1 x CUSTOM Whistle, first operator 0" in message
    assert "2 x MULTINOMIAL, first operator 1" in message
    assert "1 x FULLY_CONNECTED with fused activation 4, first operator 3" in message
    assert "TANH" not in message


def test_a_layer_without_a_bias_takes_weights_that_are_computed(tmp_path: Path) -> None:
    op = Op("FULLY_CONNECTED", (0, 1, -1), (2,), "FullyConnectedOptions")
    model = translate_parts(tmp_path, [floats(1, 3), floats(2, 3), floats(1, 2)], [op], (0, 1))
    x, w = np.array([[1, 2, 3]], np.float32), np.array([[1, 0, 1], [2, 1, 0]], np.float32)
    np.testing.assert_array_equal(reference(model, [x, w])[0], x @ w.T)


@pytest.mark.parametrize(
    ("weights_tensor", "inputs", "options", "reason"),
    [
        (weights(2, 3), (0, -1), {}, "without weights of rank 2"),
        (weights(2, 3, 1), (0, 1), {}, "without weights of rank 2"),
        (weights(2, 3), (0, 1), {"WeightsFormat": 1}, "with shuffled weights"),
        (
            T("FLOAT32", (2, 3), open=(-1, 3)),
            (0, 1, -1),
            {},
            "without a bias and with weights of an open shape",
        ),
    ],
)
def test_layers_without_a_counterpart(
    tmp_path: Path,
    weights_tensor: T,
    inputs: tuple[int, ...],
    options: dict[str, Any],
    reason: str,
) -> None:
    op = Op("FULLY_CONNECTED", inputs, (2,), "FullyConnectedOptions", options)
    with pytest.raises(ModelError, match=reason):
        tensors = [floats(1, 3), weights_tensor, floats(1, 2)]
        given = (0,) if weights_tensor.data is not None else (0, 1)
        translate_parts(tmp_path, tensors, [op], given)


@pytest.mark.parametrize(
    ("tensors", "op", "message"),
    [
        ([floats(1), floats(1)], Op("TANH", (7,), (1,)), "tensor 7 of 2"),
        ([floats(1), floats(1)], Op("TANH", (-2,), (1,)), "tensor -2 of 2"),
        ([floats(1), floats(1)], Op("TANH", (0,), ()), "TANH"),
        ([floats(1), floats(1)], Op("TANH", (1,), (1,)), "before an operator writes it"),
        ([floats(1), floats(1)], Op("TANH", (0,), (0,)), "written twice"),
        ([floats(-1), floats(1)], Op("TANH", (0,), (1,)), r"tensor 0: has shape \[-1\]"),
        ([floats(2), floats(3)], Op("TANH", (0,), (1,)), r"operator 0 \(TANH\).*\[3\]"),
        (
            [floats(2), T("FLOAT32", (3,), np.ones(2, np.float32)), floats(2)],
            Op("ADD", (0, 1), (2,), "AddOptions", {}),
            "takes 12 bytes, its buffer has 8",
        ),
        (
            [floats(2), floats(2), floats(2)],
            Op("ADD", (0, 1), (2,), "MulOptions", {}),
            "options are not AddOptions",
        ),
        (
            [T("INT8", (2,)), T("INT8", (2,))],
            Op("RELU", (0,), (1,)),
            "INT8 without quantization",
        ),
    ],
)
def test_broken_files_say_where(tmp_path: Path, tensors: list[T], op: Op, message: str) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(tflite_file(tensors, [op], [0], op.outputs or [0]))
    with pytest.raises(ModelError, match=message):
        translate(path)


def test_files_of_other_kinds(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="TFL3"):
        load_bytes(b"x" * 100, tmp_path)
    with pytest.raises(ModelError):
        load_bytes(b"", tmp_path)
    onnx, unknown = tmp_path / "x.onnx", tmp_path / "x.bin"
    onnx.touch()
    unknown.touch()
    with pytest.raises(ModelError, match="no legal ONNX file"):
        importers.load(onnx)
    with pytest.raises(InvalidArgument, match=r"\.tflite"):
        importers.load(unknown)
    with pytest.raises(FileNotFoundError):
        importers.load(tmp_path / "missing.tflite")
