"""Operand types of the extensions that run whole files: tensors of numbers that the HAL has not.

They have a file of their own so that an engine can state them without the module of all extensions.
"""

from __future__ import annotations

import enum

from nnasync.hal.structs import ExtensionOperandType


class FileOperand(enum.IntEnum):
    """Operand types within an extension that runs whole files: tensors of further numbers."""

    FLOAT64 = 0
    INT64 = 1
    UINT32 = 2
    UINT64 = 3
    BFLOAT16 = 4
    FLOAT8_E4M3FN = 5
    FLOAT8_E4M3FNUZ = 6
    FLOAT8_E5M2 = 7
    FLOAT8_E5M2FNUZ = 8
    COMPLEX64 = 9


_BYTE_SIZES = (8, 8, 4, 8, 2, 1, 1, 1, 1, 8)
FILE_OPERAND_TYPES = tuple(
    ExtensionOperandType(type, True, byte_size, type.name.lower())
    for type, byte_size in zip(FileOperand, _BYTE_SIZES, strict=True)
)
"""As devices describe them."""
