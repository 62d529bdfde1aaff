"""The operations by family: signature, shape rule and numpy compute of each, in one place."""

from __future__ import annotations

from nnasync.hal import OperationType
from nnasync.kernels import (
    activation,
    boxes,
    cast,
    comparison,
    convolution,
    dense,
    elementwise,
    heatmap,
    joining,
    lookup,
    lstm,
    multinomial,
    nms,
    normalization,
    ordering,
    padding,
    permutation,
    pooling,
    postprocessing,
    projection,
    proposals,
    quantization,
    quantized_16bit_lstm,
    quantized_lstm,
    reduction,
    rnn,
    roi,
    selection,
    sequence_lstm,
    shape,
    slicing,
    softmax,
    space,
    svdf,
    unary,
)
from nnasync.kernels.operation import (
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
from nnasync.kernels.tflite import EXTENSION_OPERATIONS

__all__ = [
    "EXTENSION_OPERATIONS",
    "OPERATIONS",
    "Arguments",
    "ArraySpec",
    "Kernel",
    "NotConstant",
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
    boxes,
    cast,
    comparison,
    convolution,
    dense,
    elementwise,
    heatmap,
    joining,
    lookup,
    lstm,
    multinomial,
    nms,
    normalization,
    ordering,
    padding,
    permutation,
    pooling,
    postprocessing,
    projection,
    proposals,
    quantization,
    quantized_16bit_lstm,
    quantized_lstm,
    reduction,
    rnn,
    roi,
    selection,
    sequence_lstm,
    shape,
    slicing,
    softmax,
    space,
    svdf,
    unary,
)

OPERATIONS: dict[OperationType, Operation] = {
    OperationType(operation.type): operation
    for family in _FAMILIES
    for operation in family.OPERATIONS
}
"""Every operation that has kernels."""
