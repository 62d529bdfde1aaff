"""Parameters that are legal or not, and that the engine would not survive or not end with."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import nnasync as nn
from nnasync import hal
from nnasync._core.drivers.litert import LiteRTEngine
from nnasync._core.drivers.litert.litert_programs import reasons
from nnasync.errors import ModelError
from nnasync.hal import ExecutionPreference, Model, OperandLifeTime, OperandType, OperationType
from nnasync.suites.fuzz.samples import own_samples
from tests.drivers.litert.rig import agree, need_litert

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


@pytest.mark.parametrize("size", [2**31, 2**32 - 1])
def test_sizes_that_take_more_than_31_bits_are_declined(size: int) -> None:
    builder = nn.ModelBuilder("squeeze")
    x = builder.input("x", (1, size), type=OperandType.TENSOR_QUANT8_ASYMM, scale=1.0)
    axes = builder.constant(np.zeros(1, np.int32))
    builder.output("y", builder.operation(OperationType.SQUEEZE, x, axes))
    (reason,) = reasons(builder.build())
    assert reason is not None
    assert "32 bits" in reason
    with pytest.raises(ModelError, match="32 bits"):
        LiteRTEngine().compile(builder.build(), ExecutionPreference.SUSTAINED_SPEED)


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


def test_a_projection_to_more_numbers_than_cells_is_declined() -> None:
    """The engine has memory for as many numbers as there are cells."""
    model = _byte_lstm()
    operation = model.main.operations[0]
    operands = list(model.main.operands)
    state, cells = operation.inputs[18], operation.inputs[19]
    _, outputs = operands[state].dimensions
    assert outputs == operands[cells].dimensions[1]
    sizes = {index: operands[index].dimensions for index in operation.inputs}
    wider = {5: 1, 6: 1, 7: 1, 8: 1, 18: 1}
    data = bytearray(model.operand_values)
    for position, axis in wider.items():
        index = operation.inputs[position]
        shape = list(sizes[index])
        shape[axis] = 2 * outputs
        location = operands[index].location
        if hal.is_constant(operands[index]):
            count = shape[0] * shape[1]
            location = hal.DataLocation(0, len(data), count)
            data += bytes(-(-count // 4) * 4)
        operands[index] = replace(operands[index], dimensions=tuple(shape), location=location)
    projection = hal.DataLocation(0, len(data), 2 * outputs * outputs)
    data += bytes(-(-projection.length // 4) * 4)
    index = operation.inputs[16]
    operands[index] = replace(
        operands[operation.inputs[8]],
        dimensions=(2 * outputs, outputs),
        location=projection,
        lifetime=OperandLifeTime.CONSTANT_COPY,
    )
    for place in (0, 1):
        shape = list(operands[operation.outputs[place]].dimensions)
        shape[-1] = 2 * outputs
        index = operation.outputs[place]
        operands[index] = replace(operands[index], dimensions=tuple(shape))
    main = replace(model.main, operands=tuple(operands))
    (reason,) = reasons(replace(model, main=main, operand_values=bytes(data)))
    assert reason is not None
    assert "more numbers than there are cells" in reason
