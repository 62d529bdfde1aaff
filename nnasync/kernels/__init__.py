"""The operations by family: signature, shape rule and numpy compute of each, in one place."""

from __future__ import annotations

from nnasync.hal import OperationType
from nnasync.kernels import (
    activation,
    convolution,
    dense,
    elementwise,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    shape,
)
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
    is_quantized,
    quantized_range,
)

__all__ = [
    "OPERATIONS",
    "Arguments",
    "ArraySpec",
    "Kernel",
    "Operation",
    "Parameter",
    "Signature",
    "Step",
    "Tensor",
    "is_quantized",
    "quantized_range",
]

_FAMILIES = (
    activation,
    convolution,
    dense,
    elementwise,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    shape,
)

OPERATIONS: dict[OperationType, Operation] = {
    OperationType(operation.type): operation
    for family in _FAMILIES
    for operation in family.OPERATIONS
}
"""Every operation that has kernels."""
