"""Cells and convolutions as matrix products on LiteRT against the reference device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflite

import nnasync as nn
from nnasync._core.accuracy import Criterion
from nnasync._core.drivers.litert import LiteRTEngine
from nnasync._core.drivers.litert.litert_programs import LiteRTPrograms, has_products
from nnasync._core.model import Value
from nnasync.engine import Lowering
from nnasync.hal import (
    Array,
    ChannelQuant,
    ExecutionPreference,
    Model,
    OperandType,
    OperationType,
    Shape,
)
from nnasync.kernels import Tensor
from tests.drivers.litert.rig import PRODUCTS, REAL, SIGNED, UNSIGNED, XNNPACK, agree, need_litert

need_litert()

SIZE, CELLS, RESULTS = 5, 7, 6
RELU, RELU6, TANH = 1, 3, 4
CLOSE = Criterion(atol=1e-5, rtol=1e-5)


class Weights:
    """Random constants, or inputs for a share of them."""

    def __init__(self, builder: nn.ModelBuilder, *, constant: bool = True) -> None:
        self._builder = builder
        self._random = np.random.default_rng(7)
        self._constant = constant
        self._count = 0

    def __call__(self, *shape: int) -> Array | Value:
        self._count += 1
        if not self._constant:
            return self._builder.input(f"w{self._count}", shape)
        return self._random.uniform(-1, 1, shape).astype(np.float32)


def lstm(
    *,
    batches: int = 1,
    is_coupled: bool = False,
    peepholes: bool = True,
    projects: bool = True,
    activation: int = TANH,
    clips: tuple[float, float] = (0.0, 0.0),
    is_time_major: bool | None = None,
    steps: int = 1,
    constant: bool = True,
    norms: bool = False,
) -> Model:
    """One step of an LSTM, or a sequence of steps where `is_time_major` is given."""
    builder = nn.ModelBuilder("lstm")
    weights, results = Weights(builder, constant=constant), RESULTS if projects else CELLS
    shape: Shape = (batches, SIZE)
    if is_time_major is not None:
        shape = (steps, batches, SIZE) if is_time_major else (batches, steps, SIZE)
    gates = range(4)
    inputs: list[Any] = [
        builder.input("x", shape),
        *(None if is_coupled and not gate else weights(CELLS, SIZE) for gate in gates),
        *(None if is_coupled and not gate else weights(CELLS, results) for gate in gates),
        *(weights(CELLS) if peepholes and (gate or not is_coupled) else None for gate in (0, 1, 3)),
        *(None if is_coupled and not gate else weights(CELLS) for gate in gates),
        weights(RESULTS, CELLS) if projects else None,
        weights(RESULTS) if projects else None,
        builder.input("h", (batches, results)),
        builder.input("c", (batches, CELLS)),
        np.int32(activation),
        *map(np.float32, clips),
    ]
    type = OperationType.LSTM
    if is_time_major is not None:
        type = OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM
        inputs.append(np.bool_(is_time_major))
    if norms:
        inputs += [None if is_coupled and not gate else weights(CELLS) for gate in gates]
    elif is_time_major is not None:
        inputs += [None] * 4
    count = 4 if is_time_major is None else 3
    found = builder.operation_outputs(type, *inputs, outputs=[None] * count)
    # The first output of an LSTM is scratch.
    return _with_outputs(builder, found[is_time_major is None :])


def rnn(*, batches: int, activation: int, is_time_major: bool | None = None) -> Model:
    builder = nn.ModelBuilder("rnn")
    weights, state = Weights(builder), (batches, CELLS)
    shape: Shape = (batches, SIZE)
    if is_time_major is not None:
        shape = (1, batches, SIZE) if is_time_major else (batches, 1, SIZE)
    inputs: list[Any] = [
        builder.input("x", shape),
        weights(CELLS, SIZE),
        weights(CELLS, CELLS),
        weights(CELLS),
        builder.input("h", state),
        np.int32(activation),
    ]
    type = OperationType.RNN
    if is_time_major is not None:
        type = OperationType.UNIDIRECTIONAL_SEQUENCE_RNN
        inputs.append(np.int32(is_time_major))
    first = Tensor(type=REAL, shape=(*shape[:-1], CELLS) if is_time_major is not None else state)
    second = Tensor(type=REAL, shape=state)
    return _with_outputs(builder, builder.operation_outputs(type, *inputs, outputs=[first, second]))


def _with_outputs(builder: nn.ModelBuilder, results: tuple[Value, ...]) -> Model:
    for number, result in enumerate(results):
        builder.output(f"y{number}", result)
    return builder.build()


def operators(model: Model) -> set[int]:
    """The operators of the file that a model becomes."""
    source = LiteRTPrograms(model, delegated=True, products=True)
    file = tflite.Model.GetRootAs(source.program(source.usual()).content, 0)
    return {file.OperatorCodes(i).BuiltinCode() for i in range(file.OperatorCodesLength())}


@pytest.mark.parametrize("is_coupled", [False, True])
@pytest.mark.parametrize("peepholes", [False, True])
@pytest.mark.parametrize("projects", [False, True])
@pytest.mark.parametrize("is_time_major", [None, False, True])
def test_lstm(*, is_coupled: bool, peepholes: bool, projects: bool, is_time_major: bool) -> None:
    model = lstm(
        batches=2,
        is_coupled=is_coupled,
        peepholes=peepholes,
        projects=projects,
        is_time_major=is_time_major,
    )
    cells = {tflite.BuiltinOperator.LSTM, tflite.BuiltinOperator.UNIDIRECTIONAL_SEQUENCE_LSTM}
    assert not operators(model) & cells
    agree(model, criterion=CLOSE, lowerings=(XNNPACK,))


@pytest.mark.parametrize("activation", [RELU, RELU6, TANH])
def test_clips_and_activations_of_cells(activation: int) -> None:
    state, cells, _ = agree(
        lstm(activation=activation, clips=(0.4, 0.05)), criterion=CLOSE, lowerings=(XNNPACK,)
    )
    assert np.abs(state).max() == np.float32(0.05)
    assert np.abs(cells).max() == np.float32(0.4)
    _, cells, _ = agree(lstm(activation=activation), criterion=CLOSE, lowerings=(XNNPACK,))
    assert np.abs(cells).max() > 0.4


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("activation", [0, RELU, TANH])
@pytest.mark.parametrize("is_time_major", [None, False, True])
def test_rnn(batches: int, activation: int, *, is_time_major: bool | None) -> None:
    model = rnn(batches=batches, activation=activation, is_time_major=is_time_major)
    assert tflite.BuiltinOperator.FULLY_CONNECTED in operators(model)
    agree(model, criterion=CLOSE, lowerings=(XNNPACK,))


def test_state_goes_round() -> None:
    """Cells as products carry a stream as the engine's own do."""
    model = lstm(is_coupled=True)
    main = model.main
    random = np.random.default_rng(3)
    state = [np.zeros(main.operands[index].dimensions, np.float32) for index in main.input_indexes]
    for _ in range(5):
        state[0] = random.uniform(-1, 1, (1, SIZE)).astype(np.float32)
        state[1], state[2], _ = agree(model, state, criterion=CLOSE, lowerings=(XNNPACK,))
    assert np.abs(state[1]).max() > 0.01


