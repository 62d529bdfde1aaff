"""Legal models pass; each way of being illegal is named, with its place."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument, ModelError
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
    Request,
    RequestArgument,
    StatePair,
    Subgraph,
)
from nnasync.memory import Pool
from nnasync.model import ModelBuilder
from nnasync.validation import combine_dimensions, validate_model, validate_request

TEMPORARY = OperandLifeTime.TEMPORARY_VARIABLE
COPY = OperandLifeTime.CONSTANT_COPY


def example() -> Model:
    """Operands 0 x, 1 h (state), 2 sum, 3 factor [1], 4 none, 5 scaled, 6 none, 7 next h."""
    m = ModelBuilder("example")
    x, h = m.input("x", (2, 3)), m.state("h", (2, 3))
    total = m.add(x, h)
    m.output("y", m.mul(total, m.constant(np.array([2.0]), name="factor")))
    m.update(h, total)
    return m.build()


EXAMPLE = example()


def changed(model: Model, index: int, **fields: Any) -> Model:
    """The model with fields of one operand of the main subgraph changed."""
    operands = list(model.main.operands)
    operands[index] = msgspec.structs.replace(operands[index], **fields)
    return with_main(model, operands=tuple(operands))


def with_main(model: Model, **fields: Any) -> Model:
    main = msgspec.structs.replace(model.main, **fields)
    return msgspec.structs.replace(model, main=main)


def find(model: Model, name: str) -> int:
    return [operand.name for operand in model.main.operands].index(name)


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
def test_illegal_quantisation(type: OperandType, scale: float, zero_point: int) -> None:
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
        (msgspec.structs.replace(EXAMPLE, state=(StatePair(5, 0),)), "input 5 is not one of"),
        (msgspec.structs.replace(EXAMPLE, state=(StatePair(0, -1),)), "output -1"),
        (msgspec.structs.replace(EXAMPLE, state=(StatePair(0, 0),) * 2), "same input"),
        (
            msgspec.structs.replace(
                EXAMPLE, extension_name_to_prefix=(ExtensionNameAndPrefix("a.b", 0),)
            ),
            "prefix 0",
        ),
    ],
)
def test_illegal_structure(model: Model, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        validate_model(model)


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


def subgraph(*targets: int) -> Subgraph:
    """One addition, and operands that refer to subgraphs."""
    one = Operand(type=OperandType.TENSOR_FLOAT32, dimensions=(1,))
    operands = (
        msgspec.structs.replace(
            one, lifetime=OperandLifeTime.SUBGRAPH_INPUT, number_of_consumers=1
        ),
        msgspec.structs.replace(one, lifetime=OperandLifeTime.SUBGRAPH_OUTPUT),
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
    validate_model(Model(subgraph(0, 1), (subgraph(1, 2), subgraph(2), subgraph())))
    for referenced in ((subgraph(0),), (subgraph(1), subgraph(0))):
        with pytest.raises(ModelError, match="refers to itself"):
            validate_model(Model(subgraph(0), referenced))
    with pytest.raises(ModelError, match="referenced subgraph 0, operand 2: refers to subgraph 7"):
        validate_model(Model(subgraph(0), (subgraph(7),)))


def test_deep_chains_of_subgraphs_do_not_exhaust_the_stack() -> None:
    count = 5000
    chain = tuple(subgraph(index + 1) for index in range(count - 1))
    validate_model(Model(subgraph(0), (*chain, subgraph())))


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


def request(pool: Pool | int, *arguments: RequestArgument) -> Request:
    return Request(arguments[:2], arguments[2:], (pool,))


def at(offset: int, length: int = 24, dimensions: tuple[int, ...] = ()) -> RequestArgument:
    return RequestArgument(location=DataLocation(0, offset, length), dimensions=dimensions)


def test_requests() -> None:
    with Pool.allocate(96) as pool:
        good = (at(0), at(24), at(48), at(72))
        validate_request(EXAMPLE, request(pool, *good))
        validate_request(EXAMPLE, request(7, *(at(0, 0),) * 4))
        validate_request(EXAMPLE, request(pool, at(0, 24, (2, 3)), *good[1:]))
        omitted = RequestArgument(has_no_value=True)
        validate_request(EXAMPLE, request(pool, omitted, *good[1:]))
        bad: list[tuple[Request, str]] = [
            (request(pool, *good[:3]), "1 outputs, the model has 2"),
            (request(pool, at(80), *good[1:]), 'input 0 "x": is 24 bytes at 80'),
            (request(pool, at(-1), *good[1:]), "at -1"),
            (request(pool, at(0, -1), *good[1:]), "is -1 bytes"),
            (request(pool, at(0, 24, (3, 2)), *good[1:]), r"\[3, 2\]"),
            (request(pool, at(0, 24, (2, 0)), *good[1:]), r"\[2, 0\]; they must be given"),
            (request(pool, at(0, 24, (2, -3)), *good[1:]), r"\[2, -3\]"),
            (request(pool, *good[:2], at(0, 24, (2, 4)), good[3]), 'output 0 "y"'),
            (request(pool, at(0, 20), *good[1:]), 'input 0 "x": has 20 bytes, but takes 24'),
            (request(pool, at(80, 0), *good[1:]), 'input 0 "x": has 16 bytes, but takes 24'),
            (request(7, *good), "driver-managed"),
            (request(0, *good), "token 0"),
            (
                request(pool, RequestArgument(location=DataLocation(1, 0, 24)), *good[1:]),
                "pool 1, but the request has 1",
            ),
            (
                request(pool, RequestArgument(has_no_value=True, dimensions=(1,)), *good[1:]),
                "neither location nor dimensions",
            ),
        ]
        for wrong, message in bad:
            with pytest.raises(InvalidArgument, match=message):
                validate_request(EXAMPLE, wrong)


def test_unknown_dimensions_are_given_by_the_request() -> None:
    m = ModelBuilder()
    m.output("y", m.relu(m.input("x", (0, 3))))
    model = m.build()
    with Pool.allocate(96) as pool:
        whole = RequestArgument()
        known = RequestArgument(dimensions=(2, 3))
        validate_request(model, Request((known,), (whole,), (pool,)))
        with pytest.raises(InvalidArgument, match="input 0"):
            validate_request(model, Request((whole,), (whole,), (pool,)))
        with pytest.raises(InvalidArgument, match="output 0"):
            validate_request(model, Request((known,), (whole,), (pool,)), unspecified_outputs=False)
