"""Made-up inputs: alike each time, plausible for their types, zero for states."""

from __future__ import annotations

import numpy as np
import pytest

import nnasync as nn
from nnasync.compilation.samples import SampleMemory, can_sample, sample
from nnasync.hal import OperandType
from tests.rigs import calculator, counter, doubler, quantized


def model_of(type: OperandType, shape: tuple[int, ...], **quantisation: float) -> nn.Model:
    builder = nn.ModelBuilder("model")
    x = builder.input("x", shape, type=type, **quantisation)  # type: ignore[arg-type]
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
    assert image.std() > 0.1


@pytest.mark.parametrize(
    ("type", "lowest", "highest"),
    [
        (OperandType.TENSOR_QUANT8_ASYMM, 0, 255),
        (OperandType.TENSOR_QUANT8_ASYMM_SIGNED, -128, 127),
    ],
)
def test_quantised_inputs_use_their_range(type: OperandType, lowest: int, highest: int) -> None:
    values = sample(model_of(type, (1, 1000), scale=0.1), 0)[0].astype(int)
    middle = (lowest + highest) / 2
    assert lowest <= values.min() < middle - 50
    assert highest >= values.max() > middle + 50
    assert abs(values.mean() - middle) < 20


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
