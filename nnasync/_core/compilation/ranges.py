"""What the inputs of a model can be: the range of each, as far as the model tells it.

That of a quantized input is what its integers can hold. Where the first layer quantizes, beyond the
range of its output everything is cut off, so that an input beyond is like one at the end. Of other
floats nothing is known; most networks are trained for about [-1, 1].
"""

from __future__ import annotations

import msgspec
import numpy as np

from nnasync.extensions import TFLITE, TfliteOperation, extension_of
from nnasync.hal import (
    Model,
    Operand,
    OperandType,
    Operation,
    OperationType,
    dtype_of,
    is_extension,
)


class Range(msgspec.Struct, frozen=True):
    """States the range of an input in its own numbers, and whether the model tells that range."""

    lowest: float
    highest: float
    zero: float
    is_known: bool


def ranges_of(model: Model) -> list[Range | None]:
    """Returns the range of each input, None for states."""
    states = {pair.input for pair in model.state}
    return [
        None if position in states else _range_of(model, index)
        for position, index in enumerate(model.main.input_indexes)
    ]


def _range_of(model: Model, index: int) -> Range:
    """Returns the range of an input.

    It is that of its type, cut to what is not saturated if all operations that read it quantize.
    """
    operand = model.main.operands[index]
    readers = [each for each in model.main.operations if index in each.inputs]
    spans = [_quantized_to(model, operand, each) for each in readers]
    known = [span for span in spans if span is not None]
    own = _own_range(operand)
    if not known or len(known) < len(spans):
        return own
    lowest, highest = min(span[0] for span in known), max(span[1] for span in known)
    if own.is_known:
        lowest, highest = max(lowest, own.lowest), min(highest, own.highest)
    return Range(lowest, highest, own.zero, True) if lowest < highest else own


def _own_range(operand: Operand) -> Range:
    if is_plain(operand):
        return Range(0, 1, 0, False)
    if dtype_of(operand.type).kind == "f":
        return Range(-1, 1, 0, False)
    limits = np.iinfo(dtype_of(operand.type))
    return Range(int(limits.min), int(limits.max), operand.zero_point, True)


def _quantized_to(
    model: Model, operand: Operand, operation: Operation
) -> tuple[float, float] | None:
    """Returns the range that a quantization does not saturate, in numbers of its input.

    It is None for an operation that quantizes nothing.
    """
    if not _quantizes(model, operation.type):
        return None
    output = model.main.operands[operation.outputs[0]]
    if not is_measured(output) or not output.scale:
        return None
    is_real = dtype_of(operand.type).kind == "f"
    if not is_real and not operand.scale:
        return None
    limits = np.iinfo(dtype_of(output.type))
    reals = [(int(limit) - output.zero_point) * output.scale for limit in (limits.min, limits.max)]
    if is_real:
        return reals[0], reals[1]
    lowest, highest = (real / operand.scale + operand.zero_point for real in reals)
    return lowest, highest


def _quantizes(model: Model, type: int) -> bool:
    """Returns whether operations of this type quantize.

    These are QUANTIZE of the HAL, and that of the TFLite extension, which takes integers.
    """
    named = extension_of(model.extension_name_to_prefix, type)
    return type == OperationType.QUANTIZE or named == (TFLITE.name, TfliteOperation.QUANTIZE)


def is_plain(operand: Operand) -> bool:
    """Returns whether an operand's numbers measure nothing: integers and truth values."""
    return dtype_of(operand.type).kind in "biu" and not is_measured(operand)


def is_measured(operand: Operand) -> bool:
    """Returns whether an operand's integers stand for real numbers."""
    plain = (OperandType.INT32, OperandType.UINT32, OperandType.TENSOR_INT32)
    if operand.type in plain or is_extension(operand.type):
        return False
    return dtype_of(operand.type).kind in "iu"
