"""Arguments of operations by name, and shapes that follow from the rest of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync.engine import arguments, resolved
from nnasync.errors import ModelError
from nnasync.extensions import encode
from nnasync.hal import OperationType
from tests.rigs import doubler
from tests.validation.models import replace


def convolution(*, explicit: bool) -> nn.Model:
    """CONV_2D in one of its forms, of which one states its padding in numbers."""
    builder = nn.ModelBuilder("convolution")
    x = builder.input("x", (1, 8, 8, 3))
    filter, bias = np.ones((2, 3, 3, 3), np.float32), np.zeros(2, np.float32)
    padding = (1, 2, 2, 1) if explicit else (1,)
    (y,) = builder.operation_outputs(OperationType.CONV_2D, x, filter, bias, *padding, 2, 1, 0)
    builder.output("y", y)
    return builder.build()


@pytest.mark.parametrize("explicit", [True, False])
def test_arguments_have_names_in_each_form(explicit: bool) -> None:
    model = convolution(explicit=explicit)
    (operation,) = model.main.operations
    given = arguments(model, operation)
    assert [each.number for each in given.values()] == list(operation.inputs)
    assert given["input"].tensor is not None
    assert given["input"].tensor.shape == (1, 8, 8, 3)
    assert given["input"].value is None
    assert given["filter"].value is not None
    assert given["filter"].value.shape == (2, 3, 3, 3)
    assert [int(given[f"stride_{side}"].value or 0) for side in ("width", "height")] == [2, 1]
    assert ("padding_scheme" in given) is not explicit
    assert ("padding_left" in given) is explicit


def test_an_input_that_comes_several_times_is_numbered() -> None:
    builder = nn.ModelBuilder("three")
    parts = [builder.input(name, (1, 2)) for name in "abc"]
    (y,) = builder.operation_outputs(OperationType.CONCATENATION, *parts, 1)
    builder.output("y", y)
    model = builder.build()
    given = arguments(model, model.main.operations[0])
    assert list(given) == ["input", "input_1", "input_2", "axis"]
    assert int(given["axis"].value or 0) == 1


def test_an_operation_of_a_vendor_has_no_names() -> None:
    model = doubler()
    operation = replace(model.main.operations[0], type=encode(1, 7))
    named = (hal.ExtensionNameAndPrefix("com.vendor.odd", 1),)
    with pytest.raises(ModelError, match="operation 7 of com.vendor.odd is not known here"):
        arguments(replace(model, extension_name_to_prefix=named), operation)


def with_open_outputs(model: nn.Model, known: tuple[int, ...] = ()) -> nn.Model:
    """The model with the dimensions of all but its inputs and constants unknown."""
    lifetimes = (hal.OperandLifeTime.SUBGRAPH_OUTPUT, hal.OperandLifeTime.TEMPORARY_VARIABLE)
    operands = tuple(
        replace(each, dimensions=known) if each.lifetime in lifetimes else each
        for each in model.main.operands
    )
    return replace(model, main=replace(model.main, operands=operands))


def chain() -> nn.Model:
    """Two operations whose shapes follow from the input's."""
    builder = nn.ModelBuilder("chain")
    x: Any = builder.input("x", (3, 4))
    weights = np.ones((5, 4), np.float32)
    builder.output("y", builder.tanh(builder.fully_connected(x, weights)))
    return builder.build()


def test_shapes_of_temporaries_and_outputs_follow_from_the_rest() -> None:
    model = chain()
    tensors = resolved(with_open_outputs(model))
    for operand, tensor in zip(model.main.operands, tensors, strict=True):
        assert tensor is not None
        assert tensor.is_known
        assert tensor.shape == operand.dimensions


def test_what_only_the_run_tells_stays_unknown() -> None:
    model = with_open_outputs(chain())
    operands = list(model.main.operands)
    first = model.main.input_indexes[0]
    operands[first] = replace(operands[first], dimensions=(0, 4))
    unknown = replace(model, main=replace(model.main, operands=tuple(operands)))
    tensors = resolved(unknown)
    for operation in unknown.main.operations:
        output = tensors[operation.outputs[0]]
        assert output is not None
        assert not output.is_known
