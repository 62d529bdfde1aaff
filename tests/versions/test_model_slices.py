"""Slices of models for older versions, by the rules of the HAL's runtime."""

from __future__ import annotations

import gc
import weakref

import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.model.graph import Value
from nnasync._core.validation import compliant_with, validate_model
from nnasync._core.versions import Slice, view_of
from nnasync.errors import ModelError
from nnasync.hal import HalVersion, Model, OperandLifeTime, OperationType
from tests.versions.rig import V1_0, V1_1, V1_2, V1_3, ages

SHAPE = (1, 4)


def sliced(model: Model, version: HalVersion = V1_0) -> Slice:
    found = view_of(model, version).slice
    assert found is not None
    validate_model(found.model, version)
    assert compliant_with(version, found.model)
    return found


def maximum(builder: nn.ModelBuilder, a: Value, b: Value) -> Value:
    """An operation that HAL 1.0 does not have."""
    return builder.operation(OperationType.MAXIMUM, a, b, like=a)


@pytest.mark.parametrize(("version", "count"), [(V1_0, 1), (V1_1, 2), (V1_2, 3)])
def test_a_slice_has_what_the_version_can_express(version: HalVersion, count: int) -> None:
    found = sliced(ages(), version)
    assert found.operations == tuple(range(count))
    assert len(found.model.main.operations) == count


def test_inputs_that_look_alike_become_one() -> None:
    builder = nn.ModelBuilder("alike")
    x, y, z = (builder.input(name, SHAPE) for name in "xyz")
    w = builder.input("w", (2, 4))
    builder.output("a", builder.add(x, y))
    builder.output("b", builder.mul(z, z))
    builder.output("c", builder.add(w, w))
    builder.output("d", maximum(builder, x, y))
    main = sliced(builder.build()).model.main
    assert len(main.input_indexes) == 2
    assert [main.operands[index].dimensions for index in main.input_indexes] == [SHAPE, (2, 4)]
    assert main.operations[0].inputs[:2] == main.operations[1].inputs[:2]
    assert [main.operands[index].number_of_consumers for index in main.input_indexes] == [4, 2]


def test_inputs_of_other_quantization_do_not() -> None:
    builder = nn.ModelBuilder("quantized")
    kind = nn.OperandType.TENSOR_QUANT8_ASYMM
    x = builder.input("x", SHAPE, type=kind, scale=0.5, zero_point=3)
    y = builder.input("y", SHAPE, type=kind, scale=0.25, zero_point=3)
    builder.output("a", builder.relu(x))
    builder.output("b", builder.relu(y))
    builder.output("c", maximum(builder, x, x))
    assert len(sliced(builder.build()).model.main.input_indexes) == 2


def test_what_a_dropped_operation_wrote_becomes_an_input() -> None:
    builder = nn.ModelBuilder("middle")
    x = builder.input("x", SHAPE)
    first = builder.relu(x)
    second = maximum(builder, first, x)
    builder.output("y", builder.relu(second))
    found = sliced(builder.build())
    assert found.operations == (0, 2)
    main = found.model.main
    # Both look alike: x, and what MAXIMUM wrote.
    assert len(main.input_indexes) == 1
    # RELU's result is read by MAXIMUM alone, so it is an output, like y.
    assert main.output_indexes == tuple(each.outputs[0] for each in main.operations)


def test_what_both_kinds_read_stays_inside() -> None:
    builder = nn.ModelBuilder("shared")
    x = builder.input("x", SHAPE)
    first = builder.relu(x)
    builder.output("y", builder.tanh(first))
    builder.output("z", maximum(builder, first, x))
    main = sliced(builder.build()).model.main
    assert len(main.output_indexes) == 1
    inner = main.operands[main.operations[0].outputs[0]]
    assert inner.lifetime == OperandLifeTime.TEMPORARY_VARIABLE


def test_constants_go_along() -> None:
    builder = nn.ModelBuilder("constants")
    x = builder.input("x", SHAPE)
    builder.output("y", builder.mul(x, 2.0))
    builder.output("z", maximum(builder, x, x))
    model = builder.build()
    found = sliced(model).model
    assert found.operand_values is model.operand_values
    constant = found.main.operands[found.main.operations[0].inputs[1]]
    assert constant.lifetime == OperandLifeTime.CONSTANT_COPY


def test_there_is_none_without_operations() -> None:
    builder = nn.ModelBuilder("new")
    x = builder.input("x", SHAPE)
    builder.output("y", maximum(builder, x, x))
    model = builder.build()
    assert view_of(model, V1_1).slice is None
    assert view_of(model, V1_1).fault
    assert not view_of(model, V1_2).fault


def test_there_is_none_without_outputs() -> None:
    """The only result of the kept operation is read by nobody."""
    builder = nn.ModelBuilder("dead")
    x = builder.input("x", SHAPE)
    builder.relu(x)
    builder.output("y", maximum(builder, x, x))
    assert view_of(builder.build(), V1_0).slice is None


def test_control_flow_is_left_out() -> None:
    """Below HAL 1.3 neither subgraphs nor the operands that refer to them exist."""
    builder = nn.ModelBuilder("loop")
    x, is_so = (
        builder.input("x", SHAPE),
        builder.input("if", (1,), type=hal.OperandType.TENSOR_BOOL8),
    )
    first = builder.relu(x)
    builder.output("y", first)
    chosen = builder.cond(is_so, lambda g, v: g.relu(v), lambda g, v: g.tanh(v), first)
    builder.output("z", builder.tanh(chosen))
    found = sliced(builder.build(), V1_2)
    assert found.operations == (0, 2)
    assert found.model.referenced == ()
    assert len(found.model.main.input_indexes) == 1


def test_a_view_is_found_once_and_goes_with_its_model() -> None:
    model = ages()
    view = view_of(model, V1_1)
    assert view_of(model, V1_1) is view
    assert view_of(model, V1_0) is not view
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert view_of(ages(), V1_1) is not view


def test_a_view_of_a_model_that_a_version_takes_as_it_is_does_not_keep_it() -> None:
    model = ages()
    assert view_of(model, V1_3).fault == ""
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_an_illegal_model_has_no_view() -> None:
    model = ages()
    main = hal.Subgraph(model.main.operands, model.main.operations, (99,), (0,))
    with pytest.raises(ModelError):
        view_of(hal.Model(main), V1_0)
