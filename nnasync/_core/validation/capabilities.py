"""Performance figures of older HAL versions in the form of HAL 1.3.

HAL 1.0 has two figures, 1.1 three, 1.2 one per operand type, 1.3 those of IF and WHILE in addition.
The figures of quantized tensors of 1.0 or 1.1 are given to the integer types too. (That of
TENSOR_QUANT8_ASYMM itself, Android's runtime leaves out, and finds under a larger type.)
"""

from __future__ import annotations

from nnasync.hal import (
    Capabilities,
    Capabilities10,
    Capabilities11,
    Capabilities12,
    OperandPerformance,
    OperandType,
    PerformanceInfo,
)

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


def newest_capabilities(found: AnyCapabilities) -> Capabilities:
    """The figures in the form of HAL 1.3."""
    if isinstance(found, Capabilities):
        return found
    if isinstance(found, Capabilities12):
        return Capabilities(
            found.relaxed_float32_to_float16_performance_scalar,
            found.relaxed_float32_to_float16_performance_tensor,
            found.operand_performance,
            if_performance=_UNKNOWN,
            while_performance=_UNKNOWN,
        )
    figures = dict.fromkeys(_FLOAT, found.float32_performance)
    figures |= dict.fromkeys(_QUANTIZED, found.quantized8_performance)
    relaxed = found.float32_performance
    if isinstance(found, Capabilities11):
        relaxed = found.relaxed_float32_to_float16_performance
    return Capabilities(
        relaxed,
        relaxed,
        tuple(OperandPerformance(type, figures[type]) for type in sorted(figures)),
        if_performance=_UNKNOWN,
        while_performance=_UNKNOWN,
    )
