"""Quantized models with copies of channels: weights that are signed bytes, and the same results."""

from __future__ import annotations

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.openvino.copies import centered, fits, split
from nnasync._core.drivers.openvino.signed_weights import narrowed
from nnasync._core.model.graph import Value
from nnasync._core.validation import subgraph_tensors, validate_model
from nnasync._core.workers import StopFlag
from nnasync.hal import Array, ChannelQuant, ExecutionPreference, OperandType, OperationType

U8, I8 = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
CHANNELS = 48
SIDE = 4


class Network:
    """Convolutions one after another, of which some weights are set beyond signed bytes."""

    def __init__(self, type: OperandType = U8, seed: int = 0) -> None:
        self.type = type
        self.low = 0 if type == U8 else -128
        self.builder = nn.ModelBuilder()
        self.rng = np.random.default_rng(seed)

    def input(self, channels: int = CHANNELS) -> Value:
        shape = (1, SIDE, SIDE, channels)
        return self.builder.input("x", shape, type=self.type, scale=0.02, zero_point=self.low + 3)

    def weights(self, *shape: int, large: dict[tuple[int, ...], int]) -> Array:
        """Weights around a zero point of 100, 155 below the highest."""
        numbers = self.rng.integers(60, 140, shape)
        for place, number in large.items():
            numbers[place] = number
        return (numbers + self.low).astype(np.uint8 if self.type == U8 else np.int8)

    def convolution(
        self,
        x: Value,
        results: int = CHANNELS,
        large: dict[tuple[int, ...], int] | None = None,
        size: int = 1,
    ) -> Value:
        m, shape = self.builder, (results, size, size, x.shape[3])
        filter = m.constant(
            self.weights(*shape, large=large or {}),
            type=self.type,
            scale=0.01,
            zero_point=self.low + 100,
        )
        bias = self.bias(results, x.tensor.scale * 0.01)
        zero_point = self.low + 90
        inputs = (x, filter, bias, 1, 1, 1, 0)
        return m.operation(OperationType.CONV_2D, *inputs, scale=0.08, zero_point=zero_point)

    def by_depth(self, x: Value, large: dict[tuple[int, ...], int] | None = None) -> Value:
        m, channels = self.builder, x.shape[3]
        filter = m.constant(
            self.weights(1, 3, 3, channels, large=large or {}),
            type=self.type,
            scale=0.02,
            zero_point=self.low + 100,
        )
        bias = self.bias(channels, x.tensor.scale * 0.02)
        zero_point = self.low + 80
        inputs = (x, filter, bias, 1, 1, 1, 1, 0)
        type = OperationType.DEPTHWISE_CONV_2D
        return m.operation(type, *inputs, scale=0.08, zero_point=zero_point)

    def bias(self, count: int, scale: float) -> Value:
        numbers = self.rng.integers(-900, 900, count).astype(np.int32)
        return self.builder.constant(numbers, type=OperandType.TENSOR_INT32, scale=scale)

    def model(self, *outputs: Value) -> nn.Model:
        for number, value in enumerate(outputs):
            self.builder.output(f"y{number}", value)
        return self.builder.build()


def results(model: nn.Model, seed: int = 0) -> list[Array]:
    """What the reference makes of random bytes."""
    rng = np.random.default_rng(seed)
    operands = model.main.operands
    inputs = [
        rng.integers(0, 256, operands[index].dimensions, np.uint8).view(
            np.uint8 if operands[index].type == U8 else np.int8
        )
        for index in model.main.input_indexes
    ]
    outputs = [
        np.zeros(operands[index].dimensions, np.uint8 if operands[index].type == U8 else np.int8)
        for index in model.main.output_indexes
    ]
    engine = ReferenceEngine()
    plan = engine.compile(model, ExecutionPreference.SUSTAINED_SPEED)
    assert plan.bind(inputs, outputs).run(StopFlag())
    return outputs


def filters(model: nn.Model, type: int = OperationType.CONV_2D) -> list[Array]:
    """The weights of convolutions less their zero points."""
    tensors = subgraph_tensors(model, model.main)
    found = []
    for operation in model.main.operations:
        tensor = tensors[operation.inputs[1]]
        if operation.type == type and tensor is not None:
            found.append(centered(tensor))
    return found


def check_same(model: nn.Model, *, channels: list[int]) -> nn.Model:
    """A model whose convolutions have these numbers of input channels then, and same results."""
    other = narrowed(model)
    validate_model(other)
    assert [each.shape[3] for each in filters(other)] == channels
    for found, wanted in zip(results(other), results(model), strict=True):
        np.testing.assert_array_equal(found, wanted)
    return other


LARGE: dict[tuple[int, ...], int] = {(5, 0, 0, 7): 255, (2, 0, 0, 7): 240, (5, 0, 0, 30): 250}


