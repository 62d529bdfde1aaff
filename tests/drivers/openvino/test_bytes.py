"""Products of bytes: networks of older weights, copies of channels, and ends of quantizations."""

from __future__ import annotations

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.openvino import OpenVinoEngine
from nnasync._core.drivers.openvino.fake_quantize import ends
from nnasync._core.drivers.openvino.package import has_bfloat16
from nnasync._core.drivers.openvino.saturation import lacks_wide_sums
from nnasync._core.model.graph import Value
from nnasync.engine import Lowering
from nnasync.hal import Array, OperandType, OperationType
from tests.drivers.openvino.rig import FAST, U8, model_of, random_inputs, results

CHANNELS, SIDE = 64, 6
RNG = np.random.default_rng(11)
BY_BYTES = [Lowering("int8"), Lowering("int8-bf16")]


def weights(m: nn.ModelBuilder, *shape: int, large: tuple[int, ...] | None) -> Value:
    """Unsigned weights about 100, of which one may be beyond a signed byte."""
    numbers = RNG.integers(50, 150, shape).astype(np.uint8)
    if large is not None:
        numbers[large] = 250
    return m.constant(numbers, type=U8, scale=0.02, zero_point=100)


def convolution(m: nn.ModelBuilder, x: Value, results: int, *, by_depth: bool = False) -> Value:
    """A convolution with one large weight, whose bias has more bits than bfloat16."""
    shape = (1, 3, 3, results) if by_depth else (results, 1, 1, x.shape[3])
    large = (0, 1, 1, 5) if by_depth else (3, 0, 0, 7)
    product = float(np.float32(x.tensor.scale) * np.float32(0.02))
    numbers = RNG.integers(-3000, 3000, results).astype(np.int32)
    bias = m.constant(numbers, type=OperandType.TENSOR_INT32, scale=product)
    scalars = (1, 1, 1, 1, 3) if by_depth else (1, 1, 1, 3)
    type = OperationType.DEPTHWISE_CONV_2D if by_depth else OperationType.CONV_2D
    inputs = (x, weights(m, *shape, large=large), bias, *scalars)
    return m.operation(type, *inputs, scale=6 / 255, zero_point=0)


def network(m: nn.ModelBuilder) -> Value:
    """Convolutions in pairs, and a sum of two images."""
    x = m.input("x", (1, SIDE, SIDE, 8), type=U8, scale=6 / 255, zero_point=0)
    first = convolution(m, convolution(m, x, CHANNELS), CHANNELS)
    second = convolution(m, first, CHANNELS, by_depth=True)
    third = convolution(m, second, CHANNELS)
    both = m.operation(OperationType.ADD, first, third, 0, scale=0.05, zero_point=0)
    return convolution(m, both, 40)


@pytest.mark.parametrize("lowering", BY_BYTES, ids=lambda each: each.name)
def test_a_network_of_older_weights(lowering: Lowering) -> None:
    """Of tens of thousands of roundings a few may differ, each by one step."""
    model = model_of(network)
    inputs = random_inputs(model)
    (found,) = results(OpenVinoEngine().compile(model, FAST, lowering), model, inputs)
    (wanted,) = results(ReferenceEngine().compile(model, FAST), model, inputs)
    distance = np.abs(found.astype(int) - wanted.astype(int))
    assert distance.max() <= 1
    assert (distance > 0).mean() < 0.01


def test_the_ways_of_a_network_of_older_weights() -> None:
    names = [each.name for each in OpenVinoEngine().lowerings(model_of(network), FAST)]
    best = "int8-bf16" if has_bfloat16() else "int8"
    wanted = [] if lacks_wide_sums() else [best]
    assert [name for name in names if name.startswith("int8")] == wanted


def test_a_network_that_does_little_else_than_multiply_is_wanted() -> None:
    def build(m: nn.ModelBuilder) -> Value:
        y = network(m)
        for _ in range(8):
            y = m.operation(OperationType.ADD, y, y, 0, scale=0.1, zero_point=7)
        return y

    names = {each.name for each in OpenVinoEngine().lowerings(model_of(build), FAST)}
    assert not names & {"int8", "int8-bf16"}


def quantized(sums: Array, low: Array, high: Array, levels: int) -> Array:
    """What OpenVINO makes of sums, in float32 as it does."""
    factor = np.float32(levels - 1) / (high - low)
    steps: Array = np.rint(np.clip(sums, low, high) * factor + (-low * factor))
    return steps


def test_ends_keep_sums_on_their_side() -> None:
    """All sums of many channels, with biases that take most of the bits of float32."""
    levels, channels = 256, 40
    factors = RNG.uniform(0.002, 0.02, channels)
    biases = RNG.integers(-(2**15), 2**15, channels).astype(np.float64)
    least = 0.25 - biases
    most = least + (levels - 1) / factors
    low, high = ends(least, most, levels)
    assert low.dtype == high.dtype == np.float32
    plain = least.astype(np.float32), most.astype(np.float32)
    wrong = [0, 0]
    for channel in range(channels):
        sums = np.arange(np.ceil(least[channel]), np.floor(most[channel]))
        exact = np.rint((sums - least[channel]) * factors[channel])
        for way, (start, end) in enumerate(((low, high), plain)):
            got = quantized(sums.astype(np.float32), start[channel], end[channel], levels)
            wrong[way] += int((got != exact).sum())
    assert wrong[0] < wrong[1] / 2


def test_ends_of_one_number_have_no_shape() -> None:
    low, high = ends(np.asarray(0.25), np.asarray(99.0), 256)
    assert (low.shape, high.shape) == ((), ())
    assert (float(low), float(high)) == pytest.approx((0.25, 99.0))
