"""Parameters that are legal or not, and that the engine would not survive or not end with."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import nnasync as nn
from nnasync import hal
from nnasync.drivers.litert import LiteRTEngine
from nnasync.drivers.litert.programs import reasons
from nnasync.hal import Model, OperandLifeTime, OperandType, OperationType
from tests.drivers.litert.rig import agree, need_litert
from tests.fuzz.samples import own_samples

need_litert()


@pytest.mark.parametrize("radius", [6, 10_000, 2**31 - 1])
def test_a_radius_beyond_the_last_channel_adds_nothing(radius: int) -> None:
    builder = nn.ModelBuilder("local response")
    x = builder.input("x", (1, 2, 2, 6))
    y = builder.operation(OperationType.LOCAL_RESPONSE_NORMALIZATION, x, radius, 9.0, 4.0, 0.5)
    builder.output("y", y)
    agree(builder.build())


@pytest.mark.parametrize("activation", [-1, 6, 128, 2**31 - 1])
def test_an_activation_that_is_none_is_declined(activation: int) -> None:
    builder = nn.ModelBuilder("sum")
    x = builder.input("x", (2,))
    code = builder.constant(np.array([activation], np.int32)[0])
    builder.output("y", builder.operation(OperationType.ADD, x, x, code))
    assert reasons(builder.build()) == [f"activation {activation}, which is none"]


def _byte_lstm() -> Model:
    """An LSTM of 8 bits, all of whose weights are constants."""
    for sample in own_samples():
        main = sample.model.main
        operation = main.operations[0]
        if not hal.is_extension(operation.type) or len(operation.inputs) < 24:
            continue
        weights = main.operands[operation.inputs[2]]
        if hal.is_constant(weights) and weights.type == OperandType.TENSOR_QUANT8_SYMM:
            return sample.model
    raise AssertionError("there is no such sample")


def test_weights_that_only_a_run_tells_are_declined() -> None:
    """The engine reads them before the first run, where they are not."""
    model = _byte_lstm()
    assert LiteRTEngine().supported_operations(model) == [True]
    index = model.main.operations[0].inputs[2]
    operands = list(model.main.operands)
    operands[index] = replace(
        operands[index], lifetime=OperandLifeTime.SUBGRAPH_INPUT, location=hal.DataLocation()
    )
    inputs = (*model.main.input_indexes, index)
    main = replace(model.main, operands=tuple(operands), input_indexes=inputs)
    assert reasons(replace(model, main=main)) == ["input 2 is only known in a run"]


@pytest.mark.parametrize("radius", [-1, -(2**31)])
def test_a_radius_below_zero_is_declined(radius: int) -> None:
    builder = nn.ModelBuilder("local response")
    x = builder.input("x", (1, 2, 2, 6))
    y = builder.operation(OperationType.LOCAL_RESPONSE_NORMALIZATION, x, radius, 9.0, 4.0, 0.5)
    builder.output("y", y)
    assert reasons(builder.build()) == [f"a radius of {radius}"]
