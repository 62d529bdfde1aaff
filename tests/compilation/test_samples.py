"""Made-up inputs: alike each time, plausible for their types, zero for states."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.compilation.samples import (
    SampleMemory,
    disturbed,
    sample,
    samples_of,
)
from nnasync._core.compilation.spec import can_sample
from nnasync.hal import OperandType
from nnasync.kernels import Tensor
from tests.rigs import calculator, counter, doubler, quantized


def model_of(type: OperandType, shape: tuple[int, ...], **quantization: float) -> nn.Model:
    builder = nn.ModelBuilder("model")
    x = builder.input("x", shape, type=type, **quantization)  # type: ignore[arg-type]
    builder.output("y", builder.reshape(x, shape))
    return builder.build()


def test_samples_are_alike_each_time_and_differ_from_each_other() -> None:
    again = [sample(calculator(), 1), sample(calculator(), 1)]
    assert all((a == b).all() for a, b in zip(*again, strict=True))
    assert (sample(calculator(), 1)[0] != sample(calculator(), 2)[0]).any()
    assert (sample(calculator(), 1)[0] != sample(calculator(), 1)[1]).any()


def test_images_are_smooth() -> None:
    image = sample(model_of(OperandType.TENSOR_FLOAT32, (1, 64, 64, 3)), 0)[0]
    features = sample(model_of(OperandType.TENSOR_FLOAT32, (1, 64, 64, 32)), 0)[0]
    steps = [np.abs(np.diff(values, axis=1)).mean() for values in (image, features)]
    assert steps[0] < steps[1] / 2
    assert image.dtype == np.float32
    assert np.abs(image).max() <= 1
    planar = sample(model_of(OperandType.TENSOR_FLOAT32, (1, 3, 64, 64)), 0)[0]
    assert np.array_equal(planar, image.transpose(0, 3, 1, 2))
    assert image.std() > 0.1


@pytest.mark.parametrize(
    ("type", "lowest", "highest"),
    [
        (OperandType.TENSOR_QUANT8_ASYMM, 0, 255),
        (OperandType.TENSOR_QUANT8_ASYMM_SIGNED, -128, 127),
    ],
)
def test_quantized_inputs_use_their_range(type: OperandType, lowest: int, highest: int) -> None:
    model = model_of(type, (1, 1000), scale=0.1, zero_point=lowest + 9)
    high, low, zero, slope, *natural = (each[0].astype(int) for each in samples_of(model).inputs)
    assert [set(high.flat), set(low.flat), set(zero.flat)] == [{highest}, {lowest}, {lowest + 9}]
    assert (slope[0, 0], slope[0, -1]) == (lowest, highest)
    assert (np.diff(slope) >= 0).all()
    assert samples_of(model).edges == 4
    assert len(natural) == 6
    for values in natural:
        assert lowest <= values.min() < lowest + 80
        assert highest >= values.max() > highest - 80


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_have_the_spectrum_of_photographs(channels: int) -> None:
    """Power falls with the frequency, by two or three powers; of white noise it stays."""
    model = model_of(OperandType.TENSOR_QUANT8_ASYMM, (1, 128, 128, channels), scale=1.0)
    for inputs in samples_of(model).inputs[4:]:
        picture = inputs[0][0, :, :, 0].astype(float)
        power = np.abs(np.fft.rfft(picture - picture.mean(), axis=1)) ** 2
        low, high = power[:, 2:6].mean(), power[:, 16:48].mean()
        assert 8 < low / high < 3000


def test_signals_are_of_several_kinds() -> None:
    model = model_of(OperandType.TENSOR_QUANT8_ASYMM, (1, 2048), scale=1.0)
    signals = [each[0][0].astype(float) for each in samples_of(model).inputs[4:]]
    smooth = [np.abs(np.diff(signal)).mean() / signal.std() for signal in signals]
    assert min(smooth) < 0.3
    assert max(smooth) > 0.8


def quantizing() -> nn.Model:
    """A model whose first layer quantizes floats to [-1, 9]."""
    builder = nn.ModelBuilder("quantizing")
    small = Tensor(type=OperandType.TENSOR_QUANT8_ASYMM, shape=(1, 500))
    small = msgspec.structs.replace(small, scale=10 / 255, zero_point=26)
    x = builder.input("x", (1, 500))
    builder.output("y", builder.operation(nn.OperationType.QUANTIZE, x, output=small))
    return builder.build()


def in_16_bits(model: nn.Model) -> nn.Model:
    """The model with inputs and outputs of 16 bits; it need not be valid to be sampled."""
    operands = tuple(
        msgspec.structs.replace(each, type=OperandType.TENSOR_QUANT16_SYMM)
        for each in model.main.operands
    )
    main = msgspec.structs.replace(model.main, operands=operands)
    return msgspec.structs.replace(model, main=main)


def test_a_first_layer_that_quantizes_tells_the_range() -> None:
    high, low, *_, last = (each[0] for each in samples_of(quantizing()).inputs)
    assert float(high.max()) == pytest.approx(9, abs=0.1)
    assert float(low.min()) == pytest.approx(-1, abs=0.1)
    assert last.min() < 0 < 5 < last.max()


def test_moved_inputs_are_a_step_away_and_stay_in_the_range() -> None:
    model = model_of(OperandType.TENSOR_QUANT8_ASYMM, (1, 1000), scale=1.0)
    for seed, inputs in enumerate(samples_of(model).inputs):
        away = disturbed(model, inputs, seed)[0].astype(int) - inputs[0]
        assert set(away.flat) <= {-1, 0, 1}
        assert away.any()
    words = in_16_bits(model)
    given = sample(words, 0)
    away = disturbed(words, given, 0)[0].astype(int) - given[0]
    assert 250 <= np.abs(away).max() <= 258
    total = sample(counter(), 0)[1]
    assert (disturbed(counter(), sample(counter(), 0), 0)[1] == total).all()


def test_integers_may_be_indices() -> None:
    builder = nn.ModelBuilder("lookup")
    x = builder.input("x", (50,), type=OperandType.TENSOR_INT32)
    table = np.zeros((2, 3), np.float32)
    builder.output("y", builder.operation(nn.OperationType.EMBEDDING_LOOKUP, x, table))
    assert set(sample(builder.build(), 0)[0]) == {0, 1}


def test_states_are_zero() -> None:
    x, total = sample(counter(), 0)
    assert x.any()
    assert not total.any()


def test_memory_takes_samples_and_gives_results() -> None:
    memory = SampleMemory(doubler())
    memory.outputs[0][...] = 7
    memory.write(sample(doubler(), 0))
    assert (memory.inputs[0] == sample(doubler(), 0)[0]).all()
    assert not memory.outputs[0].any()
    results = memory.read()
    memory.outputs[0][...] = 1
    assert not results[0].any()
    assert all(array.ctypes.data % 64 == 0 for array in (*memory.inputs, *memory.outputs))


def test_open_shapes_cannot_be_made_up() -> None:
    builder = nn.ModelBuilder("open")
    x = builder.input("x", (0, 4))
    builder.output("y", builder.add(x, x))
    assert not can_sample(builder.build())
    assert all(can_sample(model) for model in (doubler(), counter(), quantized()))


def test_the_last_samples_are_natural() -> None:
    every = samples_of(quantized())
    assert 0 < every.edges < len(every.inputs) - 1
    fewer = every.last(len(every.inputs) - 1)
    assert (fewer.inputs, fewer.edges) == (every.inputs[1:], every.edges - 1)
    assert every.last(2).edges == 0
    assert every.last(99) == every
