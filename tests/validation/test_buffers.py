"""Buffers can play the roles asked of them, or the message names the role that does not fit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nnasync._core.model import ModelBuilder
from nnasync._core.validation import validate_buffer_desc
from nnasync.errors import InvalidArgument
from nnasync.hal import BufferDesc, BufferRole, ChannelQuant, Model, OperandType
from tests.validation.models import changed

QUANT8 = OperandType.TENSOR_QUANT8_ASYMM
NONE = BufferDesc()


def model(
    *shape: int, type: OperandType = OperandType.TENSOR_FLOAT32, scale: float = 0.0, zero: int = 0
) -> Model:
    """Inputs x and a scalar, output relu(x)."""
    m = ModelBuilder()
    x = m.input("x", shape, type=type, scale=scale, zero_point=zero)
    m.input("alpha", (), type=OperandType.FLOAT32)
    m.output("y", m.relu(x))
    return m.build()


def role(model_index: int = 0, io_index: int = 0, frequency: float = 1.0) -> BufferRole:
    return BufferRole(model_index, io_index, frequency)


@pytest.mark.parametrize(
    ("dimensions", "models", "inputs", "outputs", "combined"),
    [
        ((), [model(2, 3)], [role()], [], (2, 3)),
        ((2, 3), [model(2, 3)], [role()], [role()], (2, 3)),
        ((0, 3), [model(2, 0)], [role()], [], (2, 3)),
        ((), [model(2, 0), model(2, 3)], [role(0)], [role(1)], (2, 3)),
        ((), [model(2, 0), model(0, 3)], [role(0, frequency=0.25), role(1)], [], (2, 3)),
        ((), [model(0, 0)], [role()], [], (0, 0)),
        ((), [model(2, 3)], [role(0, 1)], [], ()),
    ],
)
def test_dimensions_are_combined(
    dimensions: tuple[int, ...],
    models: Sequence[Model],
    inputs: Sequence[BufferRole],
    outputs: Sequence[BufferRole],
    combined: tuple[int, ...],
) -> None:
    operand = validate_buffer_desc(BufferDesc(dimensions), models, inputs, outputs)
    assert operand.dimensions == combined


def test_type_and_quantization_are_those_of_the_roles() -> None:
    quantized = model(2, type=QUANT8, scale=0.5, zero=3)
    operand = validate_buffer_desc(NONE, [quantized], [role()], [role()])
    assert (operand.type, operand.scale, operand.zero_point) == (QUANT8, 0.5, 3)


FLOATS, WIDE = model(2, 3), model(2, 4)


@pytest.mark.parametrize(
    ("desc", "models", "inputs", "outputs", "message"),
    [
        (NONE, [], [role()], [], "no prepared models"),
        (NONE, [FLOATS], [], [], "one role at least"),
        (NONE, [None], [role()], [], "input role 0: prepared model 0 is not one of this device"),
        (NONE, [FLOATS], [role(1)], [], "names prepared model 1 of 1"),
        (NONE, [FLOATS], [role(-1)], [], "names prepared model -1 of 1"),
        (NONE, [FLOATS], [role(0, 2)], [], "names input 2 of 2"),
        (NONE, [FLOATS], [], [role(0, 1)], "output role 0: names output 1 of 1"),
        (NONE, [FLOATS], [role(0, -1)], [], "names input -1 of 2"),
        (NONE, [FLOATS], [role(0, 0, 10.0)], [], "has frequency 10.0"),
        (NONE, [FLOATS], [role(0, 0, 0.0)], [], "has frequency 0.0"),
        (NONE, [FLOATS], [role(0, 0, -0.5)], [], "has frequency -0.5"),
        (NONE, [FLOATS], [role(0, 0, float("nan"))], [], "has frequency nan"),
        (NONE, [FLOATS], [role(), role()], [], "input role 1: is given twice"),
        (NONE, [FLOATS], [role()], [role(), role()], "output role 1: is given twice"),
        (NONE, [FLOATS, WIDE], [role(), role(1)], [], r"has dimensions \[2, 4\]"),
        (NONE, [FLOATS, model(6)], [role()], [role(1)], r"output role 0: has dimensions \[6\]"),
        (BufferDesc((2, 4)), [FLOATS], [role()], [], r"\[2, 3\], but the buffer \[2, 4\]"),
        (BufferDesc((6,)), [FLOATS], [role()], [], r"but the buffer \[6\]"),
        (BufferDesc((1,)), [FLOATS], [role(0, 1)], [], "is a scalar and has no dimensions"),
        (BufferDesc((-1,)), [FLOATS], [role()], [], "must be in"),
        (
            NONE,
            [FLOATS, model(2, 3, type=QUANT8, scale=1.0)],
            [role(), role(1)],
            [],
            "is TENSOR_QUANT8_ASYMM, another role is TENSOR_FLOAT32",
        ),
        (
            NONE,
            [model(2, type=QUANT8, scale=1.0), model(2, type=QUANT8, scale=2.0)],
            [role(), role(1)],
            [],
            "has scale 2 and zero point 0, another role has 1 and 0",
        ),
        (
            NONE,
            [model(2, type=QUANT8, scale=1.0), model(2, type=QUANT8, scale=1.0, zero=1)],
            [role()],
            [role(1)],
            "has scale 1 and zero point 1",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    desc: BufferDesc,
    models: Sequence[Model | None],
    inputs: Sequence[BufferRole],
    outputs: Sequence[BufferRole],
    message: str,
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        validate_buffer_desc(desc, models, inputs, outputs)


def test_scales_per_channel_must_be_the_same() -> None:
    per_channel = {"type": OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL, "scale": 0.0}
    models = [
        changed(FLOATS, 0, extra_params=ChannelQuant(scales, 0), **per_channel)
        for scales in ((1.0, 2.0), (1.0, 3.0))
    ]
    validate_buffer_desc(NONE, models[:1], [role()], [])
    with pytest.raises(InvalidArgument, match="input role 1: has other extra parameters"):
        validate_buffer_desc(NONE, models, [role(), role(1)], [])


def test_an_input_and_an_output_of_one_number_are_two_roles() -> None:
    validate_buffer_desc(NONE, [FLOATS], [role(0, 0)], [role(0, 0)])
