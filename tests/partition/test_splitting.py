"""Splitting: steps that are legal models, wired up, with the memory of the whole."""

from __future__ import annotations

from itertools import combinations

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.partition import Group, PartitionedModel, cut, split
from nnasync._core.partition.shapes import with_inferred_shapes
from nnasync._core.plans.composite import Wire, WireEnd
from nnasync._core.validation import validate_model
from nnasync.errors import InvalidArgument
from nnasync.extensions import TFLITE, encode
from nnasync.hal import (
    ExtensionNameAndPrefix,
    Model,
    OperandLifeTime,
    OperandType,
    OperationType,
    StatePair,
)
from tests.partition.models import SHAPE, chain, diamond, in_parts, on_reference, row, summed
from tests.rigs import counter


def valid(partitioned: PartitionedModel) -> PartitionedModel:
    for step in partitioned.steps:
        validate_model(step.model)
    return partitioned


def given(index: int) -> Wire:
    return Wire(WireEnd.INPUT, index)


def result(index: int) -> Wire:
    return Wire(WireEnd.OUTPUT, index)


def between(index: int) -> Wire:
    return Wire(WireEnd.BOUNDARY, index)


def test_one_device_gets_the_model_itself() -> None:
    model = counter()
    partitioned = split(model, [1, 1])
    (step,) = partitioned.steps
    assert step.model is model
    assert (step.device, step.inputs, step.outputs) == (
        1,
        (given(0), given(1)),
        (result(0), result(1)),
    )
    assert partitioned.boundaries == ()


def test_steps_are_wired_up() -> None:
    model = diamond()
    first, second, third = valid(split(model, [0, 1, 0, 1, 0])).steps
    assert [step.operations for step in (first, second, third)] == [(0, 2), (1, 3), (4,)]
    assert (first.inputs, first.outputs) == ((given(0),), (between(0), between(2)))
    assert (second.inputs, second.outputs) == ((between(0), between(2)), (between(1), between(3)))
    assert (third.inputs, third.outputs) == ((between(1), between(3)), (result(0),))


def test_an_output_that_is_read_further_on() -> None:
    model = summed([(0, 0), (1, 1)], shown=[1])
    partitioned = valid(split(model, [0, 1]))
    first, second = partitioned.steps
    assert first.outputs == (result(0),)
    assert second.inputs == (result(0),)
    assert partitioned.boundaries == ()


def test_an_operand_that_several_steps_read() -> None:
    model = summed([(0, 0), (1, 1), (1, 2), (3, 1)])
    partitioned = valid(split(model, [0, 1, 2, 1]))
    assert [step.inputs for step in partitioned.steps] == [
        (given(0),),
        (between(0),),
        (between(0), between(1)),
        (between(0), between(2)),
    ]
    # Each is read twice by the step's operations or once, and counted so.
    (operand,) = (o for o in partitioned.steps[1].model.main.operands if is_input(o.lifetime))
    assert operand.number_of_consumers == 2


def is_input(lifetime: OperandLifeTime) -> bool:
    return lifetime == OperandLifeTime.SUBGRAPH_INPUT


def test_constants_are_shared_not_copied() -> None:
    builder = nn.ModelBuilder("constants")
    x = builder.input("x", SHAPE)
    y = builder.add(x, np.ones((40, 1, 4), np.float32))
    builder.output("y", builder.mul(y, np.ones((40, 1, 4), np.float32)))
    model = builder.build()
    assert model.pools
    for step in valid(split(model, [0, 1])).steps:
        assert step.model.operand_values is model.operand_values
        assert step.model.pools is model.pools


def test_states_go_to_the_step_with_both_ends() -> None:
    model = counter()
    first, second = valid(split(model, [0, 1])).steps
    assert first.model.state == (StatePair(1, 0),)
    assert second.model.state == ()
    assert first.outputs == (result(1),)
    assert second.inputs == (result(1),)


def test_what_concerns_the_whole_model_is_kept() -> None:
    model = msgspec.structs.replace(chain(2), relax_computation_float32_to_float16=True)
    first, second = valid(split(model, [0, 1])).steps
    assert first.model.relax_computation_float32_to_float16
    assert [step.model.name for step in (first, second)] == [
        "summed, step 1/2",
        "summed, step 2/2",
    ]


def test_an_operation_that_nobody_reads_is_kept() -> None:
    """Its step has an output all the same: engines need not know models without."""
    builder = nn.ModelBuilder("idle")
    x = builder.input("x", SHAPE)
    builder.output("y", builder.add(x, x))
    builder.mul(builder.mul(x, x), x)
    model = builder.build()
    partitioned = valid(split(model, [0, 1, 1]))
    assert [step.operations for step in partitioned.steps] == [(0,), (1, 2)]
    assert partitioned.steps[1].outputs == (between(0), between(1))
    assert in_parts(partitioned, [row()])[0].tolist() == on_reference(model, [row()])[0].tolist()


def test_an_omitted_argument_stays_omitted() -> None:
    builder = nn.ModelBuilder("omitted")
    x = builder.input("x", (1, 3))
    state, y = builder.operation_outputs(
        OperationType.SVDF,
        builder.add(x, x),
        np.ones((2, 3), np.float32),
        np.ones((2, 4), np.float32),
        None,
        np.zeros((1, 8), np.float32),
        1,
        0,
    )
    builder.output("state", state)
    builder.output("y", builder.add(y, y))
    model = builder.build()
    partitioned = valid(split(model, [0, 1, 0]))
    lifetimes = [operand.lifetime for operand in partitioned.steps[1].model.main.operands]
    assert lifetimes.count(OperandLifeTime.NO_VALUE) == 1
    inputs = [np.array([[1, 2, 3]], np.float32)]
    for given, expected in zip(
        in_parts(partitioned, inputs), on_reference(model, inputs), strict=True
    ):
        assert given.tolist() == expected.tolist()


