"""Further forms of a case: outputs of unknown shape, signed twins."""

from __future__ import annotations

import numpy as np
import pytest

from nnasync._core.validation import validate_model
from nnasync.conformance.variants import UNCOUPLED, shifted, signed_twin, with_dynamic_outputs
from nnasync.hal import HalVersion, OperandType, OperationType
from tests.conformance.small_cases import (
    addition,
    case,
    constant,
    endless,
    impossible,
    int32,
    line,
    quantized_sum,
    rectified,
    tensor,
)


def test_dynamic_outputs_keep_only_the_rank() -> None:
    given = case(addition())
    dynamic = with_dynamic_outputs(given)
    assert dynamic is not None
    validate_model(dynamic.model)
    assert [operand.dimensions for operand in dynamic.model.main.operands] == [
        (2, 2),
        (2,),
        (),
        (0, 0),
    ]
    assert dynamic.outputs is given.outputs
    assert given.model.main.operands[3].dimensions == (2, 2)


def test_no_dynamic_form_of_scalars_and_failures() -> None:
    operands = [
        tensor("x", [[1]], "SUBGRAPH_INPUT"),
        int32(2) | {"lifetime": "SUBGRAPH_OUTPUT"},
    ]
    assert with_dynamic_outputs(case(line("rank", operands, [("RANK", [0], [1])]))) is None
    assert with_dynamic_outputs(case(impossible())) is None


@pytest.mark.parametrize("lifetime", ["CONSTANT_COPY", "CONSTANT_REFERENCE"])
def test_twin_is_shifted_everywhere(lifetime: str) -> None:
    given = case(quantized_sum(lifetime=lifetime))
    twin = signed_twin(given)
    assert twin is not None
    validate_model(twin.model)
    main = twin.model.main
    signed = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
    assert [operand.type for operand in main.operands] == [signed, signed, 1, signed]
    assert [operand.zero_point for operand in main.operands] == [-118, -118, 0, -118]
    assert constant(twin, 1).tolist() == [-117, -119, -118]
    assert constant(twin, 2) == 0
    assert twin.inputs[0] is not None
    assert twin.inputs[0].tolist() == [-118, -108, -98]
    assert twin.outputs[0].type == signed
    assert twin.outputs[0].value.tolist() == [-117, -109, -98]
    assert twin.version is HalVersion.V1_3
    assert constant(given, 1).tolist() == [11, 9, 10]


def test_which_cases_have_no_twin() -> None:
    assert signed_twin(case(addition())) is None
    assert signed_twin(case(endless())) is None
    assert signed_twin(case(rectified(expect_failure=True))) is None
    two = rectified()
    two["main"]["operations"].append({"op": "RELU", "in": [0], "out": [1]})
    assert signed_twin(case(two)) is None
    cast = rectified()
    cast["main"]["operations"][0]["op"] = "CAST"
    assert signed_twin(case(cast)) is None
    assert len(UNCOUPLED) == 5
    assert OperationType.PAD_V2 in UNCOUPLED


def test_a_model_without_version_has_a_twin_without() -> None:
    twin = signed_twin(case(rectified(version=None)))
    assert twin is not None
    assert twin.version is None


def test_shift_is_its_own_inverse() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    signed = shifted(every)
    assert signed.dtype == np.int8
    assert np.array_equal(signed.astype(int), every.astype(int) - 128)
    assert np.array_equal(shifted(signed), every)
    assert shifted(every).dtype == np.int8
