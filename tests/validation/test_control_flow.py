"""IF and WHILE fit the subgraphs that they run, or say where they do not."""

from __future__ import annotations

from typing import Any

import pytest

from nnasync._core.validation import compliant_with, minimum_version, noncompliance, validate_model
from nnasync.errors import ModelError
from nnasync.hal import HalVersion, Model, OperandLifeTime, OperandType, OperationType
from tests.validation.models import (
    BOOL8,
    FLOAT,
    branching,
    changed,
    counted,
    find,
    looping,
    operand,
    replace,
    subgraph,
    with_main,
)


def test_legal_control_flow() -> None:
    for model in (branching(), looping()):
        validate_model(model)


def test_tensors_of_loops_may_grow() -> None:
    validate_model(looping((0,)))
    validate_model(looping(()))


@pytest.mark.parametrize("outer", [(2, 3), (0, 3), ()])
@pytest.mark.parametrize("inner", [(2, 3), (2, 0), ()])
def test_shapes_need_agree_only_where_known(outer: tuple[int, ...], inner: tuple[int, ...]) -> None:
    validate_model(branching(outer, inner))


def inner(model: Model, index: int, name: str, **fields: Any) -> Model:
    """The model with an operand of a referenced subgraph changed."""
    graph = model.referenced[index]
    operands = tuple(
        replace(operand, **fields) if operand.name == name else operand
        for operand in graph.operands
    )
    referenced = list(model.referenced)
    referenced[index] = replace(graph, operands=operands)
    return replace(model, referenced=tuple(referenced))


def outer(model: Model, name: str, **fields: Any) -> Model:
    """The model with an operand of the main subgraph changed."""
    names = [operand.name for operand in model.main.operands]
    return changed(model, names.index(name), **fields)


def rewired(model: Model, inputs: tuple[int, ...], outputs: tuple[int, ...] | None = None) -> Model:
    """The model whose one operation has other operands; those left over are no inputs any more."""
    (operation,) = model.main.operations
    outputs = operation.outputs if outputs is None else outputs
    main = replace(model.main, operations=(replace(operation, inputs=inputs, outputs=outputs),))
    return replace(model, main=counted(main))


IF, WHILE = branching(), looping()
QUANT8 = {"type": OperandType.TENSOR_QUANT8_ASYMM, "scale": 1.0}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (outer(IF, "which", dimensions=(2,)), r"input 0 is TENSOR_BOOL8 \[2\], expected"),
        (outer(IF, "which", dimensions=()), "input 0 is TENSOR_BOOL8"),
        (outer(IF, "which", type=OperandType.BOOL, dimensions=()), "input 0 is BOOL"),
        (
            outer(IF, "x", dimensions=(3, 2)),
            r"input 0 of the then branch and input 3 are not alike",
        ),
        (outer(IF, "x", type=OperandType.TENSOR_FLOAT16), "TENSOR_FLOAT32 and TENSOR_FLOAT16"),
        (outer(IF, "x", dimensions=(2, 3, 1)), r"dimensions \[2, 3\] and \[2, 3, 1\]"),
        (outer(IF, "y", dimensions=(3, 3)), "output 0 of the then branch and output 0"),
        (inner(IF, 1, "x", dimensions=(4, 3)), "input 0 of the else branch"),
        (inner(IF, 1, "y", dimensions=(4, 3)), "output 0 of the else branch"),
        (rewired(IF, (0, 1)), "has 2 inputs; it needs"),
        (rewired(IF, (0, 1, 2)), "there are 1 inputs of the then branch, expected 0"),
        (rewired(IF, (0, 1, 2, 3, 3)), "there are 1 inputs of the then branch, expected 2"),
        (rewired(IF, (0, 3, 2, 3)), "input 1 is TENSOR_FLOAT32, expected SUBGRAPH"),
        (rewired(IF, (1, 1, 2, 3)), "input 0 is SUBGRAPH"),
        (rewired(WHILE, (0, 1)), "has 2 inputs"),
        (rewired(WHILE, (0, 1, 2, 3, 4)), "there are 4 inputs of the condition, expected 3"),
        (rewired(WHILE, (1, 0, 2, 3, 4, 5)), "the condition has 2 outputs, expected 1"),
        (rewired(WHILE, (0, 0, 2, 3, 4, 5)), "output 0 of the body and output 0 are not alike"),
        (rewired(WHILE, (2, 1, 2, 3, 4, 5)), "input 0 is TENSOR_FLOAT32, expected SUBGRAPH"),
        (outer(WHILE, "step", dimensions=(2,)), "input 3 of the condition and input 5"),
        (outer(WHILE, "result", dimensions=(2,)), "output 0 of the body and output 0"),
        (inner(WHILE, 1, "next", dimensions=(3,)), "output 1 of the body and input 1 of the body"),
        (inner(WHILE, 0, "go", dimensions=(0,)), "output 0 of the condition is TENSOR_BOOL8"),
        (inner(WHILE, 1, "step", dimensions=(5,)), "input 3 of the body and input 5"),
    ],
)
def test_what_does_not_fit_is_named(model: Model, message: str) -> None:
    with pytest.raises(ModelError, match=rf"operation 0 \((IF|WHILE)\): .*{message}"):
        validate_model(model)


