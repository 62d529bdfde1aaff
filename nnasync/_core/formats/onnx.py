"""What importer and driver share of ONNX: element types and how values cross the border.

A tensor of the file is an operand of the HAL. Its integers of 8 and 16 bits are quantized there
with a scale of 1 and, where the type has one, a zero point of 0. The HAL has no int64 and no
float64: such inputs and outputs are int32 and float32 outside, and converted at the border. A
tensor of rank 0 is one of shape [1] outside.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnasync.hal import OperandType, Struct

SUFFIX = ".onnx"
MAX_FILE_BYTES = 2**31 - 1
"""A protobuf message cannot be larger."""


class Element(Struct, frozen=True):
    """An element type: its number in a file, ONNX Runtime's name, numpy type and operand type."""

    number: int
    name: str
    dtype: Any
    operand: OperandType
    scale: float = 0.0


_E = Element
ELEMENTS: tuple[Element, ...] = (
    _E(1, "tensor(float)", np.dtype(np.float32), OperandType.TENSOR_FLOAT32),
    _E(10, "tensor(float16)", np.dtype(np.float16), OperandType.TENSOR_FLOAT16),
    _E(11, "tensor(double)", np.dtype(np.float64), OperandType.TENSOR_FLOAT32),
    _E(6, "tensor(int32)", np.dtype(np.int32), OperandType.TENSOR_INT32),
    _E(7, "tensor(int64)", np.dtype(np.int64), OperandType.TENSOR_INT32),
    _E(9, "tensor(bool)", np.dtype(np.bool_), OperandType.TENSOR_BOOL8),
    _E(2, "tensor(uint8)", np.dtype(np.uint8), OperandType.TENSOR_QUANT8_ASYMM, 1.0),
    _E(3, "tensor(int8)", np.dtype(np.int8), OperandType.TENSOR_QUANT8_ASYMM_SIGNED, 1.0),
    _E(4, "tensor(uint16)", np.dtype(np.uint16), OperandType.TENSOR_QUANT16_ASYMM, 1.0),
    _E(5, "tensor(int16)", np.dtype(np.int16), OperandType.TENSOR_QUANT16_SYMM, 1.0),
)
"""The element types that can cross the border; strings, complex numbers and others cannot."""

_BY_KEY: dict[int | str, Element] = {
    **{element.number: element for element in ELEMENTS},
    **{element.name: element for element in ELEMENTS},
}


def element_of(key: int | str) -> Element | None:
    """The element type of a number in a file, or of ONNX Runtime's name; None if not taken."""
    return _BY_KEY.get(key)
