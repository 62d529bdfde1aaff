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

OPERATIONS: dict[OperationType, Operation] = {
    OperationType.ADD: elementwise.ADD,
    OperationType.AVERAGE_POOL_2D: pooling.AVERAGE_POOL_2D,
    OperationType.CONCATENATION: shape.CONCATENATION,
    OperationType.CONV_2D: convolution.CONV_2D,
    OperationType.DEPTHWISE_CONV_2D: convolution.DEPTHWISE_CONV_2D,
    OperationType.DEQUANTIZE: quantization.DEQUANTIZE,
    OperationType.FULLY_CONNECTED: dense.FULLY_CONNECTED,
    OperationType.HARD_SWISH: activation.HARD_SWISH,
    OperationType.LOG: elementwise.LOG,
    OperationType.LOGISTIC: activation.LOGISTIC,
    OperationType.LSTM: recurrent.LSTM,
    OperationType.MAX_POOL_2D: pooling.MAX_POOL_2D,
    OperationType.MEAN: reduction.MEAN,
    OperationType.MUL: elementwise.MUL,
    OperationType.PAD: shape.PAD,
    OperationType.QUANTIZE: quantization.QUANTIZE,
    OperationType.RELU: activation.RELU,
    OperationType.RELU1: activation.RELU1,
    OperationType.RELU6: activation.RELU6,
    OperationType.RESHAPE: shape.RESHAPE,
    OperationType.RNN: recurrent.RNN,
    OperationType.SLICE: shape.SLICE,
    OperationType.SOFTMAX: normalization.SOFTMAX,
    OperationType.SUB: elementwise.SUB,
    OperationType.TANH: activation.TANH,
    OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM: recurrent.UNIDIRECTIONAL_SEQUENCE_LSTM,
}
"""Every operation that has kernels."""