@pytest.mark.parametrize(
    "model",
    [
        lstm(is_time_major=True, steps=2),
        lstm(norms=True),
        lstm(constant=False),
    ],
    ids=["two steps", "layer normalization", "weights of the run"],
)
def test_what_does_not_become_products(model: Model) -> None:
    assert not has_products(model)
    assert len(LiteRTEngine().lowerings(model, ExecutionPreference.SUSTAINED_SPEED)) == 1


def convolution(
    data: OperandType,
    *,
    depthwise: bool,
    per_channel: bool = False,
    padding: tuple[int, ...] = (1,),
    strides: tuple[int, int] = (2, 1),
    dilations: tuple[int, int] = (1, 1),
    is_nchw: bool = False,
    shape: tuple[int, int, int] = (2, 9, 12),
    taps: tuple[int, int] = (4, 3),
    activation: int = 1,
) -> Model:
    """A convolution of an image with one channel by three filters; strides are width, height."""
    builder = nn.ModelBuilder("convolution")
    random, filters = np.random.default_rng(5), 3
    batches, height, width = shape
    image = (batches, 1, height, width) if is_nchw else (batches, height, width, 1)
    of_image: dict[str, Any] = {}
    if data != REAL:
        of_image = {"scale": 0.1, "zero_point": 128 if data == UNSIGNED else 3}
    x = builder.input("x", image, type=data, **of_image)
    weights = (1, *taps, filters) if depthwise else (filters, *taps, 1)
    bias_shape = (filters,)
    if data == REAL:
        filter = builder.constant(random.uniform(-1, 1, weights).astype(np.float32))
        bias = builder.constant(random.uniform(-1, 1, bias_shape).astype(np.float32))
    elif per_channel:
        quant = ChannelQuant((0.01, 0.03, 0.02), 3 if depthwise else 0)
        values = random.integers(-127, 128, weights, np.int8)
        filter = builder.constant(values, channel_quant=quant)
        bias = builder.constant(random.integers(-500, 500, bias_shape, np.int32))
    else:
        low, high = (0, 256) if data == UNSIGNED else (-127, 128)
        values = random.integers(low, high, weights)
        zero_point = 120 if data == UNSIGNED else 0
        type = OperandType(data)
        filter = builder.constant(values, type=type, scale=0.02, zero_point=zero_point)
        sums = random.integers(-500, 500, bias_shape)
        bias = builder.constant(sums, type=OperandType.TENSOR_INT32, scale=0.1 * 0.02)
    parameters = [*padding, *strides, *((filters,) if depthwise else ()), activation]
    of_result: dict[str, Any] = {}
    if data != REAL:
        of_result = {"scale": 0.3, "zero_point": 100 if data == UNSIGNED else -10}
    y = builder.operation(
        OperationType.DEPTHWISE_CONV_2D if depthwise else OperationType.CONV_2D,
        x,
        filter,
        bias,
        *(np.int32(each) for each in parameters),
        np.bool_(is_nchw),
        *(np.int32(each) for each in dilations),
        **of_result,
    )
    builder.output("y", y)
    return builder.build()


