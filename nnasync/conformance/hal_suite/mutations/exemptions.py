"""What looks like a mutation of an operation, but may leave it legal.

Some operations take several types in one place, whatever the types of the others, and some can do
without an argument, or take one more. The tables are written down from the HAL's text and do not
ask the signatures that validation goes by, so that one can be found wrong by the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nnasync import hal
from nnasync.hal import OperandType, Operation, OperationType, Subgraph

_TENSORS = frozenset(type for type in OperandType if not hal.is_scalar(type))
_FLOATS = frozenset({OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16})
_BYTES = frozenset({OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED})
_NUMBERS = _FLOATS | _BYTES | {OperandType.TENSOR_INT32}
_COMPARABLE = _NUMBERS | {OperandType.TENSOR_BOOL8}
_FILTERS = _BYTES | {OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL}
_QUANTIZED = _BYTES | {
    OperandType.TENSOR_QUANT8_SYMM,
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
}

_FREE_INPUTS: Mapping[int, Mapping[int, Collection[int]]] = {
    OperationType.ARGMAX: {0: _NUMBERS},
    OperationType.ARGMIN: {0: _NUMBERS},
    OperationType.AXIS_ALIGNED_BBOX_TRANSFORM: {1: _BYTES},
    OperationType.CAST: {0: _TENSORS},
    OperationType.CONV_2D: {1: _FILTERS},
    OperationType.DEPTHWISE_CONV_2D: {1: _FILTERS},
    OperationType.DEQUANTIZE: {0: _QUANTIZED},
    OperationType.GROUPED_CONV_2D: {1: _FILTERS},
    OperationType.LSH_PROJECTION: {1: _TENSORS},
    OperationType.QUANTIZE: {0: _FLOATS},
    OperationType.RANDOM_MULTINOMIAL: {0: _FLOATS},
    OperationType.RANK: {0: _TENSORS},
    OperationType.TRANSPOSE_CONV_2D: {1: _FILTERS},
}
"""Types that an input may have, by operation and position, without a change of the others."""

_FREE_OUTPUTS: Mapping[int, Mapping[int, Collection[int]]] = {
    OperationType.CAST: {0: _TENSORS},
    OperationType.DEQUANTIZE: {0: _FLOATS},
    OperationType.QUANTIZE: {0: _BYTES},
}

_COMPARISONS = frozenset(
    {
        OperationType.EQUAL,
        OperationType.GREATER,
        OperationType.GREATER_EQUAL,
        OperationType.LESS,
        OperationType.LESS_EQUAL,
        OperationType.NOT_EQUAL,
    }
)

_OPTIONAL_LAST: Mapping[int, Collection[int]] = {
    OperationType.AVERAGE_POOL_2D: (8, 11),
    OperationType.BATCH_TO_SPACE_ND: (3,),
    OperationType.CONV_2D: (8, 11),
    OperationType.DEPTHWISE_CONV_2D: (9, 12),
    OperationType.DEPTH_TO_SPACE: (3,),
    OperationType.L2_NORMALIZATION: (2,),
    OperationType.L2_POOL_2D: (8, 11),
    OperationType.LOCAL_RESPONSE_NORMALIZATION: (6,),
    OperationType.MAX_POOL_2D: (8, 11),
    OperationType.SOFTMAX: (3,),
    OperationType.SPACE_TO_BATCH_ND: (4,),
    OperationType.SPACE_TO_DEPTH: (3,),
}
"""Numbers of inputs with which an operation can do without its last one."""

_TAKES_INT32: Mapping[int, Collection[int]] = {
    OperationType.L2_NORMALIZATION: (1,),
    OperationType.LOCAL_RESPONSE_NORMALIZATION: (5,),
    OperationType.SOFTMAX: (2,),
    OperationType.RESIZE_BILINEAR: range(6),
    OperationType.RESIZE_NEAREST_NEIGHBOR: range(6),
}
"""Numbers of inputs with which an operation could take one more."""

_VARIABLE_OUTPUTS = frozenset(
    {
        OperationType.SPLIT,
        OperationType.WHILE,
        OperationType.BIDIRECTIONAL_SEQUENCE_LSTM,
        OperationType.BIDIRECTIONAL_SEQUENCE_RNN,
        OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM,
        OperationType.UNIDIRECTIONAL_SEQUENCE_RNN,
    }
)


def types_are_free(subgraph: Subgraph, index: int, type: int) -> bool:
    """Returns whether an operation on the operand may take this type in its place."""
    for operation in subgraph.operations:
        alike = operation.inputs[:2] == (index, index)
        if operation.type in _COMPARISONS and alike and type in _COMPARABLE:
            return True
    return any(
        type in table.get(operation.type, {}).get(position, ())
        for operation in subgraph.operations
        for table, operands in (
            (_FREE_INPUTS, operation.inputs),
            (_FREE_OUTPUTS, operation.outputs),
        )
        for position, operand in enumerate(operands)
        if operand == index
    )


def may_lack_input(operation: Operation, position: int) -> bool:
    """Returns whether an operation may be legal without the input at a position."""
    count = len(operation.inputs)
    if operation.type == OperationType.CONCATENATION:
        return count > 2 and position < count - 1
    if operation.type == OperationType.RESIZE_BILINEAR:
        return position >= 3
    if operation.type == OperationType.RESIZE_NEAREST_NEIGHBOR:
        return count >= 5 and position >= 3
    return position == count - 1 and count in _OPTIONAL_LAST.get(operation.type, ())


def may_lack_output(operation: Operation) -> bool:
    """Returns whether the number of an operation's outputs depends on more than its type."""
    return operation.type in _VARIABLE_OUTPUTS


def may_take_int32(operation: Operation) -> bool:
    """Returns whether an operation may be legal with one more input, an INT32."""
    return len(operation.inputs) in _TAKES_INT32.get(operation.type, ())