def looped() -> Model:
    """An IF, an ADD, a WHILE and another IF, each with subgraphs of its own."""
    builder = nn.ModelBuilder("looped")
    flag = builder.input("flag", (1,), type=OperandType.TENSOR_BOOL8)
    x = builder.input("x", (1,))
    x = builder.cond(flag, lambda g, v: g.add(v, v), lambda g, v: g.mul(v, v), x)
    x = builder.add(x, x)
    x = builder.while_loop(
        lambda g, v: g.operation(OperationType.LESS, v, np.array([100], np.float32)),
        lambda g, v: g.add(v, v),
        x,
    )
    x = builder.cond(
        flag,
        lambda g, v: g.cond(
            g.operation(OperationType.LESS, v, np.array([0], np.float32)),
            lambda h, w: h.mul(w, w),
            lambda h, w: h.add(w, w),
            v,
        ),
        lambda g, v: g.mul(v, v),
        x,
    )
    builder.output("y", x)
    return builder.build()


def test_subgraphs_go_along_with_the_operations_that_run_them() -> None:
    model = looped()
    partitioned = valid(split(model, [0, 1, 0, 1]))
    counts = [len(step.model.referenced) for step in partitioned.steps]
    assert counts == [2, 0, 2, 4]
    for flag in (True, False):
        inputs = [np.array([flag]), np.array([3], np.float32)]
        expected = on_reference(model, inputs)
        assert in_parts(partitioned, inputs)[0].tolist() == expected[0].tolist()


def vendor(type: int) -> Model:
    """A chain of two whose second is an operation of an extension."""
    model = chain(2)
    first, second = model.main.operations
    main = msgspec.structs.replace(
        model.main, operations=(first, msgspec.structs.replace(second, type=type))
    )
    names = (ExtensionNameAndPrefix(TFLITE.name, 1), ExtensionNameAndPrefix("com.acme.x", 2))
    return msgspec.structs.replace(model, main=main, extension_name_to_prefix=names)


def test_extensions_go_with_the_types_that_need_them() -> None:
    model = vendor(encode(2, 7))
    validate_model(model)
    first, second = valid(split(model, [0, 1])).steps
    assert first.model.extension_name_to_prefix == ()
    assert [each.name for each in second.model.extension_name_to_prefix] == ["com.acme.x"]


def test_a_value_that_only_its_vendor_can_store_is_not_handed_on() -> None:
    model = vendor(encode(2, 7))
    index = model.main.operations[0].outputs[0]
    operands = list(model.main.operands)
    operands[index] = msgspec.structs.replace(operands[index], type=encode(2, 9), dimensions=())
    operations = tuple(
        msgspec.structs.replace(each, type=encode(2, 7)) for each in model.main.operations
    )
    main = msgspec.structs.replace(model.main, operands=tuple(operands), operations=operations)
    model = msgspec.structs.replace(model, main=main)
    validate_model(model)
    with pytest.raises(InvalidArgument, match=f"operand {index} is of .*operation 0 and those"):
        split(model, [0, 1])


def test_values_that_are_never_alive_together_share_memory() -> None:
    partitioned = split(chain(6), [0, 1, 0, 1, 0, 1])
    assert len(partitioned.boundaries) == 5
    assert {boundary.offset for boundary in partitioned.boundaries} == {0, 64}


def test_values_that_are_alive_together_do_not() -> None:
    partitioned = split(diamond(), [0, 1, 2, 3, 0])
    spans: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(partitioned.steps):
        for wire in (*step.inputs, *step.outputs):
            if wire.place is WireEnd.BOUNDARY:
                first, _ = spans.get(wire.index, (number, number))
                spans[wire.index] = first, number
    for (one, a), (other, b) in combinations(spans.items(), 2):
        if a[0] <= b[1] and b[0] <= a[1]:
            offsets = [partitioned.boundaries[each].offset for each in (one, other)]
            assert abs(offsets[0] - offsets[1]) >= 16


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([(0, 1)], "expected each of 3 once"),
        ([(0, 1), (1, 2)], "expected each of 3 once"),
        ([(0, 1, 2), ()], "expected each of 3 once"),
        ([(1, 2), (0,)], "operation 1 reads operand .*a later group writes"),
        ([(1, 0, 2)], "operation 1 reads"),
    ],
)
def test_groups_that_are_none(groups: list[tuple[int, ...]], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        cut(chain(3), [Group(0, each) for each in groups])


def unknown_between() -> Model:
    """A chain of three that does not state the shapes of its temporaries."""
    model = chain(3)
    operands = tuple(
        msgspec.structs.replace(operand, dimensions=())
        if operand.lifetime == OperandLifeTime.TEMPORARY_VARIABLE
        else operand
        for operand in model.main.operands
    )
    return msgspec.structs.replace(
        model, main=msgspec.structs.replace(model.main, operands=operands)
    )


def test_shapes_that_follow_are_written_down() -> None:
    assert with_inferred_shapes(unknown_between()) == chain(3)
    partitioned = valid(split(unknown_between(), [0, 1, 0]))
    assert [boundary.dimensions for boundary in partitioned.boundaries] == [SHAPE, SHAPE]


def test_a_model_that_states_all_shapes_is_left_alone() -> None:
    model = chain(2)
    assert with_inferred_shapes(model) is model


def test_shapes_that_depend_on_an_input_stay_open() -> None:
    builder = nn.ModelBuilder("open")
    x = builder.input("x", (0, 4))
    y = builder.add(x, x)
    builder.output("y", builder.mul(y, y))
    (boundary,) = split(builder.build(), [0, 1]).boundaries
    assert not boundary.is_settled
