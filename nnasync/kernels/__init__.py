"""The operations by family: signature, shape rule and numpy compute of each, in one place.

The tables of all operations are imported when they are first used: who loads a compiled model does
without them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nnasync.kernels.operation import (
    MEMORY_BYTES,
    Arguments,
    ArraySpec,
    Kernel,
    NotConstant,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
    is_quantized,
    quantized_range,
)
from nnasync.kernels.packing import PACKING, Packing

if TYPE_CHECKING:
    from nnasync.kernels.registry import OPERATIONS as OPERATIONS
    from nnasync.kernels.tflite.registry import EXTENSION_OPERATIONS as EXTENSION_OPERATIONS

__all__ = [
    "EXTENSION_OPERATIONS",
    "OPERATIONS",
    "MEMORY_BYTES",
    "PACKING",
    "Arguments",
    "ArraySpec",
    "Kernel",
    "NotConstant",
    "Operation",
    "Packing",
    "Parameter",
    "Signature",
    "Step",
    "Tensor",
    "is_quantized",
    "quantized_range",
]

_TABLES = {
    "OPERATIONS": "nnasync.kernels.registry",
    "EXTENSION_OPERATIONS": "nnasync.kernels.tflite.registry",
}


def __getattr__(name: str) -> object:
    if name not in _TABLES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    table: object = getattr(importlib.import_module(_TABLES[name]), name)
    globals()[name] = table
    return table
