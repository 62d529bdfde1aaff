"""Legal models pass; each way of being illegal is named, with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.model import ModelBuilder
from nnasync._core.validation import validate_model
from nnasync.errors import ModelError
from nnasync.hal import (
    ChannelQuant,
    DataLocation,
    ExtensionNameAndPrefix,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    StatePair,
    Subgraph,
    combine_dimensions,
)
from tests.validation.models import EXAMPLE, TEMPORARY, changed, find, replace, with_main
from tests.validation.test_request import Foreign


def test_the_example_is_legal() -> None:
    validate_model(EXAMPLE)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("x", {"type": 99}, "unknown operand type 99"),
        ("x", {"type": 0x10003}, "prefix that the model does not name"),
        ("x", {"type": OperandType.FLOAT32}, "FLOAT32 is a scalar"),
        ("x", {"type": OperandType.SUBGRAPH, "dimensions": ()}, "belong together"),
        ("x", {"dimensions": (2, -3)}, r"must be in \[0, 2\^32 - 1\]"),
        ("x", {"dimensions": (2**31, 3)}, "at most 2"),
        ("x", {"dimensions": (2, 4)}, r"operation 0 \(ADD\)"),
        ("x", {"scale": 1.0}, "TENSOR_FLOAT32 has scale 1.0; it must be 0"),
        ("x", {"zero_point": 1}, "has zero point 1"),
        ("x", {"extra_params": b"x"}, "extra parameters"),
        ("x", {"extra_params": ChannelQuant((1.0,), 0)}, "scales per channel"),
        ("x", {"location": DataLocation(0, 4, 0)}, "SUBGRAPH_INPUT has no location"),
        ("x", {"lifetime": TEMPORARY}, "input_indexes"),
        ("x", {"number_of_consumers": 2}, "operations read it 1 times"),
        ("factor", {"dimensions": (0,)}, "a constant needs known dimensions"),
        ("factor", {"dimensions": (2,)}, "takes 8"),
        ("factor", {"location": DataLocation(1, 0, 4)}, "pool index 0"),
        ("factor", {"location": DataLocation(0, 4000, 4)}, "4 bytes at 4000 of operand_values"),
        ("factor", {"location": DataLocation(0, -4, 4)}, "4 bytes at -4"),
        ("factor", {"lifetime": OperandLifeTime.CONSTANT_REFERENCE}, "pool 0 of 0"),
        ("factor", {"lifetime": TEMPORARY, "location": DataLocation()}, "no earlier operation"),
        ("y", {"lifetime": OperandLifeTime.SUBGRAPH_INPUT}, "only temporaries"),
        ("y", {"dimensions": (3, 2)}, r"rule gives \[2, 3\]"),
        ("y", {"type": OperandType.TENSOR_FLOAT16}, r"operation 1 \(MUL\)"),
    ],
)
def test_illegal_operands(name: str, fields: dict[str, Any], message: str) -> None:
    index = find(EXAMPLE, name)
    with pytest.raises(ModelError, match=message) as caught:
        validate_model(changed(EXAMPLE, index, **fields))
    assert "oper" in str(caught.value)


@pytest.mark.parametrize(
    ("type", "scale", "zero_point"),
    [
        (OperandType.TENSOR_QUANT8_ASYMM, 0.0, 0),
        (OperandType.TENSOR_QUANT8_ASYMM, float("nan"), 0),
        (OperandType.TENSOR_QUANT8_ASYMM, float("inf"), 0),
        (OperandType.TENSOR_QUANT8_ASYMM, 1e-46, 0),
        (OperandType.TENSOR_QUANT8_ASYMM, 1e39, 0),
        (OperandType.TENSOR_INT32, 1e39, 0),
        (OperandType.TENSOR_QUANT8_ASYMM, 1.0, 256),
        (OperandType.TENSOR_QUANT8_ASYMM_SIGNED, 1.0, -129),
        (OperandType.TENSOR_QUANT16_SYMM, 1.0, 1),
        (OperandType.TENSOR_QUANT16_ASYMM, 1.0, 65536),
        (OperandType.TENSOR_QUANT8_SYMM, -1.0, 0),
        (OperandType.TENSOR_INT32, -1.0, 0),
        (OperandType.TENSOR_INT32, 0.0, 1),
        (OperandType.TENSOR_BOOL8, 1.0, 0),
    ],
)
def test_illegal_quantization(type: OperandType, scale: float, zero_point: int) -> None:
    fields = {"type": type, "scale": scale, "zero_point": zero_point}
    with pytest.raises(ModelError, match=r'operand 0 "x": .*(scale|zero point)'):
        validate_model(changed(EXAMPLE, find(EXAMPLE, "x"), **fields))


@pytest.mark.parametrize(
    "extra",
    [
        None,
        ChannelQuant((1.0, 2.0), 2),
        ChannelQuant((1.0,), 0),
        ChannelQuant((1.0, 0.0), 0),
        ChannelQuant((1.0, float("nan")), 0),
        ChannelQuant((1.0, 1e39), 0),
    ],
)
def test_illegal_scales_per_channel(extra: ChannelQuant | None) -> None:
    fields = {"type": OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL, "extra_params": extra}
    with pytest.raises(ModelError, match=r'operand 0 "x": .*(channel)'):
        validate_model(changed(EXAMPLE, 0, **fields))


def operations(*items: Operation) -> Model:
    return with_main(EXAMPLE, operations=items)


ADD, MUL = EXAMPLE.main.operations


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (with_main(EXAMPLE, operations=()), "empty"),
        (operations(MUL, ADD), "which no earlier operation writes"),
        (operations(ADD, ADD, MUL), "was written before"),
        (operations(ADD), "never written"),
        (operations(ADD, Operation(500, MUL.inputs, MUL.outputs)), "no such operation"),
        (operations(ADD, Operation(18, (*MUL.inputs[:2], 99), MUL.outputs)), "operand 99"),
        (operations(ADD, Operation(18, MUL.inputs, (-1,))), "operand -1"),
        (operations(ADD, Operation(18, MUL.inputs, (0,))), "SUBGRAPH_INPUT"),
        (with_main(EXAMPLE, input_indexes=(0,)), "missing in input_indexes"),
        (with_main(EXAMPLE, input_indexes=(0, 1, 0)), "twice"),
        (with_main(EXAMPLE, output_indexes=(99,)), "output_indexes lists operand 99"),
        (replace(EXAMPLE, state=(StatePair(5, 0),)), "input 5 is not one of"),
        (replace(EXAMPLE, state=(StatePair(0, -1),)), "output -1"),
        (replace(EXAMPLE, state=(StatePair(0, 0),) * 2), "same input"),
        (
            replace(EXAMPLE, extension_name_to_prefix=(ExtensionNameAndPrefix("a.b", 0),)),
            "prefix 0",
        ),
    ],
)
def test_illegal_structure(model: Model, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        validate_model(model)


def test_pools_are_of_known_kinds() -> None:
    with pytest.raises(ModelError, match="pool 0 is of unknown kind 'disk'; known are ashmem"):
        validate_model(replace(EXAMPLE, pools=(Foreign("disk"),)))


def test_constants_of_oem_types_are_opaque() -> None:
    """Their sizes are nobody's business, but they need a shape."""
    index = find(EXAMPLE, "factor")
    odd = changed(EXAMPLE, index, type=OperandType.TENSOR_OEM_BYTE)
    first, second = EXAMPLE.main.operations
    model = with_main(odd, operations=(first, replace(second, type=OperationType.OEM_OPERATION)))
    validate_model(model)
    with pytest.raises(ModelError, match="a constant needs known dimensions"):
        validate_model(changed(model, index, dimensions=()))


