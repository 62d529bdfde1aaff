"""What a device of another HAL version gets, and what is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync import hal
from nnasync._core.validation import compliant_with, convert_to
from nnasync._core.validation import converted as quietly_converted
from nnasync.errors import InvalidArgument
from nnasync.hal import (
    BufferDesc,
    Capabilities,
    Capabilities10,
    Capabilities11,
    Capabilities12,
    ChannelQuant,
    ErrorStatus,
    ExtensionNameAndPrefix,
    HalVersion,
    OperandPerformance,
    OperandType,
    PerformanceInfo,
    Request,
)
from nnasync.memory import Pool
from tests.validation.models import EXAMPLE, branching, changed, replace
from tests.validation.test_request import Foreign

V1_0, V1_1, V1_2, V1_3 = HalVersion
T = OperandType


def test_a_model_that_complies_loses_nothing() -> None:
    for version in HalVersion:
        assert convert_to(version, EXAMPLE) == (EXAMPLE, ())


def test_models_of_1_2_have_no_referenced_subgraphs() -> None:
    model = branching()
    assert convert_to(V1_3, model) == (model, ())
    converted, losses = convert_to(V1_2, model)
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
    assert convert_to(V1_2, named) == (named, ())
    converted, losses = convert_to(V1_1, model)
    assert converted.extension_name_to_prefix == ()
    assert converted.main.operands[0] == replace(model.main.operands[0], extra_params=None)
    assert losses[:2] == ("the extension a.b", 'the extra parameters of operand 0 "x"')
    assert any("TENSOR_QUANT8_SYMM_PER_CHANNEL" in loss for loss in losses[2:])


def test_models_of_1_0_are_not_relaxed() -> None:
    relaxed = replace(EXAMPLE, relax_computation_float32_to_float16=True)
    assert convert_to(V1_1, relaxed) == (relaxed, ())
    converted, losses = convert_to(V1_0, relaxed)
    assert converted == EXAMPLE
    assert losses == ("the permission to compute float32 as float16",)


def test_losses_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    relaxed = replace(EXAMPLE, relax_computation_float32_to_float16=True)
    convert_to(V1_1, relaxed)
    assert quietly_converted(V1_0, relaxed)[1]
    assert caplog.messages == []
    convert_to(V1_0, relaxed)
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert caplog.messages == [
        "converting to HAL 1.0 loses the permission to compute float32 as float16"
    ]


@pytest.mark.parametrize("status", ErrorStatus)
def test_statuses(status: ErrorStatus) -> None:
    assert convert_to(V1_3, status) == (status, ())
    for version in (V1_0, V1_1, V1_2):
        converted, losses = convert_to(version, status)
        known = status <= ErrorStatus.INVALID_ARGUMENT
        assert converted == (status if known else ErrorStatus.GENERAL_FAILURE)
        assert bool(losses) == (not known)
        assert compliant_with(version, converted)


def test_requests() -> None:
    with Pool.allocate(4) as pool:
        request = Request((), (), (pool,))
        for version in HalVersion:
            assert convert_to(version, request) == (request, ())
        with pytest.raises(InvalidArgument, match="pool 1 .* is a token, which HAL 1.2"):
            convert_to(V1_2, replace(request, pools=(pool, 7)))
    foreign = Request((), (), (Foreign("hardware_buffer"),))
    converted, losses = convert_to(V1_1, foreign)
    assert converted is foreign
    assert "pool 0 is of kind 'hardware_buffer'" in losses[0]


def test_descriptions_of_buffers() -> None:
    desc = BufferDesc((1, 0))
    assert convert_to(V1_3, desc) == (desc, ())
    with pytest.raises(InvalidArgument, match="HAL 1.2 has no driver-managed buffers"):
        convert_to(V1_2, desc)


FAST, SLOW, RELAXED = (PerformanceInfo(n, n / 2) for n in (0.25, 2.0, 0.125))
NONE = PerformanceInfo()


def test_capabilities_of_1_0_go_up() -> None:
    converted, losses = convert_to(V1_3, Capabilities10(FAST, SLOW))
    assert losses == ()
    assert isinstance(converted, Capabilities)
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


def test_capabilities_of_1_1_go_up_and_down() -> None:
    middle = Capabilities11(FAST, SLOW, RELAXED)
    converted, _ = convert_to(V1_2, middle)
    assert isinstance(converted, Capabilities12)
    assert converted.relaxed_float32_to_float16_performance_scalar == RELAXED
    assert convert_to(V1_1, converted) == (middle, ())
    lowest, losses = convert_to(V1_0, middle)
    assert lowest == Capabilities10(FAST, SLOW)
    assert losses == (
        "the performance figures of relaxed scalars",
        "the performance figures of relaxed tensors",
    )
    assert convert_to(V1_1, lowest) == (Capabilities11(FAST, SLOW, FAST), ())


def full(**fields: Any) -> Capabilities:
    """All figures alike but those that are given; by type name or by field."""
    table = hal.uniform_performance(FAST)
    for name in list(fields):
        if name in T.__members__:
            table = hal.update(table, T.__members__[name], fields.pop(name))
    given = {
        "relaxed_float32_to_float16_performance_scalar": FAST,
        "relaxed_float32_to_float16_performance_tensor": FAST,
        "if_performance": NONE,
        "while_performance": NONE,
    }
    return Capabilities(**{**given, **fields}, operand_performance=table)


def test_capabilities_of_1_3_go_down() -> None:
    converted, losses = convert_to(V1_2, full(if_performance=SLOW))
    assert isinstance(converted, Capabilities12)
    assert T.TENSOR_QUANT8_ASYMM_SIGNED not in [e.type for e in converted.operand_performance]
    assert losses == (
        "the performance figures of TENSOR_QUANT8_ASYMM_SIGNED",
        "the performance figures of IF",
    )
    lowest, losses = convert_to(V1_0, full(TENSOR_QUANT8_ASYMM=SLOW, BOOL=SLOW, INT32=RELAXED))
    assert lowest == Capabilities10(FAST, SLOW)
    assert "the performance figures of INT32" in losses
    assert "the performance figures of BOOL" in losses


@pytest.mark.parametrize(
    ("fields", "versions"),
    [
        ({}, [V1_3]),
        ({"TENSOR_QUANT8_ASYMM_SIGNED": None}, [V1_0, V1_1, V1_2, V1_3]),
        ({"TENSOR_QUANT8_ASYMM_SIGNED": None, "FLOAT32": SLOW}, [V1_2, V1_3]),
        ({"TENSOR_QUANT8_ASYMM_SIGNED": None, "TENSOR_OEM_BYTE": SLOW}, [V1_2, V1_3]),
        ({"TENSOR_QUANT8_ASYMM_SIGNED": None, "TENSOR_FLOAT16": SLOW}, [V1_0, V1_1, V1_2, V1_3]),
        ({"TENSOR_QUANT8_ASYMM_SIGNED": None, "while_performance": SLOW}, [V1_3]),
        (
            {
                "TENSOR_QUANT8_ASYMM_SIGNED": None,
                "relaxed_float32_to_float16_performance_scalar": SLOW,
            },
            [V1_2, V1_3],
        ),
        (
            {
                "TENSOR_QUANT8_ASYMM_SIGNED": None,
                "relaxed_float32_to_float16_performance_scalar": SLOW,
                "relaxed_float32_to_float16_performance_tensor": SLOW,
            },
            [V1_1, V1_2, V1_3],
        ),
    ],
)
def test_compliance_of_capabilities(fields: dict[str, Any], versions: list[HalVersion]) -> None:
    dropped = [T.__members__[name] for name, value in fields.items() if value is None]
    capabilities = full(**{name: value for name, value in fields.items() if value is not None})
    kept = [e for e in capabilities.operand_performance if e.type not in dropped]
    capabilities = replace(capabilities, operand_performance=tuple(kept))
    assert [v for v in HalVersion if compliant_with(v, capabilities)] == versions


def test_a_token_of_its_own_figure_for_quantized_tensors_is_no_1_1() -> None:
    kept = [e for e in hal.uniform_performance(FAST) if e.type != T.TENSOR_QUANT8_ASYMM_SIGNED]
    odd = [
        OperandPerformance(e.type, SLOW if e.type == T.TENSOR_QUANT8_ASYMM else e.info)
        for e in kept
    ]
    assert not compliant_with(V1_1, replace(full(), operand_performance=tuple(odd)))


infos = st.builds(PerformanceInfo, st.floats(0.1, 10), st.floats(0.1, 10))


@given(infos, infos, infos)
def test_older_capabilities_survive_the_way_up_and_down(
    float32: PerformanceInfo, quantized8: PerformanceInfo, relaxed: PerformanceInfo
) -> None:
    oldest = Capabilities10(float32, quantized8)
    older = Capabilities11(float32, quantized8, relaxed)
    for version in HalVersion:
        up, _ = convert_to(version, oldest)
        assert convert_to(V1_0, up) == (oldest, ())
        assert compliant_with(V1_0, up)
        if version >= V1_1:
            up, losses = convert_to(version, older)
            assert losses == ()
            assert convert_to(V1_1, up) == (older, ())
            assert compliant_with(V1_1, up)
