"""What importer and driver share of ONNX: element types and how values cross the border.

A tensor of the file is an operand of the HAL. Its integers of 8 and 16 bits are quantized there
with a scale of 1 and, where the type has one, a zero point of 0. The HAL has no int64 and no
float64: where a file is translated, or one of its parts, such values are int32 and float32 around
it. A file that is kept whole has operands of the extension org.nnasync.onnx for them, and for other
types that the HAL has not. A tensor of rank 0 is one of shape [1] outside.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnasync.extensions import FileOperand
from nnasync.hal import OperandType, Struct, number_dtype

DOUBLE = 11
"""The element type of float64."""
MAX_FILE_BYTES = 2**31 - 1
"""A protobuf message cannot be larger."""


class Element(Struct, frozen=True):
    """An element type: its number in a file, ONNX Runtime's name, numpy type and operand types.

    `operand` is the HAL's, None where it has none, `own` that of the extension.
    """

    number: int
    name: str
    dtype: Any
    operand: OperandType | None
    scale: float = 0.0
    own: FileOperand | None = None


def _narrow(number: int, name: str, own: FileOperand) -> Element:
    """An element type that only ml_dtypes has for numpy; bytes without that."""
    dtype = number_dtype(own.name.lower())
    void = np.dtype((np.void, 2 if own == FileOperand.BFLOAT16 else 1))
    return Element(number, name, void if dtype is None else dtype, None, own=own)


_E = Element
ELEMENTS: tuple[Element, ...] = (
    _E(1, "tensor(float)", np.dtype(np.float32), OperandType.TENSOR_FLOAT32),
    _E(10, "tensor(float16)", np.dtype(np.float16), OperandType.TENSOR_FLOAT16),
    _E(
        DOUBLE,
        "tensor(double)",
        np.dtype(np.float64),
        OperandType.TENSOR_FLOAT32,
        own=FileOperand.FLOAT64,
    ),
    _E(6, "tensor(int32)", np.dtype(np.int32), OperandType.TENSOR_INT32),
    _E(7, "tensor(int64)", np.dtype(np.int64), OperandType.TENSOR_INT32, own=FileOperand.INT64),
    _E(9, "tensor(bool)", np.dtype(np.bool_), OperandType.TENSOR_BOOL8),
    _E(2, "tensor(uint8)", np.dtype(np.uint8), OperandType.TENSOR_QUANT8_ASYMM, 1.0),
    _E(3, "tensor(int8)", np.dtype(np.int8), OperandType.TENSOR_QUANT8_ASYMM_SIGNED, 1.0),
    _E(4, "tensor(uint16)", np.dtype(np.uint16), OperandType.TENSOR_QUANT16_ASYMM, 1.0),
    _E(5, "tensor(int16)", np.dtype(np.int16), OperandType.TENSOR_QUANT16_SYMM, 1.0),
    _E(12, "tensor(uint32)", np.dtype(np.uint32), None, own=FileOperand.UINT32),
    _E(13, "tensor(uint64)", np.dtype(np.uint64), None, own=FileOperand.UINT64),
)
"""The element types that can cross the border; strings, complex numbers and others cannot."""

_NARROW = (
    (16, "tensor(bfloat16)", FileOperand.BFLOAT16),
    (17, "tensor(float8e4m3fn)", FileOperand.FLOAT8_E4M3FN),
    (18, "tensor(float8e4m3fnuz)", FileOperand.FLOAT8_E4M3FNUZ),
    (19, "tensor(float8e5m2)", FileOperand.FLOAT8_E5M2),
    (20, "tensor(float8e5m2fnuz)", FileOperand.FLOAT8_E5M2FNUZ),
)

_NAMES: tuple[str, ...] = (
    *("undefined", "float", "uint8", "int8", "uint16", "int16", "int32", "int64", "string"),
    *("bool", "float16", "double", "uint32", "uint64", "complex64", "complex128", "bfloat16"),
    *("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "uint4", "int4"),
    *("float4e2m1", "float8e8m0", "uint2", "int2"),
)
"""What ONNX calls its element types, by number."""

_BY_KEY: dict[int | str, Element] = {
    **{element.number: element for element in ELEMENTS},
    **{element.name: element for element in ELEMENTS},
}


def element_of(key: int | str) -> Element | None:
    """The element type of a number in a file, or of ONNX Runtime's name; None if not taken."""
    found = _BY_KEY.get(key)
    if found is not None:
        return found
    return next((_narrow(*each) for each in _NARROW if key in each[:2]), None)


def operand_of(number: int) -> tuple[OperandType, float] | None:
    """The HAL's operand type for an element type, and its scale where none is stated; or None."""
    found = element_of(number)
    return None if found is None or found.operand is None else (found.operand, found.scale)


def element_name(number: int) -> str:
    """Returns ONNX's name of an element type."""
    return _NAMES[number] if 0 <= number < len(_NAMES) else f"element type {number}"
