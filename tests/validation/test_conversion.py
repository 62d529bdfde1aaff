"""What a device of another HAL version gets, and what is lost on the way."""

from __future__ import annotations

from nnasync import hal
from nnasync._core.validation import newest_capabilities, older_model
from nnasync.hal import (
    Capabilities,
    Capabilities10,
    Capabilities11,
    Capabilities12,
    ChannelQuant,
    ExtensionNameAndPrefix,
    HalVersion,
    OperandType,
    PerformanceInfo,
)
from tests.validation.models import EXAMPLE, branching, changed, replace

V1_0, V1_1, V1_2, V1_3 = HalVersion
T = OperandType


def test_a_model_that_complies_loses_nothing() -> None:
    for version in HalVersion:
        assert older_model(version, EXAMPLE) == (EXAMPLE, ())


def test_models_of_1_2_have_no_referenced_subgraphs() -> None:
    model = branching()
    assert older_model(V1_3, model) == (model, ())
    converted, losses = older_model(V1_2, model)
    assert converted == replace(model, referenced=())
    assert losses[0] == "2 referenced subgraphs"
    assert any("SUBGRAPH exists since HAL 1.3" in loss for loss in losses)


def test_models_of_1_1_have_no_extensions_and_extra_parameters() -> None:
    named = replace(EXAMPLE, extension_name_to_prefix=(ExtensionNameAndPrefix("a.b", 1),))
    per_channel = {
        "type": T.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        "extra_params": ChannelQuant((1.0, 1.0), 0),
    }
    model = changed(named, 0, **per_channel)
    assert older_model(V1_2, named) == (named, ())
    converted, losses = older_model(V1_1, model)
    assert converted.extension_name_to_prefix == ()
    assert converted.main.operands[0] == replace(model.main.operands[0], extra_params=None)
    assert losses[:2] == ("the extension a.b", 'the extra parameters of operand 0 "x"')
    assert any("TENSOR_QUANT8_SYMM_PER_CHANNEL" in loss for loss in losses[2:])


def test_models_of_1_0_are_not_relaxed() -> None:
    relaxed = replace(EXAMPLE, relax_computation_float32_to_float16=True)
    assert older_model(V1_1, relaxed) == (relaxed, ())
    converted, losses = older_model(V1_0, relaxed)
    assert converted == EXAMPLE
    assert losses == ("the permission to compute float32 as float16",)


FAST, SLOW, RELAXED = (PerformanceInfo(n, n / 2) for n in (0.25, 2.0, 0.125))
NONE = PerformanceInfo()


def test_capabilities_of_1_0_go_up() -> None:
    converted = newest_capabilities(Capabilities10(FAST, SLOW))
    table = {entry.type: entry.info for entry in converted.operand_performance}
    assert table == {
        T.FLOAT32: FAST,
        T.TENSOR_FLOAT32: FAST,
        **dict.fromkeys((T.INT32, T.UINT32, T.TENSOR_INT32), SLOW),
        **dict.fromkeys((T.TENSOR_QUANT8_ASYMM, T.OEM, T.TENSOR_OEM_BYTE), SLOW),
    }
    assert list(table) == sorted(table)
    assert converted.relaxed_float32_to_float16_performance_scalar == FAST
    assert converted.relaxed_float32_to_float16_performance_tensor == FAST
    assert converted.if_performance == converted.while_performance == NONE
    assert hal.lookup(converted.operand_performance, T.TENSOR_QUANT8_ASYMM) == SLOW


def test_capabilities_of_1_1_go_up() -> None:
    converted = newest_capabilities(Capabilities11(FAST, SLOW, RELAXED))
    assert converted.relaxed_float32_to_float16_performance_scalar == RELAXED
    assert converted.relaxed_float32_to_float16_performance_tensor == RELAXED
    assert hal.lookup(converted.operand_performance, T.FLOAT32) == FAST


def test_capabilities_of_1_2_go_up() -> None:
    table = hal.uniform_performance(SLOW, [T.FLOAT32, T.TENSOR_FLOAT32])
    converted = newest_capabilities(Capabilities12(FAST, RELAXED, table))
    assert converted == Capabilities(
        FAST, RELAXED, table, if_performance=NONE, while_performance=NONE
    )
    assert newest_capabilities(converted) is converted
