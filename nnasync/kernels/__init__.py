"""The operations by family: signature, shape rule and numpy compute of each, in one place.

Everything is imported when it is first used: who loads a compiled model, or runs a file as it is,
does without the tables of operations, and without what they are made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names

if TYPE_CHECKING:
    from nnasync.kernels.extension_operations import EXTENSION_OPERATIONS as EXTENSION_OPERATIONS
    from nnasync.kernels.operation import MEMORY_BYTES as MEMORY_BYTES
    from nnasync.kernels.operation import Arguments as Arguments
    from nnasync.kernels.operation import ArraySpec as ArraySpec
    from nnasync.kernels.operation import Kernel as Kernel
    from nnasync.kernels.operation import NotConstant as NotConstant
    from nnasync.kernels.operation import Operation as Operation
    from nnasync.kernels.operation import Parameter as Parameter
    from nnasync.kernels.operation import Signature as Signature
    from nnasync.kernels.operation import Step as Step
    from nnasync.kernels.operation import Tensor as Tensor
    from nnasync.kernels.operation import quantized_range as quantized_range
    from nnasync.kernels.packing import PACKING as PACKING
    from nnasync.kernels.packing import Packing as Packing
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
    __name__,
    {
        "EXTENSION_OPERATIONS": "extension_operations",
        "MEMORY_BYTES": "operation",
        "OPERATIONS": "registry",
        "PACKING": "packing",
        "Arguments": "operation",
        "ArraySpec": "operation",
        "Kernel": "operation",
        "NotConstant": "operation",
        "Operation": "operation",
        "Packing": "packing",
        "Parameter": "operation",
        "Signature": "operation",
        "Step": "operation",
        "Tensor": "operation",
        "quantized_range": "operation",
    },
)
