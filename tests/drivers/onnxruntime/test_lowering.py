"""Operations of the HAL on ONNX Runtime, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from nnasync._core.drivers.onnxruntime.lowering import lower, reasons
from nnasync._core.importers.onnx import wrap
from nnasync.hal import ExecutionPreference, Model, OperandType, OperationType
from tests.importers.onnx.files import FLOAT, message, node, onnx, run, samples, written

F32, F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
Q8, Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
TYPES = {F32: (0.0, 0), F16: (0.0, 0), Q8: (0.02, 128), Q8S: (0.02, 0)}
RNG = np.random.default_rng(1)


def build(type: OperandType, shape: tuple[int, ...], body: Callable[..., object]) -> Model:
    """A model of one input."""
    builder = nn.ModelBuilder("one")
    scale, zero_point = TYPES[type]
    x = builder.input("x", shape, type=type, scale=scale, zero_point=zero_point)
    builder.output("y", body(builder, x))  # type: ignore[arg-type]
    return builder.build()


def weights(builder: nn.ModelBuilder, type: OperandType, *shape: int) -> object:
    if type in (F32, F16):
        dtype = np.float32 if type == F32 else np.float16
        return builder.constant(RNG.standard_normal(shape).astype(dtype))
    numbers = RNG.integers(0, 256, shape)
    if type == Q8S:
        numbers = numbers - 128
    zero_point = 120 if type == Q8 else -8
    return builder.constant(numbers, type=type, scale=0.01, zero_point=zero_point)


def result(type: OperandType) -> dict[str, float]:
    return {} if type in (F32, F16) else {"scale": 0.1, "zero_point": 100 if type == Q8 else -28}


BODIES = {
    "conv": lambda b, x, t: b.conv_2d(
        x, weights(b, t, 5, 3, 3, 4), stride=2, activation="relu6", **result(t)
    ),
    "depthwise": lambda b, x, t: b.depthwise_conv_2d(
        x, weights(b, t, 1, 3, 3, 8), padding="valid", **result(t)
    ),
    "dense": lambda b, x, t: b.fully_connected(x, weights(b, t, 3, 144), **result(t)),
    "average": lambda b, x, t: b.average_pool_2d(x, 3, stride=2, padding="same"),
    "maximum": lambda b, x, t: b.max_pool_2d(x, 2),
    "sum": lambda b, x, t: b.add(x, x, activation="relu", **result(t)),
    "relu6": lambda b, x, t: b.relu6(x),
    "logistic": lambda b, x, t: b.logistic(x),
    "mean": lambda b, x, t: b.mean(x, [1, 2], keep_dims=True),
    "concatenation": lambda b, x, t: b.concatenation([x, x], 3),
    "pad": lambda b, x, t: b.pad(x, [[0, 0], [1, 2], [0, 1], [0, 0]]),
    "reshape": lambda b, x, t: b.reshape(x, (1, -1)),
    "chain": lambda b, x, t: b.pad(
        b.concatenation([b.max_pool_2d(x, 2), b.average_pool_2d(x, 2)], 3),
        [[0, 0], [1, 0], [0, 1], [2, 0]],
    ),
}


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
@pytest.mark.parametrize("name", BODIES)
def test_agrees_with_the_reference(name: str, type: OperandType) -> None:
    model = build(type, (1, 6, 6, 4), lambda b, x: BODIES[name](b, x, type))
    assert reasons(model) == [None] * len(model.main.operations)
    inputs = samples(model)
    (got,) = run(OnnxRuntimeEngine(), model, inputs)
    (wanted,) = run(ReferenceEngine(), model, inputs)
    if type in (F32, F16):
        tolerance = 1e-5 if type == F32 else 1e-2
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
    else:
        assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1


@pytest.mark.parametrize("type", [Q8, Q8S], ids=lambda type: type.name)
@pytest.mark.parametrize(("corners", "half"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("sizes", [(12, 12), (9, 4), (3, 17), (6, 6)])
def test_bilinear_bytes_are_cut_off(
    type: OperandType, corners: bool, half: bool, nchw: bool, sizes: tuple[int, int]
) -> None:
    """But for whole ones, which the reference has just below a whole number here and there."""

    def resized(b: nn.ModelBuilder, x: Any) -> object:
        kind = OperationType.RESIZE_BILINEAR
        return b.operation(kind, x, sizes[1], sizes[0], nchw, corners, half)

    model = build(type, (2, 6, 6, 6), resized)
    inputs = samples(model)
    (got,) = run(OnnxRuntimeEngine(), model, inputs)
    (wanted,) = run(ReferenceEngine(), model, inputs)
    apart = np.abs(got.astype(int) - wanted.astype(int))
    assert apart.max() <= 1
    assert np.count_nonzero(apart) <= apart.size // 10


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("sizes", [(6, 6), (12, 18), (8, 49), (1, 11), (4, 1008)])
def test_the_nearest_pixel_is_that_of_the_rule(
    type: OperandType, corners: bool, nchw: bool, sizes: tuple[int, int]
) -> None:
    """Where the engine divides by a rounded scale, 7 may become 6.9999995, whose floor is 6."""

    def resized(b: nn.ModelBuilder, x: Any) -> object:
        kind = OperationType.RESIZE_NEAREST_NEIGHBOR
        return b.operation(kind, x, sizes[1], sizes[0], nchw, corners, False)

    model = build(type, (1, 14, 14, 14), resized)
    inputs = samples(model)
    (got,) = run(OnnxRuntimeEngine(), model, inputs)
    (wanted,) = run(ReferenceEngine(), model, inputs)
    assert (got == wanted).all()


def gathering() -> Model:
    builder = nn.ModelBuilder("rows")
    places = builder.input("places", (2, 2), type=OperandType.TENSOR_INT32)
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    builder.output("y", builder.operation(OperationType.GATHER, table, 0, places))
    return builder.build()


def test_places_that_are_computed_are_looked_up() -> None:
    model, places = gathering(), np.array([[0, 3], [2, 2]], np.int32)
    (got,) = run(OnnxRuntimeEngine(), model, [places])
    (wanted,) = run(ReferenceEngine(), model, [places])
    assert (got == wanted).all()


@pytest.mark.parametrize("wrong", [-1, 4])
def test_places_beyond_the_end_fail(wrong: int) -> None:
    places = np.array([[0, wrong], [2, 2]], np.int32)
    for engine in (OnnxRuntimeEngine(), ReferenceEngine()):
        with pytest.raises((nn.GeneralFailure, nn.ModelError)):
            run(engine, gathering(), [places])


def recurrent(*, time_major: bool, peepholes: bool, type: OperandType = F32) -> Model:
    """An LSTM of 5 features and 4 units, whose states come in and go out."""
    builder = nn.ModelBuilder("lstm")
    dtype = np.float32 if type == F32 else np.float16
    x = builder.input("x", (6, 2, 5) if time_major else (2, 6, 5), type=type)
    states = [builder.input(name, (2, 4), type=type) for name in ("h", "c")]
    shapes = [(4, 5)] * 4 + [(4, 4)] * 4 + [(4,)] * 3 + [(4,)] * 4
    numbers: list[Any] = [RNG.standard_normal(shape).astype(dtype) for shape in shapes]
    if not peepholes:
        numbers[8:11] = [None] * 3
    scalars = [4, dtype(0), dtype(0), time_major]
    kind = OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM
    operands = [x, *numbers, None, None, *states, *scalars, *[None] * 4]
    results = builder.operation_outputs(kind, *operands, outputs=[None] * 3)
    for name, result in zip("yhc", results, strict=True):
        builder.output(f"new_{name}", result)
    return builder.build()


@pytest.mark.parametrize("time_major", [True, False])
@pytest.mark.parametrize("peepholes", [True, False])
def test_lstm_agrees_with_the_reference(time_major: bool, peepholes: bool) -> None:
    for type, tolerance in ((F32, 1e-5), (F16, 1e-2)):
        model = recurrent(time_major=time_major, peepholes=peepholes, type=type)
        inputs = samples(model)
        got, wanted = (
            run(engine, model, inputs) for engine in (OnnxRuntimeEngine(), ReferenceEngine())
        )
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_channels_stay_first_between_operations() -> None:
    model = build(
        F32,
        (1, 8, 8, 4),
        lambda b, x: b.relu(b.max_pool_2d(b.conv_2d(x, weights(b, F32, 4, 3, 3, 4)), 2)),
    )
    graph = onnx.load_model_from_string(lower(model)).graph
    kinds = [each.op_type for each in graph.node]
    assert kinds == ["Transpose", "Conv", "MaxPool", "Relu", "Transpose", "Identity"]


def test_unsigned_weights_are_shifted() -> None:
    model = build(
        Q8, (1, 144), lambda b, x: b.fully_connected(x, weights(b, Q8, 3, 144), **result(Q8))
    )
    graph = onnx.load_model_from_string(lower(model)).graph
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer]
    (matrix,) = [array for array in arrays if array.shape == (3, 144)]
    assert matrix.dtype == np.int8


def test_what_is_not_taken_says_why() -> None:
    builder = nn.ModelBuilder("rank")
    x = builder.input("x", (2, 3))
    rank = builder.operation(OperationType.RANK, x)
    builder.output("y", rank)
    (reason,) = reasons(builder.build())
    assert reason is not None
    assert "RANK" in reason


def test_a_file_stands_alone(tmp_path: Path) -> None:
    graph = message([node("Neg", ["x"], ["y"])], [("x", FLOAT, (2,))], [("y", FLOAT, (2,))])
    model = wrap(written(tmp_path, graph))
    engine = OnnxRuntimeEngine()
    assert engine.supported_operations(model) == [True]
    assert ReferenceEngine().supported_operations(model) == [False]


def test_one_answer_may_take_all_cores() -> None:
    model = build(F32, (1, 8), lambda b, x: b.relu(x))
    engine = OnnxRuntimeEngine()
    engine.cores = 3
    fast = engine.lowerings(model, ExecutionPreference.FAST_SINGLE_ANSWER)
    assert [lowering.threads for lowering in fast] == [3, 1]
    for preference in (ExecutionPreference.LOW_POWER, ExecutionPreference.SUSTAINED_SPEED):
        assert [each.threads for each in engine.lowerings(model, preference)] == [1]


def test_other_providers_are_named_where_they_are_missing() -> None:
    with pytest.raises(nn.InvalidArgument, match="TensorrtExecutionProvider.*only"):
        OnnxRuntimeEngine("onnxruntime-tensorrt")
    with pytest.raises(nn.InvalidArgument, match="onnxruntime-cuda"):
        OnnxRuntimeEngine("onnxruntime-abacus")
