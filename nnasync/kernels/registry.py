"""The table of all operations that have kernels; it brings every family along."""

from __future__ import annotations

from nnasync.hal import OperationType
from nnasync.kernels import multinomial, quantization
from nnasync.kernels.detection import boxes, heatmap, nms, postprocessing, proposals, roi
from nnasync.kernels.elementwise import activation, arithmetic, cast, comparison, selection, unary
from nnasync.kernels.hashing import projection
from nnasync.kernels.movement import joining, lookup, padding, permutation, shape, slicing, space
from nnasync.kernels.operation import Operation
from nnasync.kernels.recurrent import (
    lstm,
    quantized_16bit_lstm,
    quantized_lstm,
    rnn,
    sequence_lstm,
    svdf,
)
from nnasync.kernels.reductions import normalization, ordering, reduction, softmax
from nnasync.kernels.windows import (
    convolution,
    dense,
    grouped_convolution,
    pooling,
    resize,
    transpose_convolution,
)

_FAMILIES = (
    activation,
    arithmetic,
    boxes,
    cast,
    comparison,
    convolution,
    dense,
    grouped_convolution,
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
    resize,
    rnn,
    roi,
    selection,
    sequence_lstm,
    shape,
    slicing,
    softmax,
    space,
    svdf,
    transpose_convolution,
    unary,
)

OPERATIONS: dict[OperationType, Operation] = {
    OperationType(operation.type): operation
    for family in _FAMILIES
    for operation in vars(family).values()
    if isinstance(operation, Operation)
}
"""Every operation that has kernels: what the modules of the families define."""