@pytest.mark.parametrize("type", [U8, I8])
def test_between_two_convolutions(type: OperandType) -> None:
    net = Network(type)
    first = net.convolution(net.input())
    model = net.model(net.convolution(first, 6, LARGE))
    assert not fits(filters(model)[1])
    other = check_same(model, channels=[CHANNELS, CHANNELS + 2])
    assert all(fits(numbers) for numbers in filters(other))
    operands = other.main.operands
    assert [operands[i] for i in other.main.output_indexes] == [
        model.main.operands[i] for i in model.main.output_indexes
    ]


def test_through_operations_by_channel() -> None:
    net = Network()
    x = net.convolution(net.input(), size=3)
    x = net.by_depth(x, {(0, 1, 1, 7): 255})
    x = net.builder.operation(OperationType.ADD, x, x, 0, scale=0.1, zero_point=70)
    row = net.builder.constant(
        net.rng.integers(0, 256, CHANNELS).astype(np.uint8), type=U8, scale=0.01, zero_point=4
    )
    x = net.builder.operation(OperationType.MUL, x, row, 1, scale=0.1, zero_point=0)
    x = net.builder.operation(OperationType.AVERAGE_POOL_2D, x, 2, 1, 1, 2, 2, 0)
    model = net.model(net.convolution(x, 4, {(1, 0, 0, 7): 255, (2, 0, 0, 47): 230}))
    other = check_same(model, channels=[CHANNELS, CHANNELS + 2])
    assert [each.shape[3] for each in filters(other, OperationType.DEPTHWISE_CONV_2D)] == [
        CHANNELS + 2
    ]


def test_convolutions_of_one_image_share_its_copies() -> None:
    net = Network()
    x = net.convolution(net.input())
    model = net.model(
        net.convolution(x, 4, {(1, 0, 0, 7): 255}), net.convolution(x, 5, {(2, 0, 0, 9): 255})
    )
    check_same(model, channels=[CHANNELS, CHANNELS + 2, CHANNELS + 2])


def test_a_weight_of_255_above_the_zero_point_wants_two_copies() -> None:
    net = Network()
    x = net.convolution(net.input())
    numbers = np.zeros((2, 1, 1, CHANNELS), np.uint8)
    numbers[1, 0, 0, 3] = 255
    filter = net.builder.constant(numbers, type=U8, scale=0.01, zero_point=0)
    bias = net.bias(2, x.tensor.scale * 0.01)
    inputs = (x, filter, bias, 1, 1, 1, 0)
    y = net.builder.operation(OperationType.CONV_2D, *inputs, scale=0.1, zero_point=128)
    check_same(net.model(y), channels=[CHANNELS, CHANNELS + 2])


def test_scales_by_channel_are_copied_too() -> None:
    net = Network(I8)
    x = net.input()
    quant = ChannelQuant(tuple(0.001 * (1 + row) for row in range(CHANNELS)), 0)
    filter = net.builder.constant(
        net.rng.integers(-127, 128, (CHANNELS, 1, 1, CHANNELS)).astype(np.int8),
        channel_quant=quant,
    )
    bias = net.builder.constant(np.zeros(CHANNELS, np.int32), type=OperandType.TENSOR_INT32)
    inputs = (x, filter, bias, 1, 1, 1, 0)
    x = net.builder.operation(OperationType.CONV_2D, *inputs, scale=0.08, zero_point=-30)
    check_same(net.model(net.convolution(x, 4, LARGE_OF_FEW)), channels=[CHANNELS, CHANNELS + 1])


LARGE_OF_FEW: dict[tuple[int, ...], int] = {(1, 0, 0, 7): 255}


def test_what_cannot_have_copies_stays() -> None:
    """Inputs, outputs, images of few channels, and those that go elsewhere too."""
    net = Network()
    model = net.model(net.convolution(net.input(), 4, LARGE_OF_FEW))
    assert narrowed(model) is model
    net = Network()
    x = net.convolution(net.input(8), 8)
    model = net.model(net.convolution(x, 4, LARGE_OF_FEW))
    assert narrowed(model) is model
    net = Network()
    x = net.convolution(net.input())
    y = net.convolution(x, 4, LARGE_OF_FEW)
    model = net.model(x, y)
    assert narrowed(model) is model
    net = Network()
    x = net.convolution(net.input())
    y = net.convolution(x, 4, LARGE_OF_FEW)
    flat = net.builder.operation(OperationType.RESHAPE, x, [1, SIDE * SIDE * CHANNELS])
    model = net.model(flat, y)
    assert narrowed(model) is model


def test_what_fits_is_left_alone() -> None:
    net = Network()
    model = net.model(net.convolution(net.convolution(net.input()), 4))
    assert narrowed(model) is model


def test_it_is_told_where_copies_are_missing() -> None:
    numbers = np.asarray([[[[300, 5]]]], np.int16)
    with pytest.raises(ValueError, match="more copies"):
        split(numbers, [0])
    assert split(numbers, [0, 0]).tolist() == [[[[127, 5, 127, 46]]]]
