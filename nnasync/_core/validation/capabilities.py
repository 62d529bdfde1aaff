"""Performance figures of the HAL's versions, and how one becomes the other.

HAL 1.0 has two figures, 1.1 three, 1.2 one per operand type, 1.3 those of IF and WHILE in addition.
Going up from 1.0 or 1.1, the figures of quantized tensors are given to the integer types too. (That
of TENSOR_QUANT8_ASYMM itself, Android's runtime leaves out, and finds under a larger type.)
"""

from __future__ import annotations

from nnasync import hal
from nnasync.hal import (
    Capabilities,
    Capabilities10,
    Capabilities11,
    Capabilities12,
    HalVersion,
    OperandPerformance,
    OperandType,
    PerformanceInfo,
)

__all__ = ["AnyCapabilities", "capabilities_fault", "capabilities_of", "lost_figures"]

AnyCapabilities = Capabilities | Capabilities10 | Capabilities11 | Capabilities12

_FLOAT = (OperandType.FLOAT32, OperandType.TENSOR_FLOAT32)
_QUANTIZED = (
    OperandType.INT32,
    OperandType.UINT32,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.OEM,
    OperandType.TENSOR_OEM_BYTE,
)
_UNKNOWN = PerformanceInfo()


def capabilities_of(version: HalVersion, capabilities: AnyCapabilities) -> AnyCapabilities:
    """The figures in the form of a HAL version."""
    if version == HalVersion.V1_0:
        older = _as_11(capabilities)
        return Capabilities10(older.float32_performance, older.quantized8_performance)
    if version == HalVersion.V1_1:
        return _as_11(capabilities)
    newer = _as_13(capabilities)
    if version == HalVersion.V1_3:
        return newer
    return Capabilities12(
        newer.relaxed_float32_to_float16_performance_scalar,
        newer.relaxed_float32_to_float16_performance_tensor,
        tuple(
            entry
            for entry in newer.operand_performance
            if (hal.operand_type_since(entry.type) or HalVersion.V1_3) <= HalVersion.V1_2
        ),
    )


def lost_figures(version: HalVersion, capabilities: AnyCapabilities) -> list[str]:
    """The figures that are not found again under their types in the form of a HAL version."""
    before, after = _as_13(capabilities), _as_13(capabilities_of(version, capabilities))
    losses = [
        f"the performance figures of {hal.type_name(entry.type)}"
        for entry in before.operand_performance
        if hal.lookup(after.operand_performance, entry.type) != entry.info
        or (hal.operand_type_since(entry.type) or HalVersion.V1_3) > max(version, HalVersion.V1_2)
    ]
    return losses + [
        f"the performance figures of {name}"
        for name, one, other in (
            ("IF", before.if_performance, after.if_performance),
            ("WHILE", before.while_performance, after.while_performance),
            (
                "relaxed scalars",
                before.relaxed_float32_to_float16_performance_scalar,
                after.relaxed_float32_to_float16_performance_scalar,
            ),
            (
                "relaxed tensors",
                before.relaxed_float32_to_float16_performance_tensor,
                after.relaxed_float32_to_float16_performance_tensor,
            ),
        )
        if one != other
    ]


def capabilities_fault(version: HalVersion, capabilities: AnyCapabilities) -> str | None:
    """Why a device of a HAL version cannot state these figures, or None.

    HAL 1.1 has one figure for both kinds of float32, and one for all integers and 8-bit tensors;
    HAL 1.0 has no other for relaxed computation.
    """
    full = _as_13(capabilities)
    if version < HalVersion.V1_3:
        if full.if_performance != _UNKNOWN or full.while_performance != _UNKNOWN:
            return "IF and WHILE have figures since HAL 1.3"
        for entry in full.operand_performance:
            since = hal.operand_type_since(entry.type)
            if since is None or since > HalVersion.V1_2:
                return f"{hal.type_name(entry.type)} exists since HAL 1.3"
    if version < HalVersion.V1_2:
        return _figures_fault(version, full)
    return None


def _figures_fault(version: HalVersion, full: Capabilities) -> str | None:
    """Where the figures need more than HAL 1.1, or 1.0, can tell."""
    table = full.operand_performance
    name = hal.version_name(version)
    float32 = hal.lookup(table, OperandType.TENSOR_FLOAT32)
    if hal.lookup(table, OperandType.FLOAT32) != float32:
        return f"FLOAT32 and TENSOR_FLOAT32 have one figure in {name}"
    scalar = full.relaxed_float32_to_float16_performance_scalar
    tensor = full.relaxed_float32_to_float16_performance_tensor
    if scalar != tensor:
        return f"relaxed scalars and tensors have one figure in {name}"
    if version == HalVersion.V1_0 and tensor != float32:
        return "relaxed computation has no figure of its own in HAL 1.0"
    quantized8 = hal.lookup(table, OperandType.TENSOR_QUANT8_ASYMM)
    for type in _QUANTIZED:
        if hal.lookup(table, type) != quantized8:
            return f"{type.name} and TENSOR_QUANT8_ASYMM have one figure in {name}"
    return None


def _as_11(capabilities: AnyCapabilities) -> Capabilities11:
    if isinstance(capabilities, Capabilities11):
        return capabilities
    if isinstance(capabilities, Capabilities10):
        float32 = capabilities.float32_performance
        return Capabilities11(float32, capabilities.quantized8_performance, float32)
    table = capabilities.operand_performance
    return Capabilities11(
        float32_performance=hal.lookup(table, OperandType.TENSOR_FLOAT32),
        quantized8_performance=hal.lookup(table, OperandType.TENSOR_QUANT8_ASYMM),
        relaxed_float32_to_float16_performance=(
            capabilities.relaxed_float32_to_float16_performance_tensor
        ),
    )


def _as_13(capabilities: AnyCapabilities) -> Capabilities:
    if isinstance(capabilities, Capabilities):
        return capabilities
    if isinstance(capabilities, Capabilities12):
        return Capabilities(
            capabilities.relaxed_float32_to_float16_performance_scalar,
            capabilities.relaxed_float32_to_float16_performance_tensor,
            capabilities.operand_performance,
            if_performance=_UNKNOWN,
            while_performance=_UNKNOWN,
        )
    older = _as_11(capabilities)
    figures = dict.fromkeys(_FLOAT, older.float32_performance)
    figures |= dict.fromkeys(_QUANTIZED, older.quantized8_performance)
    relaxed = older.relaxed_float32_to_float16_performance
    return Capabilities(
        relaxed,
        relaxed,
        tuple(OperandPerformance(type, figures[type]) for type in sorted(figures)),
        if_performance=_UNKNOWN,
        while_performance=_UNKNOWN,
    )
