"""Each operation on LiteRT against the reference device, in the types that it takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tflite

import nnasync as nn
from nnasync._core.accuracy import Criterion
from nnasync._core.drivers.litert.litert_programs import LiteRTPrograms, reasons
from nnasync._core.model import Value
from nnasync.hal import Array, ChannelQuant, Model, OperandType, OperationType
from nnasync.kernels import Tensor
from tests.drivers.litert.rig import REAL, SIGNED, UNSIGNED, agree, need_litert, tensor

need_litert()

O = OperationType  # noqa: E741
I32, B8, F16 = (
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_BOOL8,
    OperandType.TENSOR_FLOAT16,
)
ALL = (REAL, UNSIGNED, SIGNED)
IMAGE = (1, 6, 8, 4)
Parameters = tuple[object, ...]


def integers(*values: int) -> Array:
    return np.array(values, np.int32)


def model_of(
    type: int,
    data: OperandType,
    shapes: tuple[tuple[int, ...], ...],
    parameters: Parameters,
    scale: tuple[float, int] | None,
) -> Model:
    """One operation: tensors of one type, then parameters."""
    builder = nn.ModelBuilder("one")
    inputs = [tensor(builder, f"x{i}", shape, data) for i, shape in enumerate(shapes)]
    quantized = data in (UNSIGNED, SIGNED) and scale is not None
    scales: dict[str, float | int] = {}
    if quantized and scale is not None:
        scales = {"scale": scale[0], "zero_point": scale[1] - (128 if data == SIGNED else 0)}
    result = builder.operation(type, *inputs, *parameters, **scales)  # type: ignore[arg-type]
    builder.output("y", result)
    return builder.build()


FREE, LIKE = (0.3, 100), None
CASES: list[
    tuple[OperationType, tuple[OperandType, ...], int, Parameters, tuple[float, int] | None]
]
CASES = [
    (O.ADD, (*ALL, I32, F16), 2, (0,), FREE),
    (O.SUB, (*ALL, I32, F16), 2, (0,), FREE),
    (O.MUL, (*ALL, I32, F16), 2, (0,), FREE),
    (O.DIV, (REAL, F16), 2, (1,), FREE),
    (O.POW, (REAL, F16), 2, (), LIKE),
    (O.MAXIMUM, (*ALL, I32, F16), 2, (), FREE),
    (O.MINIMUM, (*ALL, I32, F16), 2, (), FREE),
    (O.PRELU, (*ALL, F16), 2, (), FREE),
    *[
        (type, (*ALL, I32, B8, F16), 2, (), LIKE)
        for type in (O.EQUAL, O.NOT_EQUAL, O.LESS, O.LESS_EQUAL, O.GREATER, O.GREATER_EQUAL)
    ],
    (O.LOGICAL_AND, (B8,), 2, (), LIKE),
    (O.LOGICAL_OR, (B8,), 2, (), LIKE),
    (O.LOGICAL_NOT, (B8,), 1, (), LIKE),
    *[(type, (REAL, F16), 1, (), LIKE) for type in (O.EXP, O.FLOOR, O.LOG, O.RSQRT, O.SIN, O.SQRT)],
    (O.ABS, (REAL, F16, I32), 1, (), LIKE),
    (O.NEG, (REAL, F16, I32), 1, (), LIKE),
    *[(type, (*ALL, F16), 1, (), LIKE) for type in (O.RELU, O.RELU1, O.RELU6)],
    (O.LOGISTIC, (*ALL, F16), 1, (), (1 / 256, 0)),
    (O.TANH, (*ALL, F16), 1, (), (1 / 128, 128)),
    (O.HARD_SWISH, (*ALL, F16), 1, (), FREE),
    (O.ELU, (REAL, F16), 1, (1.0,), LIKE),
    (O.ELU, (REAL,), 1, (0.5,), LIKE),
    (O.AVERAGE_POOL_2D, (*ALL, F16), 1, (1, 2, 2, 3, 3, 3), LIKE),
    (O.AVERAGE_POOL_2D, ALL, 1, (1, 0, 2, 1, 2, 1, 3, 3, 0), LIKE),
    (O.MAX_POOL_2D, (*ALL, F16), 1, (2, 2, 2, 3, 3, 1), LIKE),
    (O.MAX_POOL_2D, ALL, 1, (1, 0, 2, 1, 2, 1, 3, 3, 0), LIKE),
    (O.L2_POOL_2D, (REAL, F16), 1, (1, 2, 2, 3, 3, 0), LIKE),
    (O.L2_POOL_2D, (REAL,), 1, (1, 0, 2, 1, 2, 1, 3, 3, 0), LIKE),
    (O.MAX_POOL_2D, ALL, 1, (2, 1, 1, 2, 2, 0, True), LIKE),
    (O.SOFTMAX, (*ALL, F16), 1, (0.7,), (1 / 256, 0)),
    (O.SOFTMAX, ALL, 1, (0.7, 1), (1 / 256, 0)),
    (O.LOG_SOFTMAX, (REAL, F16), 1, (0.7, 2), LIKE),
    (O.L2_NORMALIZATION, (*ALL, F16), 1, (), (1 / 128, 128)),
    (O.L2_NORMALIZATION, ALL, 1, (1,), (1 / 128, 128)),
    (O.LOCAL_RESPONSE_NORMALIZATION, (REAL, F16), 1, (2, 1.0, 0.5, 0.7), LIKE),
    (O.INSTANCE_NORMALIZATION, (REAL,), 1, (1.5, 0.5, 1e-3, False), LIKE),
    (O.MEAN, (*ALL, F16), 1, (integers(1, -2), 1), LIKE),
    (O.MEAN, ALL, 1, (integers(0, 1, 2, 3), 0), LIKE),
    (O.REDUCE_MAX, (*ALL, F16), 1, (integers(1, 2), False), LIKE),
    (O.REDUCE_MIN, (*ALL, F16), 1, (integers(0, 1, 2, 3), False), LIKE),
    (O.REDUCE_SUM, (REAL, F16), 1, (integers(1), True), LIKE),
    (O.REDUCE_PROD, (REAL,), 1, (integers(3), False), LIKE),
    (O.REDUCE_ALL, (B8,), 1, (integers(3), False), LIKE),
    (O.REDUCE_ANY, (B8,), 1, (integers(3, 2), False), LIKE),
    (O.ARGMAX, (*ALL, F16, I32), 1, (-1,), LIKE),
    (O.ARGMIN, (*ALL, F16, I32), 1, (1,), LIKE),
    (O.RESHAPE, (*ALL, F16), 1, (integers(8, -1),), LIKE),
    (O.SQUEEZE, (*ALL, F16), 1, (integers(0),), LIKE),
    (O.EXPAND_DIMS, (*ALL, F16, I32), 1, (-2,), LIKE),
    (O.TRANSPOSE, (*ALL, F16), 1, (integers(3, 0, 2, 1),), LIKE),
    (O.SLICE, (*ALL, F16, I32), 1, (integers(0, 1, 2, 0), integers(1, -1, 3, 2)), LIKE),
    (
        O.STRIDED_SLICE,
        (*ALL, F16),
        1,
        (integers(0, 4, -3, 3), integers(1, 1, 9, -9), integers(1, -1, 2, -2), 0, 1, 0),
        LIKE,
    ),
    (
        O.STRIDED_SLICE,
        ALL,
        1,
        (integers(0, 4, 7, 0), integers(1, 1, 9, 1), integers(1, 1, -3, 1), 1, 6, 9),
        LIKE,
    ),
    (O.PAD, (*ALL, F16), 1, (integers(0, 0, 1, 2, 0, 1, 0, 0).reshape(4, 2),), LIKE),
    (O.DEPTH_TO_SPACE, (*ALL, F16), 1, (2,), LIKE),
    (O.SPACE_TO_DEPTH, (*ALL, F16), 1, (2, False), LIKE),
    (
        O.SPACE_TO_BATCH_ND,
        (*ALL, F16),
        1,
        (integers(2, 3), integers(0, 0, 1, 0).reshape(2, 2)),
        LIKE,
    ),
    (O.CHANNEL_SHUFFLE, (*ALL, F16), 1, (2, -1), LIKE),
    (O.CONCATENATION, (*ALL, F16), 2, (3,), FREE),
    (O.TILE, (*ALL, F16, I32), 1, (integers(1, 2, 1, 3),), LIKE),
    (O.GATHER, (*ALL, F16, I32), 1, (2, integers(3, 0, 7)), LIKE),
    (O.RESIZE_BILINEAR, (*ALL, F16), 1, (5, 9), LIKE),
    (O.RESIZE_BILINEAR, ALL, 1, (1.7, 0.6, True, False, True), LIKE),
    (O.RESIZE_NEAREST_NEIGHBOR, (*ALL, F16), 1, (5, 9, False, True, False), LIKE),
    (O.DEQUANTIZE, (UNSIGNED, SIGNED), 1, (), LIKE),
]


@pytest.mark.parametrize(
    ("type", "data", "count", "parameters", "scale"),
    [
        pytest.param(type, data, count, parameters, scale, id=f"{type.name}-{data.name[7:]}-{i}")
        for i, (type, kinds, count, parameters, scale) in enumerate(CASES)
        for data in kinds
    ],
)
def test_operation(
    type: OperationType,
    data: OperandType,
    count: int,
    parameters: Parameters,
    scale: tuple[float, int] | None,
) -> None:
    if data == F16:
        parameters = tuple(np.float16(p) if isinstance(p, float) else p for p in parameters)
    agree(model_of(type, data, (IMAGE,) * count, parameters, scale))


# -- convolutions and dense layers

WINDOWS: dict[str, Parameters] = {
    "same": (1, 2, 2),
    "valid": (2, 1, 1),
    "explicit": (1, 0, 2, 1, 2, 1),
}


def weights(
    builder: nn.ModelBuilder,
    data: OperandType,
    shape: tuple[int, ...],
    bias_size: int,
    kind: str,
) -> list[Value]:
    """A filter and a bias: constant, per channel, with a zero point or computed by nobody."""
    random = np.random.default_rng(7)
    if kind == "variable":
        filter = tensor(builder, "filter", shape, data)
        if data == REAL:
            return [filter, builder.input("bias", (bias_size,))]
        bias = np.full(bias_size, 50, np.int32)
        return [filter, builder.constant(bias, scale=0.1 * 0.1, type=I32)]
    if data == REAL:
        values = random.uniform(-1, 1, shape).astype(np.float32)
        return [builder.constant(values), builder.constant(np.ones(bias_size, np.float32))]
    bias = random.integers(-200, 200, bias_size, np.int32)
    if kind == "channels":
        dimension = shape.index(bias_size) if shape[0] == bias_size else len(shape) - 1
        quant = ChannelQuant(tuple(0.02 * (i + 1) for i in range(bias_size)), dimension)
        values = random.integers(-128, 128, shape).astype(np.int8)
        return [builder.constant(values, channel_quant=quant), builder.constant(bias, type=I32)]
    zero = {"constant": 128, "shifted": 100}[kind] - (128 if data == SIGNED else 0)
    packed: Array = random.integers(0, 256, shape).astype(np.uint8)
    if data == SIGNED:
        packed = (packed ^ np.uint8(128)).view(np.int8)
    filter = builder.constant(packed, type=data, scale=0.05, zero_point=zero)
    return [filter, builder.constant(bias, type=I32, scale=0.1 * 0.05)]


KINDS = [
    (REAL, "constant"),
    (REAL, "variable"),
    *[
        (data, kind)
        for data in (UNSIGNED, SIGNED)
        for kind in ("constant", "shifted", "channels", "variable")
    ],
]


@pytest.mark.parametrize(("data", "kind"), KINDS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("layout", [False, True])
@pytest.mark.parametrize(
    ("type", "shape", "channels", "middle"),
    [
        (O.CONV_2D, (5, 3, 3, 4), 5, ()),
        (O.DEPTHWISE_CONV_2D, (1, 3, 3, 8), 8, (2,)),
        (O.GROUPED_CONV_2D, (6, 3, 3, 2), 6, (2,)),
        (O.TRANSPOSE_CONV_2D, (5, 3, 3, 4), 5, ()),
    ],
    ids=["conv", "depthwise", "grouped", "transpose"],
)
def test_convolution(
    type: OperationType,
    shape: tuple[int, ...],
    channels: int,
    middle: Parameters,
    window: str,
    data: OperandType,
    kind: str,
    layout: bool,
) -> None:
    builder = nn.ModelBuilder("convolution")
    image = (1, 4, 6, 8) if layout else IMAGE
    x = tensor(builder, "x", image, data)
    inputs: list[object] = [x, *weights(builder, data, shape, channels, kind)]
    if type == O.TRANSPOSE_CONV_2D and window != "explicit":
        inputs.append(integers(1, 12, 16, 5))
    scales = {"scale": 0.7, "zero_point": 3} if data != REAL else {}
    y = builder.operation(type, *inputs, *WINDOWS[window], *middle, 1, layout, **scales)  # type: ignore[arg-type]
    builder.output("y", y)
    agree(builder.build())


@pytest.mark.parametrize(("data", "kind"), [each for each in KINDS if each[1] != "channels"])
def test_dense(data: OperandType, kind: str) -> None:
    builder = nn.ModelBuilder("dense")
    x = tensor(builder, "x", (3, 2, 8), data)
    scales = {"scale": 0.7, "zero_point": 3} if data != REAL else {}
    filter = weights(builder, data, (5, 8), 5, kind)
    builder.output("y", builder.operation(O.FULLY_CONNECTED, x, *filter, 1, **scales))  # type: ignore[arg-type]
    agree(builder.build())


# -- what is peculiar


@pytest.mark.parametrize("data", [REAL, F16, I32, UNSIGNED])
@pytest.mark.parametrize("target", [REAL, F16, I32, UNSIGNED])
def test_cast_is_limited_and_cut_off(data: OperandType, target: OperandType) -> None:
    builder = nn.ModelBuilder("cast")
    x = tensor(builder, "x", (1, 6), data)
    scales = {"scale": 0.1, "zero_point": 128} if target == UNSIGNED else {}
    wanted = Tensor(type=target, shape=(1, 6), **scales)  # type: ignore[arg-type]
    builder.output("y", builder.operation(O.CAST, x, output=wanted))
    dtype = x.tensor.dtype
    numbers = [0, 1, 3, 99, 254, 255] if dtype == np.uint8 else [-7.6, -1, 0.6, 5.5, 255.9, 300]
    agree(builder.build(), [np.array([numbers], dtype)])


@pytest.mark.parametrize("data", [UNSIGNED, SIGNED])
@pytest.mark.parametrize(
    ("pads", "stride", "side"),
    [
        ((0, 0, 0, 0), 1, 2),
        ((1, 0, 1, 0), 1, 2),
        ((1, 1, 1, 1), 2, 3),
        ((0, 2, 1, 0), 2, 4),
        ((30, 31, 31, 30), 3, 40),
    ],
)
@pytest.mark.parametrize("fused", range(4))
def test_averages_of_bytes_are_exact(
    data: OperandType, pads: tuple[int, ...], stride: int, side: int, fused: int
) -> None:
    """At halves, too, whether the engine has the padding as a scheme or as an operator."""
    sides = (stride, stride, side, side)
    model = model_of(O.AVERAGE_POOL_2D, data, ((1, 12, 12, 20),), (*pads, *sides, fused), LIKE)
    agree(model, criterion=Criterion())


@pytest.mark.parametrize("data", ALL)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("sizes", [(1008, 2), (5, 1008), (418, 3), (600, 600)])
def test_the_nearest_pixel_is_that_of_the_rule(
    data: OperandType, corners: bool, sizes: tuple[int, int]
) -> None:
    """The engine has 16 bits for the scale of bytes, too few for the last pixels of long rows."""
    parameters = (*sizes, False, corners, False)
    model = model_of(O.RESIZE_NEAREST_NEIGHBOR, data, ((1, 5, 209, 1),), parameters, LIKE)
    agree(model, criterion=Criterion())


@pytest.mark.parametrize("data", ALL)
def test_select_brings_both_to_one_scale(data: OperandType) -> None:
    builder = nn.ModelBuilder("select")
    condition = builder.input("condition", (2, 9), type=B8)
    a, b = tensor(builder, "a", (2, 9), data), tensor(builder, "b", (2, 9), data)
    scales = {"scale": 0.3, "zero_point": 10} if data != REAL else {}
    builder.output("y", builder.operation(O.SELECT, condition, a, b, **scales))  # type: ignore[arg-type]
    agree(builder.build())


def test_a_constant_is_dequantized_for_everybody() -> None:
    builder = nn.ModelBuilder("unpacked")
    x = builder.input("x", (1, 4))
    packed = builder.constant(np.array([[1, 2, 250, 4]], np.uint8), scale=0.5, zero_point=3)
    real = builder.operation(O.DEQUANTIZE, packed)
    builder.output("sum", builder.add(x, real))
    builder.output("real", real)
    found = agree(builder.build())
    assert found[1].tolist() == [[-1, -0.5, 123.5, 0.5]]


Refused = Callable[[nn.ModelBuilder], Value]


def _power_of(scale: float) -> Refused:
    def build(builder: nn.ModelBuilder) -> Value:
        x = builder.input("x", (1, 4), type=UNSIGNED, scale=scale, zero_point=0)
        return builder.tanh(x)

    return build


def _sum_of(scale: float) -> Refused:
    def build(builder: nn.ModelBuilder) -> Value:
        x = builder.input("x", (1, 4), type=UNSIGNED, scale=scale, zero_point=0)
        return builder.add(x, x, scale=1.0, zero_point=0)

    return build


@pytest.mark.parametrize(
    ("refused", "taken", "reason"),
    [(_power_of(8.0), _power_of(7.9), "shift"), (_sum_of(64.0), _sum_of(63.0), "far above")],
)
def test_scales_that_overflow_in_the_engine_are_refused(
    refused: Refused, taken: Refused, reason: str
) -> None:
    for build, supported in ((refused, False), (taken, True)):
        builder = nn.ModelBuilder("limits")
        builder.output("y", build(builder))
        (found,) = reasons(builder.build())
        assert (found is None) == supported
        assert supported or reason in (found or "")
        if supported:
            agree(builder.build())


def test_a_computed_parameter_is_refused() -> None:
    builder = nn.ModelBuilder("dynamic")
    x, offset = builder.input("x", (1, 4)), builder.input("offset", (2,), type=I32)
    begin = builder.operation(O.ADD, offset, offset, 0)
    wanted = Tensor(type=REAL, shape=(1, 2))
    builder.output("y", builder.operation(O.SLICE, x, begin, integers(1, 2), output=wanted))
    assert reasons(builder.build()) == [None, "begin is computed"]


def test_constants_are_not_cast_by_the_engine() -> None:
    """Where XNNPACK runs parts of a graph, LiteRT loses what a cast of a constant gave."""
    builder = nn.ModelBuilder("comparison")
    x = builder.input("x", (1, 4), type=B8)
    builder.output("y", builder.operation(O.LESS, x, np.array([[True, False, True, False]])))
    model = builder.build()
    agree(model, [np.array([[True, True, False, False]])])
    program = LiteRTPrograms(model, delegated=True).program(((1, 4),))
    file = tflite.Model.GetRootAs(program.content, 0)
    codes = [file.OperatorCodes(i).BuiltinCode() for i in range(file.OperatorCodesLength())]
    graph = file.Subgraphs(0)
    used = [codes[graph.Operators(i).OpcodeIndex()] for i in range(graph.OperatorsLength())]
    assert used.count(tflite.BuiltinOperator.CAST) == 1


@pytest.mark.parametrize(("outputs", "reason"), [(2, None), (7, "more outputs than cells")])
def test_lstm_that_projects_to_more_than_its_cells_is_refused(
    outputs: int, reason: str | None
) -> None:
    """The engine writes beyond its memory there."""
    batch, size, cells = 9, 3, 4
    builder = nn.ModelBuilder("lstm")
    x = builder.input("x", (batch, size))

    def weights(*shape: int) -> Array:
        return np.full(shape, 0.1, np.float32)

    results = builder.operation_outputs(
        O.LSTM,
        x,
        *[weights(cells, size)] * 4,
        *[weights(cells, outputs)] * 4,
        *[weights(cells)] * 7,
        weights(outputs, cells),
        weights(outputs),
        builder.input("h", (batch, outputs)),
        builder.input("c", (batch, cells)),
        np.int32(4),
        np.float32(0),
        np.float32(0),
    )
    for number, result in enumerate(results):
        builder.output(f"y{number}", result)
    assert reasons(builder.build()) == [reason]
