"""The operations by family: signature, shape rule and numpy compute of each, in one place.

The tables of all operations are imported when they are first used: who loads a compiled model does
without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names
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
    quantized_range,
)
from nnasync.kernels.packing import PACKING, Packing

if TYPE_CHECKING:
    from nnasync.kernels.extension_operations import EXTENSION_OPERATIONS as EXTENSION_OPERATIONS
    from nnasync.kernels.registry import OPERATIONS as OPERATIONS

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
    "quantized_range",
]

__getattr__ = names(
    __name__, {"OPERATIONS": "registry", "EXTENSION_OPERATIONS": "extension_operations"}
)