def test_wrong_signature_names_operation_and_argument() -> None:
    wrong = operations(ADD, Operation(OperationType.MUL, MUL.inputs[:2], MUL.outputs))
    operand = MUL.inputs[2]
    with pytest.raises(ModelError, match=r"operation 1 \(MUL\): MUL: has 2 inputs"):
        validate_model(changed(wrong, operand, number_of_consumers=0))


def test_states_must_be_alike() -> None:
    m = ModelBuilder()
    x, h = m.input("x", (2, 3)), m.state("h", (1, 3))
    m.update(h, m.relu(x))
    with pytest.raises(ModelError, match=r"state 0: input 1 is TENSOR_FLOAT32 \[1, 3\]"):
        m.build()


def referring(*targets: int) -> Subgraph:
    """One addition, and operands that refer to subgraphs."""
    one = Operand(type=OperandType.TENSOR_FLOAT32, dimensions=(1,))
    operands = (
        replace(one, lifetime=OperandLifeTime.SUBGRAPH_INPUT, number_of_consumers=1),
        replace(one, lifetime=OperandLifeTime.SUBGRAPH_OUTPUT),
        *(
            Operand(
                type=OperandType.SUBGRAPH,
                lifetime=OperandLifeTime.SUBGRAPH,
                location=DataLocation(offset=target),
            )
            for target in targets
        ),
    )
    return Subgraph(operands, (Operation(OperationType.TANH, (0,), (1,)),), (0,), (1,))


def test_subgraphs_may_share_but_not_contain_themselves() -> None:
    validate_model(Model(referring(0, 1), (referring(1, 2), referring(2), referring())))
    for referenced in ((referring(0),), (referring(1), referring(0))):
        with pytest.raises(ModelError, match="refers to itself"):
            validate_model(Model(referring(0), referenced))
    with pytest.raises(ModelError, match="referenced subgraph 0, operand 2: refers to subgraph 7"):
        validate_model(Model(referring(0), (referring(7),)))


def test_deep_chains_of_subgraphs_do_not_exhaust_the_stack() -> None:
    count = 5000
    chain = tuple(referring(index + 1) for index in range(count - 1))
    validate_model(Model(referring(0), (*chain, referring())))


@given(st.lists(st.integers(0, 4), max_size=4), st.lists(st.integers(0, 4), max_size=4))
def test_combined_dimensions_satisfy_both(a: list[int], b: list[int]) -> None:
    first, second = tuple(a), tuple(b)
    combined = combine_dimensions(first, second)
    assert combined == combine_dimensions(second, first)
    if combined is not None:
        for given_ in (first, second):
            assert not given_ or len(given_) == len(combined)
            assert all(n in (0, c) for n, c in zip(given_, combined, strict=False))
    elif first and second and len(first) == len(second):
        assert any(x and y and x != y for x, y in zip(first, second, strict=True))