def test_a_condition_must_not_be_omitted() -> None:
    index = find(IF, "which")
    omitted = changed(IF, index, lifetime=OperandLifeTime.NO_VALUE)
    inputs = tuple(i for i in IF.main.input_indexes if i != index)
    with pytest.raises(ModelError, match=r"operation 0 \(IF\): input 0 must not be omitted"):
        validate_model(with_main(omitted, input_indexes=inputs))


def test_quantization_counts() -> None:
    quantized = branching()
    for name in ("x", "y"):
        quantized = outer(quantized, name, **QUANT8)
        for index in (0, 1):
            quantized = inner(quantized, index, name, **QUANT8)
    relu = replace(
        quantized.referenced[1],
        operations=quantized.referenced[1].operations,
    )
    model = replace(quantized, referenced=(relu, relu))
    validate_model(model)
    for fields in ({"scale": 2.0}, {"zero_point": 1}):
        with pytest.raises(ModelError, match="scale . zero point . and scale . zero point ."):
            validate_model(outer(model, "x", **fields))


def test_a_body_needs_an_output_for_each_result() -> None:
    results = with_main(
        WHILE,
        operands=(*WHILE.main.operands, *(replace(WHILE.main.operands[6], name=n) for n in "ab")),
        output_indexes=(6, 7, 8),
    )
    model = rewired(results, (0, 1, 2, 3, 4, 5), (6, 7, 8))
    with pytest.raises(ModelError, match="the body has 2 outputs; expected from 3"):
        validate_model(model)


def test_subgraphs_are_validated_too() -> None:
    broken = inner(IF, 1, "x", number_of_consumers=5)
    with pytest.raises(ModelError, match='referenced subgraph 1, operand 0 "x" has number_of_cons'):
        validate_model(broken)
    graph = subgraph(
        {"x": operand(FLOAT, 2, 3), "y": operand(FLOAT, 2, 3)},
        [(OperationType.ADD, "x", "y")],
        "x",
        "y",
    )
    with pytest.raises(
        ModelError, match=r"referenced subgraph 0, operation 0 \(ADD\): .* 1 inputs"
    ):
        validate_model(replace(IF, referenced=(graph, IF.referenced[1])))


def test_a_branch_that_can_only_fail_may_be_there() -> None:
    """Its shapes contradict its operation, but it may never be taken."""
    wrong = subgraph(
        {"x": operand(FLOAT, 2, 3), "y": operand(FLOAT, 5)},
        [(OperationType.TANH, "x", "y")],
        "x",
        "y",
    )
    model = branching((2, 3), (2, 3))
    broken = outer(replace(model, referenced=(wrong, wrong)), "y", dimensions=(5,))
    validate_model(broken)
    alone = Model(wrong)
    with pytest.raises(ModelError, match=r"rule gives \[2, 3\]"):
        validate_model(alone)


def test_control_flow_needs_1_3() -> None:
    for model in (IF, WHILE):
        assert minimum_version(model) == HalVersion.V1_3
        assert not compliant_with(HalVersion.V1_2, model)
        report = noncompliance(HalVersion.V1_2, model)
        assert report.operations == {0}
        assert any("SUBGRAPH exists since HAL 1.3" in reason for reason in report.reasons)
    assert IF.main.operands[0].type == BOOL8