TYPES = [(REAL, False), (UNSIGNED, False), (SIGNED, False), (SIGNED, True), (UNSIGNED, True)]


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize(("data", "per_channel"), TYPES)
@pytest.mark.parametrize("padding", [(1,), (2,), (2, 0, 1, 3)])
def test_convolution_of_one_channel(
    data: OperandType, padding: tuple[int, ...], *, per_channel: bool, depthwise: bool
) -> None:
    model = convolution(data, depthwise=depthwise, per_channel=per_channel, padding=padding)
    assert has_products(model)
    used = operators(model)
    assert tflite.BuiltinOperator.CONV_2D in used
    assert tflite.BuiltinOperator.DEPTHWISE_CONV_2D not in used
    agree(model, lowerings=(XNNPACK,))


@pytest.mark.parametrize("strides", [(1, 1), (3, 2), (4, 1)])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("is_nchw", [False, True])
def test_strides_dilations_and_layouts(
    strides: tuple[int, int], dilations: tuple[int, int], *, is_nchw: bool
) -> None:
    model = convolution(
        SIGNED,
        depthwise=True,
        per_channel=True,
        strides=strides,
        dilations=dilations,
        is_nchw=is_nchw,
    )
    assert has_products(model)
    agree(model, lowerings=(XNNPACK,))


@pytest.mark.parametrize(
    ("shape", "taps"), [((1, 6, 40), (3, 4)), ((1, 6, 8), (3, 1)), ((1, 300, 600), (8, 100))]
)
def test_rows_that_would_be_no_gain(shape: tuple[int, int, int], taps: tuple[int, int]) -> None:
    assert not has_products(convolution(SIGNED, depthwise=True, shape=shape, taps=taps))


def test_products_are_tried_first() -> None:
    engine = LiteRTEngine()
    engine.cores = 2
    found = engine.lowerings(lstm(), ExecutionPreference.FAST_SINGLE_ANSWER)
    assert found == [Lowering(PRODUCTS.name, 2), PRODUCTS, Lowering(XNNPACK.name, 2), XNNPACK]
