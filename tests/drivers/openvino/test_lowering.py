"""Each family of operations on OpenVINO, in all types, against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.openvino import OpenVinoEngine
from nnasync._core.drivers.openvino.unsupported import reason
from nnasync._core.model.graph import Value
from nnasync.engine import Lowering
from nnasync.hal import Array, ChannelQuant, OperandType, OperationType
from tests.drivers.openvino.rig import (
    F16,
    F32,
    FAST,
    I8,
    QUANTIZATION,
    U8,
    check,
    given,
    model_of,
    random_inputs,
    results,
)

TYPES = (F32, F16, U8, I8)
BYTES = (U8, I8)
every_type = pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
every_byte = pytest.mark.parametrize("type", BYTES, ids=lambda type: type.name)
RNG = np.random.default_rng(3)


def weights(m: nn.ModelBuilder, type: OperandType, *shape: int, variable: bool = False) -> Value:
    """A filter with values of both signs, constant or not."""
    if variable:
        return given(m, type, *shape, name="filter")
    if type in BYTES:
        dtype = np.uint8 if type == U8 else np.int8
        value = RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape).astype(dtype)
        return m.constant(value, type=type, scale=0.02, zero_point=100 if type == U8 else -30)
    return m.constant(RNG.normal(size=shape).astype(np.float32), type=type)


def bias(m: nn.ModelBuilder, type: OperandType, channels: int, scale: float = 0.02) -> Value:
    values = RNG.normal(size=channels)
    if type in BYTES:
        whole = (values * 900).astype(np.int32)
        product = float(np.float32(QUANTIZATION[type][0]) * np.float32(scale))
        return m.constant(whole, type=OperandType.TENSOR_INT32, scale=product)
    return m.constant(values.astype(np.float32), type=type)


def output(type: OperandType, scale: float = 0.4) -> dict[str, Any]:
    """How a quantized output is stated."""
    return {"scale": scale, "zero_point": QUANTIZATION[type][1]} if type in BYTES else {}


@pytest.mark.parametrize("lowering", ["f32", "bf16", "int8", "int8-bf16"])
@pytest.mark.parametrize("activation", [0, 1, 3])
@every_byte
def test_quantized_convolution(type: OperandType, activation: int, lowering: str) -> None:
    def build(m: nn.ModelBuilder) -> Value:
        x, filter = given(m, type, 1, 9, 8, 5), weights(m, type, 7, 3, 3, 5)
        inputs = (x, filter, bias(m, type, 7), 1, 2, 1, activation)
        return m.operation(OperationType.CONV_2D, *inputs, **output(type))

    check(model_of(build), lowering=Lowering(lowering))


@every_type
@pytest.mark.parametrize("is_nchw", [False, True])
def test_convolutions(type: OperandType, is_nchw: bool) -> None:
    def build(m: nn.ModelBuilder) -> Sequence[Value]:
        x = given(m, type, *((2, 6, 9, 8) if is_nchw else (2, 9, 8, 6)))
        made = []
        for operation, shape, scalars in (
            (OperationType.CONV_2D, (4, 3, 2, 6), (0, 1, 1, 0, 2, 1, 1, is_nchw, 1, 2)),
            (OperationType.DEPTHWISE_CONV_2D, (1, 3, 3, 12), (1, 2, 2, 2, 0, is_nchw)),
            (OperationType.GROUPED_CONV_2D, (4, 3, 3, 3), (1, 1, 2, 2, 3, is_nchw)),
            (OperationType.TRANSPOSE_CONV_2D, (5, 3, 3, 6), (0, 1, 1, 0, 2, 2, 0, is_nchw)),
        ):
            channels = shape[3] if operation == OperationType.DEPTHWISE_CONV_2D else shape[0]
            inputs = (x, weights(m, type, *shape), bias(m, type, channels), *scalars)
            made.append(m.operation(operation, *inputs, **output(type)))
        return made

    check(model_of(build), rtol=1e-4)


@every_type
def test_variable_weights(type: OperandType) -> None:
    def build(m: nn.ModelBuilder) -> Value:
        x, filter = given(m, type, 1, 5, 5, 3), weights(m, type, 2, 3, 3, 3, variable=True)
        scale = QUANTIZATION[type][0] if type in BYTES else 0.0
        inputs = (x, filter, bias(m, type, 2, scale), 1, 1, 1, 0)
        return m.operation(OperationType.CONV_2D, *inputs, **output(type))

    check(model_of(build), rtol=1e-4)


@pytest.mark.parametrize("lowering", ["f32", "bf16", "int8", "int8-bf16"])
@pytest.mark.parametrize("pixels", [1, 4])
@every_byte
def test_scales_by_channel(type: OperandType, pixels: int, lowering: str) -> None:
    """Single pixels are where OpenVINO has forgotten to round."""

    def build(m: nn.ModelBuilder) -> Value:
        quant = ChannelQuant(scales=(0.01, 0.02, 0.03, 0.013), channel_dim=0)
        value = RNG.integers(-127, 128, (4, 1, 1, 16)).astype(np.int8)
        filter = m.constant(value, channel_quant=quant)
        zeros = m.constant(RNG.integers(-2000, 2000, 4).astype(np.int32))
        x = given(m, type, 1, pixels, pixels, 16)
        inputs = (x, filter, zeros, 1, 1, 1, 0)
        return m.operation(OperationType.CONV_2D, *inputs, **output(type, 0.1))

    check(model_of(build), lowering=Lowering(lowering))


@every_type
def test_dense(type: OperandType) -> None:
    def build(m: nn.ModelBuilder) -> Value:
        inputs = (given(m, type, 2, 3, 8), weights(m, type, 5, 12), bias(m, type, 5), 1)
        return m.operation(OperationType.FULLY_CONNECTED, *inputs, **output(type))

    check(model_of(build), rtol=1e-4)


@every_type
def test_pooling(type: OperandType) -> None:
    def build(m: nn.ModelBuilder) -> Sequence[Value]:
        x = given(m, type, 1, 7, 6, 3)
        kinds = [OperationType.AVERAGE_POOL_2D, OperationType.MAX_POOL_2D]
        kinds += [] if type in BYTES else [OperationType.L2_POOL_2D]
        return [m.operation(kind, x, 1, 2, 2, 3, 3, 1) for kind in kinds]

    check(model_of(build))


@every_type
def test_resize(type: OperandType) -> None:
    def build(m: nn.ModelBuilder) -> Sequence[Value]:
        x, made = given(m, type, 1, 4, 5, 3), []
        for kind in (OperationType.RESIZE_BILINEAR, OperationType.RESIZE_NEAREST_NEIGHBOR):
            for corners, centers in ((False, False), (True, False), (False, True)):
                made.append(m.operation(kind, x, 9, 7, False, corners, centers))
            made.append(m.operation(kind, x, 5, 7, False, False, False))
        return made

    check(model_of(build))


@every_type
def test_arithmetic(type: OperandType) -> None:
    def build(m: nn.ModelBuilder) -> Sequence[Value]:
        x, y = given(m, type, 2, 3, 4), given(m, type, 3, 4, name="y")
        kinds = [OperationType.ADD, OperationType.SUB, OperationType.MUL]
        return [m.operation(kind, x, y, 1, **output(type)) for kind in kinds] + [
            m.operation(kind, x, y, **output(type))
            for kind in (OperationType.MAXIMUM, OperationType.MINIMUM, OperationType.PRELU)
        ]

    check(model_of(build))


@pytest.mark.parametrize("type", [*TYPES, OperandType.TENSOR_INT32], ids=lambda type: type.name)
def test_comparisons(type: OperandType) -> None:
    def build(m: nn.ModelBuilder) -> Sequence[Value]:
        x, y = given(m, type, 20, 4), given(m, type, 4, name="y")
        names = ["EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"]
        return [m.operation(OperationType[name], x, y) for name in names]

    check(model_of(build))


@pytest.mark.parametrize("type", BYTES, ids=lambda type: type.name)
@pytest.mark.parametrize("scale", [1.3932846784591675, 0.05, 1.0232356786727905])
def test_computed_bytes_are_compared_exactly(type: OperandType, scale: float) -> None:
    """The same numbers, or zeros of two scales: both in bytes that nobody else reads."""
    zero_point = 118 if type == U8 else -10

    def build(m: nn.ModelBuilder) -> Sequence[Value]:
        x = m.input("x", (1, 1, 2, 200), type=type, scale=scale, zero_point=zero_point)
        same = m.operation(OperationType.AVERAGE_POOL_2D, x, 1, 1, 1, 1, 1, 0)
        zeros = m.operation(OperationType.SUB, x, x, 0, **output(type, 0.7))
        some = m.input("some", (200,), type=type, scale=0.3, zero_point=zero_point)
        return [
            m.operation(OperationType.EQUAL, same, x),
            m.operation(OperationType.GREATER_EQUAL, some, zeros),
            m.operation(OperationType.LESS, zeros, some),
        ]

    check(model_of(build))


def test_logic_and_selection() -> None:
    def build(m: nn.ModelBuilder) -> Sequence[Value]:
        p, q = (given(m, OperandType.TENSOR_BOOL8, 2, 4, name=name) for name in "pq")
        x, y = (given(m, F32, 2, 4, name=name) for name in "xy")
        axes = np.asarray([1], np.int32)
        return [
            m.operation(OperationType.LOGICAL_AND, p, q),
            m.operation(OperationType.LOGICAL_OR, p, q),
            m.operation(OperationType.LOGICAL_NOT, p),
            m.operation(OperationType.REDUCE_ALL, p, axes, True),
            m.operation(OperationType.REDUCE_ANY, p, axes, False),
            m.operation(OperationType.SELECT, p, x, y),
        ]

    check(model_of(build))


@every_type
def test_activations(type: OperandType) -> None:
    def build(m: nn.ModelBuilder) -> Sequence[Value]:
        x = given(m, type, 3, 40)
        names = ["RELU", "RELU1", "RELU6", "LOGISTIC", "TANH"]
        made = [m.operation(OperationType[name], x) for name in names]
        if type not in BYTES:
            made.append(m.operation(OperationType.HARD_SWISH, x))
        made.append(m.operation(OperationType.SOFTMAX, x, 0.5))
        return made

    check(model_of(build))


@every_byte
def test_quantized_hard_swish(type: OperandType) -> None:
    def build(m: nn.ModelBuilder) -> Value:
        return m.operation(OperationType.HARD_SWISH, given(m, type, 3, 40), **output(type, 0.03))

    check(model_of(build))


@pytest.mark.parametrize("type", [F32, F16], ids=lambda type: type.name)
def test_curves(type: OperandType) -> None:
    def build(m: nn.ModelBuilder) -> Sequence[Value]:
        x = given(m, type, 2, 5, 4, 3)
        y = m.operation(OperationType.ABS, x)
        names = ["EXP", "SIN", "FLOOR", "NEG", "SQRT", "RSQRT", "LOG"]
        made = [m.operation(OperationType[name], y) for name in names]
        made.append(m.operation(OperationType.POW, y, x))
        made.append(m.operation(OperationType.DIV, x, y, 0))
        made.append(m.operation(OperationType.LOG_SOFTMAX, x, 0.7, 2))
        made.append(m.operation(OperationType.ELU, x, 0.8))
        made.append(m.operation(OperationType.L2_NORMALIZATION, x, 1))
        made.append(m.operation(OperationType.INSTANCE_NORMALIZATION, x, 1.5, 0.2, 1e-3, False))
        scalars = (2, 1.5, 0.3, 0.6)
        for axis in (0, 3):
            inputs = (x, *scalars, axis)
            made.append(m.operation(OperationType.LOCAL_RESPONSE_NORMALIZATION, *inputs))
        return made

    check(model_of(build), rtol=2e-5)


@every_type
def test_reductions(type: OperandType) -> None:
    def build(m: nn.ModelBuilder) -> Sequence[Value]:
        x = given(m, type, 2, 5, 4, 3)
        made = [m.operation(OperationType.MEAN, x, [1, 2], keep) for keep in (0, 1)]
        names = ["REDUCE_MAX", "REDUCE_MIN"]
        names += [] if type in BYTES else ["REDUCE_SUM", "REDUCE_PROD"]
        made += [m.operation(OperationType[name], x, [-1, 0], False) for name in names]
        made += [m.operation(OperationType[name], x, 1) for name in ("ARGMAX", "ARGMIN")]
        return [*made, *m.operation_outputs(OperationType.TOPK_V2, x, 2)]

    check(model_of(build))


def test_places_of_equal_elements() -> None:
    """ARGMAX takes the first of equals, TOPK_V2 the last."""

    def build(m: nn.ModelBuilder) -> Sequence[Value]:
        x = given(m, F32, 1, 6)
        largest = m.operation_outputs(OperationType.TOPK_V2, x, 3)
        return [m.operation(OperationType.ARGMAX, x, 1), *largest]

    model = model_of(build)
    plan = OpenVinoEngine().compile(model, FAST)
    first, values, places = results(plan, model, [np.asarray([[1, 5, 2, 5, 5, 0]], np.float32)])
    assert first.tolist() == [1]
    assert values.tolist() == [[5, 5, 5]]
    assert places.tolist() == [[4, 3, 1]]


@every_type
def test_movement(type: OperandType) -> None:
    def build(m: nn.ModelBuilder) -> Sequence[Value]:
        x = given(m, type, 2, 4, 6, 8)
        made = [
            m.operation(OperationType.RESHAPE, x, np.asarray([4, -1], np.int32)),
            m.operation(OperationType.TRANSPOSE, x, np.asarray([3, 0, 2, 1], np.int32)),
            m.operation(OperationType.PAD, x, [[0, 1], [2, 0], [0, 0], [1, 1]]),
            m.operation(OperationType.SLICE, x, [0, 1, 2, 0], [2, -1, 3, 8]),
            m.operation(OperationType.EXPAND_DIMS, x, 1),
            m.operation(OperationType.TILE, x, [1, 2, 1, 2]),
            m.operation(OperationType.GATHER, x, 2, [[5, 0], [1, 1]]),
            m.operation(OperationType.CHANNEL_SHUFFLE, x, 4, 3),
            m.operation(OperationType.DEPTH_TO_SPACE, x, 2),
            m.operation(OperationType.SPACE_TO_DEPTH, x, 2),
            m.operation(OperationType.BATCH_TO_SPACE_ND, x, [1, 2]),
            m.operation(OperationType.SPACE_TO_BATCH_ND, x, [2, 2], [[1, 1], [0, 2]]),
            m.operation(OperationType.CONCATENATION, x, x, 3, **_like(x)),
            m.operation(
                OperationType.STRIDED_SLICE, x, [1, 3, 0, 1], [0, 0, 6, 7], [-1, -2, 3, 2], 0, 1, 0
            ),
        ]
        return [*made, *m.operation_outputs(OperationType.SPLIT, x, 3, 2, outputs=[None, None])]

    check(model_of(build), steps=0)


def _like(value: Value) -> dict[str, Any]:
    return {"like": value} if value.type in BYTES else {}


@every_byte
def test_conversions(type: OperandType) -> None:
    def build(m: nn.ModelBuilder) -> Sequence[Value]:
        x, y = given(m, type, 2, 30), given(m, F32, 2, 30, name="y")
        other = m.operation(OperationType.QUANTIZE, y, output=given(m, type, 2, 30, name="z"))
        joined = m.operation(OperationType.CONCATENATION, x, other, 1, **output(type, 0.1))
        return [m.operation(OperationType.DEQUANTIZE, x), other, joined]

    check(model_of(build))


def test_operations_that_only_differ_by_shape_in_a_chain() -> None:
    """Images that stay NCHW from one operation to the next, and one that must not."""

    def build(m: nn.ModelBuilder) -> Value:
        x = given(m, U8, 1, 8, 8, 3)
        filter = weights(m, U8, 6, 3, 3, 3)
        inputs = (x, filter, bias(m, U8, 6), 1, 1, 1, 0)
        y = m.operation(OperationType.CONV_2D, *inputs, **output(U8))
        z = m.operation(OperationType.MAX_POOL_2D, y, 1, 1, 1, 2, 2, 0)
        joined = m.operation(OperationType.CONCATENATION, y, z, 3, like=y)
        padded = m.operation(OperationType.PAD, joined, [[0, 0], [1, 0], [0, 2], [0, 0]])
        mean = m.operation(OperationType.MEAN, padded, [1, 2], 0)
        return m.operation(OperationType.RESHAPE, mean, np.asarray([3, 4], np.int32))

    check(model_of(build))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda m: m.operation(OperationType.RANK, given(m, F32, 2)), "RANK is not lowered"),
        (
            lambda m: m.operation(
                OperationType.MUL,
                given(m, OperandType.TENSOR_INT32, 2),
                given(m, OperandType.TENSOR_INT32, 2, name="y"),
                0,
            ),
            "integers in float32",
        ),
    ],
)
def test_what_is_not_taken_has_a_reason(build: Any, words: str) -> None:
    model = model_of(build)
    assert OpenVinoEngine().supported_operations(model) == [False]
    told = reason(model, 0)
    assert told is not None
    assert words in told


def test_bfloat16_is_exact_for_bytes() -> None:
    """Products of bytes are whole numbers that bfloat16 and its float32 sums hold."""

    def build(m: nn.ModelBuilder) -> Value:
        x = given(m, U8, 1, 12, 12, 8)
        for kind, shape, scalars in (
            (OperationType.CONV_2D, (24, 1, 1, 8), (1, 1, 1, 3)),
            (OperationType.DEPTHWISE_CONV_2D, (1, 3, 3, 24), (1, 2, 2, 1, 3)),
            (OperationType.CONV_2D, (16, 1, 1, 24), (1, 1, 1, 3)),
        ):
            filter, channels = weights(m, U8, *shape), max(shape[0], shape[3] * (shape[0] == 1))
            product = float(np.float32(x.scale) * np.float32(0.02))
            sums = m.constant(
                RNG.integers(-90, 90, channels).astype(np.int32),
                type=OperandType.TENSOR_INT32,
                scale=product,
            )
            x = m.operation(kind, x, filter, sums, *scalars, scale=6 / 255, zero_point=0)
        return x

    model = model_of(build)
    inputs = random_inputs(model)
    made: list[Array] = []
    for name in ("f32", "bf16"):
        made += results(OpenVinoEngine().compile(model, FAST, Lowering(name)), model, inputs)
    assert np.array_equal(made[0], made[1])
