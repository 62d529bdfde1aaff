"""Which HAL versions can express a model, and what the reasons say."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from nnasync._core.model import ModelBuilder
from nnasync._core.validation import compliant_with, minimum_version, noncompliance, validate_model
from nnasync.errors import ModelError
from nnasync.hal import (
    HalVersion,
    Model,
    OperandType,
    OperationType,
    Request,
)
from nnasync.memory import Pool
from tests.validation.defaults import without_defaults
from tests.validation.models import EXAMPLE, changed, find, official, replace, with_main
from tests.validation.test_request import Foreign

V1_0, V1_1, V1_2, V1_3 = HalVersion


BY_HAND = {"mobilenet_224_gender_basic_fixed"}
"""Cases whose authors state a later version than their operations need."""


def test_official_cases_state_the_first_version_that_has_them(shared: Path) -> None:
    wrong = [
        (case.name, found.name, case.version.name)
        for case in official(shared)
        if case.version is not None
        and case.name not in BY_HAND
        and (found := minimum_version(without_defaults(case.model))) != case.version
    ]
    assert wrong == []


def test_versions_include_the_older(shared: Path) -> None:
    seen = set()
    for case in islice(official(shared), 0, None, 11):
        before: frozenset[int] | None = None
        for version in HalVersion:
            report = noncompliance(version, case.model)
            assert bool(report.reasons) == (version < minimum_version(case.model))
            assert compliant_with(version, case.model) == (not report.reasons)
            if report.operations:
                assert before is None or report.operations <= before
                seen.add(version)
            before = report.operations
    assert seen == {V1_0, V1_1, V1_2}


def one(type: OperationType, *inputs: Any, **more: Any) -> Model:
    """One operation on inputs given as (name, shape, fields) or constants."""
    m = ModelBuilder()
    operands = [
        m.input(x[0], x[1], **(x[2] if len(x) > 2 else {})) if isinstance(x, tuple) else x
        for x in inputs
    ]
    m.output("y", m.operation(type, *operands, **more))
    return m.build()


QUANT8: dict[str, Any] = {
    "type": OperandType.TENSOR_QUANT8_ASYMM,
    "scale": 0.5,
}


@pytest.mark.parametrize(
    ("model", "version", "reasons"),
    [
        (
            one(OperationType.SUB, ("a", (2,), QUANT8), ("b", (2,), QUANT8), 0, scale=1.0),
            V1_1,
            [
                r"^operation 0 \(SUB\): in HAL 1.1, input 0 \(a\) is TENSOR_QUANT8_ASYMM, .* "
                r"expected TENSOR_FLOAT32: this is legal since HAL 1.2"
            ],
        ),
        (
            one(OperationType.SUB, ("a", (2,)), ("b", (2,)), 0),
            V1_0,
            [r"operation 0 \(SUB\): exists since HAL 1.1"],
        ),
        (
            one(OperationType.SOFTMAX, ("x", (2, 3, 4)), 1.0),
            V1_1,
            [r'input 0 \(input\), operand 0 "x", has .* \[2, 3, 4\]; HAL 1.1 .* rank 2 or 4'],
        ),
        (
            one(OperationType.RELU, ("x", (2,), {"type": OperandType.TENSOR_FLOAT16})),
            V1_1,
            [
                r'^operation 0 \(RELU\): input 0, operand 0 "x": TENSOR_FLOAT16 exists since',
                r'^operation 0 \(RELU\): output 0, operand 1 "y": TENSOR_FLOAT16 exists since',
            ],
        ),
        (
            one(OperationType.SOFTMAX, ("x", (2, 3)), 1.0, -1),
            V1_1,
            [r"operation 0 \(SOFTMAX\): in HAL 1.1, has 3 inputs, expected 2: this is legal since"],
        ),
        (
            one(OperationType.RELU, ("x", ())),
            V1_1,
            ["TENSOR_FLOAT32 can have an unknown rank since HAL 1.2"] * 2,
        ),
        (
            one(
                OperationType.FULLY_CONNECTED,
                ("x", (1, 2), QUANT8),
                ("w", (3, 2), QUANT8),
                ("b", (3,), {"type": OperandType.TENSOR_INT32, "scale": 0.25}),
                0,
                scale=0.25,
            ),
            V1_0,
            [r"HAL 1.0 does not take this quantization \(operand 0 .x. has scale 0.5 and zero"],
        ),
    ],
)
def test_reasons_name_operation_operand_and_rule(
    model: Model, version: HalVersion, reasons: list[str]
) -> None:
    report = noncompliance(version, model)
    assert report.operations == {0}
    assert len(report.reasons) == len(reasons), report.reasons
    for reason, pattern in zip(report.reasons, reasons, strict=True):
        assert re.search(pattern, reason), reason
    with pytest.raises(ModelError, match="not legal in HAL 1"):
        validate_model(model, version)
    validate_model(model, minimum_version(model))


def test_only_operations_at_fault_are_named() -> None:
    m = ModelBuilder()
    x = m.input("x", (2, 3))
    m.output("y", m.relu(m.operation(OperationType.LOG, m.relu(x))))
    assert noncompliance(V1_1, m.build()).operations == {1}


def test_relaxed_computation_needs_no_version() -> None:
    relaxed = replace(EXAMPLE, relax_computation_float32_to_float16=True)
    assert minimum_version(relaxed) == V1_0
    assert compliant_with(V1_0, relaxed)


def test_values_need_no_version() -> None:
    m = ModelBuilder()
    m.output("y", m.reshape(m.input("x", (2, 3)), (3, 2)))
    assert minimum_version(m.build()) == V1_0


def test_an_unused_operand_is_no_matter_of_compliance_but_of_validity() -> None:
    spare = replace(EXAMPLE.main.operands[find(EXAMPLE, "factor")], number_of_consumers=0)
    wide = replace(spare, type=OperandType.TENSOR_FLOAT16, dimensions=(2,), name="spare")
    model = with_main(EXAMPLE, operands=(*EXAMPLE.main.operands, wide))
    assert compliant_with(V1_0, model)
    validate_model(model)
    with pytest.raises(ModelError, match='"spare": TENSOR_FLOAT16 exists since HAL 1.2'):
        validate_model(model, V1_1)


def test_constants_in_a_pool_that_an_older_version_does_not_know() -> None:
    index = find(EXAMPLE, "factor")
    constant = {"lifetime": 4, "location": replace(EXAMPLE.main.operands[index].location, offset=0)}
    for name, version in (("mmap_fd", V1_0), ("hardware_buffer_blob", V1_2)):
        model = replace(changed(EXAMPLE, index, **constant), pools=(Foreign(name),))
        validate_model(model)
        assert minimum_version(model) == version
    assert '"factor": its pool of kind' in noncompliance(V1_1, model).reasons[0]


def test_what_no_version_has() -> None:
    first, second = EXAMPLE.main.operations
    model = with_main(EXAMPLE, operations=(first, replace(second, inputs=second.inputs[:1])))
    with pytest.raises(ModelError, match=r"operation 1 \(MUL\): MUL: has 1 inputs"):
        minimum_version(model)
    assert not compliant_with(V1_3, model)
    assert noncompliance(V1_3, model).operations == {1}


def test_requests() -> None:
    with Pool.allocate(4) as pool:
        for request, since in (
            (Request((), (), (pool,)), V1_0),
            (Request((), (), (pool, Foreign("hardware_buffer"))), V1_2),
            (Request((), (), (pool, 7)), V1_3),
        ):
            assert [compliant_with(version, request) for version in HalVersion] == [
                version >= since for version in HalVersion
            ]
