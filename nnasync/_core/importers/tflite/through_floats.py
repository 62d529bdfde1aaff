"""Operators on bytes that the HAL has for floats only: computed between DEQUANTIZE and QUANTIZE.

LiteRT does the same in fixed point or by a table, and its results may differ by one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from nnasync._core.importers.tflite.converter import (
    Convert,
    Converter,
    Kinds,
    dequantized,
    fused,
    option,
    refuse_fused,
    refuse_nothing,
)
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo
from nnasync._core.model import Value
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType

_T = OperationType
_SIGNED: Kinds = (("INT8",),)
_BOTH: Kinds = (("UINT8",), ("INT8",))
_MIDDLE = 128
_Compute = Callable[[Tensors, OperatorInfo, list[Value]], Value]


def _through(compute: _Compute, count: int = 1) -> Convert:
    """Returns a converter that computes on so many dequantized inputs, and quantizes the result."""

    def convert(tensors: Tensors, operator: OperatorInfo) -> None:
        given = [dequantized(tensors, tensors.input(operator, place)) for place in range(count)]
        tensors.emit(operator, _T.QUANTIZE, [compute(tensors, operator, given)])

    return convert


def _absolute(tensors: Tensors, operator: OperatorInfo, given: list[Value]) -> Value:
    return tensors.builder.operation(_T.ABS, given[0])


def _log_softmax(tensors: Tensors, operator: OperatorInfo, given: list[Value]) -> Value:
    (x,) = given
    return tensors.builder.operation(_T.LOG_SOFTMAX, x, 1.0, len(x.shape) - 1)


def _sum(tensors: Tensors, operator: OperatorInfo, given: list[Value]) -> Value:
    axes, keep_dims = tensors.input(operator, 1), bool(option(operator, "KeepDims"))
    return tensors.builder.operation(_T.REDUCE_SUM, given[0], axes, keep_dims)


def _quotient(tensors: Tensors, operator: OperatorInfo, given: list[Value]) -> Value:
    return tensors.builder.operation(_T.DIV, *given, fused(operator))


def _squared_difference(tensors: Tensors, operator: OperatorInfo, given: list[Value]) -> Value:
    x = tensors.builder.operation(_T.SUB, *given, 0)
    return tensors.builder.operation(_T.MUL, x, x, 0)


def _leaky(tensors: Tensors, operator: OperatorInfo) -> None:
    """PRELU, which the HAL has for bytes, with a slope that is one step of its own scale."""
    x, slope = tensors.input(operator, 0), float(option(operator, "Alpha"))
    if not math.isfinite(slope):
        raise ModelError(f"has slope {slope}")
    zero = _MIDDLE if x.type == OperandType.TENSOR_QUANT8_ASYMM else 0
    steps = np.asarray([zero + int(np.sign(slope))]).astype(np.uint8 if zero else np.int8)
    scale = float(np.float32(abs(slope))) or 1.0
    alpha = tensors.builder.constant(steps, type=OperandType(x.type), scale=scale, zero_point=zero)
    tensors.emit(operator, _T.PRELU, [x, alpha])


def _refuse_slope(graph: Graph, operator: OperatorInfo) -> str | None:
    slope = abs(float(option(operator, "Alpha")))
    tiny = float(np.finfo(np.float32).tiny)
    return None if slope == 0 or tiny <= slope < math.inf else f"with slope {slope}"


def _with_axes(kinds: Kinds) -> Kinds:
    return tuple((*kind, "INT32") for kind in kinds)


CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "ABS": (Converter(_SIGNED, _through(_absolute), refuse_nothing),),
    "LOG_SOFTMAX": (Converter(_BOTH, _through(_log_softmax), refuse_nothing),),
    "SUM": (Converter(_with_axes(_BOTH), _through(_sum), refuse_nothing),),
    "DIV": (Converter((("UINT8",),), _through(_quotient, 2), refuse_fused),),
    "SQUARED_DIFFERENCE": (Converter(_SIGNED, _through(_squared_difference, 2), refuse_nothing),),
    "LEAKY_RELU": (Converter(_BOTH, _leaky, _refuse_slope),),
}
"""What comes behind the converters for floats."""
