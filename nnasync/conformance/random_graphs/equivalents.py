"""Other forms of a graph that mean the same: what is known before a run may come with it instead.

Without known dimensions, shapes are found at the run; with constants as inputs, weights and what
they decide are. `float_twin` means the same up to rounding: a quantized operation in real numbers.
"""

from __future__ import annotations

import enum

import msgspec
import numpy as np

from nnasync import hal
from nnasync.conformance.random_graphs.graph import GraphOperand, Origin, RandomGraph
from nnasync.conformance.random_graphs.operands import QUANTIZED
from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels import OPERATIONS

_PER_CHANNEL = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
_FLOAT32 = OperandType.TENSOR_FLOAT32
_EXACT = frozenset(
    {
        OperationType.CAST,
        OperationType.DEQUANTIZE,
        OperationType.HASHTABLE_LOOKUP,
        OperationType.LSH_PROJECTION,
        OperationType.QUANTIZE,
        OperationType.RANK,
    }
)
"""Operations that have no twin: they are about the very bytes."""


class Form(enum.Enum):
    """What a device knows before the run."""

    AS_GIVEN = "as given"
    UNKNOWN_SHAPES = "all dimensions unknown"
    LATE_CONSTANTS = "constants as inputs"
    LATE_EVERYTHING = "constants as inputs, all dimensions unknown"


def in_form(graph: RandomGraph, form: Form) -> tuple[RandomGraph, RandomGraph]:
    """A graph to run, with values of known shape, and the one to make its model from."""
    if form in (Form.LATE_CONSTANTS, Form.LATE_EVERYTHING):
        graph = _with_late_constants(graph)
    if form in (Form.UNKNOWN_SHAPES, Form.LATE_EVERYTHING):
        return graph, _with_unknown_shapes(graph)
    return graph, graph


def _with_late_constants(graph: RandomGraph) -> RandomGraph:
    changed = {
        index: msgspec.structs.replace(operand, origin=Origin.INPUT)
        for index, operand in enumerate(graph.operands)
        if operand.origin is Origin.CONSTANT and not hal.is_scalar(operand.type)
    }
    return graph.with_operands(changed)


def _with_unknown_shapes(graph: RandomGraph) -> RandomGraph:
    """Scales per channel belong to a dimension, which is therefore known."""
    changed = {
        index: msgspec.structs.replace(operand, shape=(0,) * len(operand.shape))
        for index, operand in enumerate(graph.operands)
        if operand.origin in (Origin.INPUT, Origin.COMPUTED) and operand.channel_quant is None
    }
    return graph.with_operands(changed)


# -- quantized graphs in real numbers


def float_twin(graph: RandomGraph) -> RandomGraph | None:
    """Returns the same operation on float32; None if it is not quantized or has no such form."""
    if len(graph.operations) != 1 or graph.operations[0].type in _EXACT:
        return None
    (operation,) = graph.operations
    if not any(operand.type in QUANTIZED for operand in graph.operands):
        return None
    changed = {index: _in_reals(operand) for index, operand in enumerate(graph.operands)}
    _take_bias_scales(graph, changed)
    if operation.type == OperationType.PAD_V2:
        changed[operation.inputs[2]] = _padding_value(graph)
    operands = [changed[index] for index in operation.inputs]
    types = [None if each.origin is Origin.OMITTED else each.type for each in operands]
    outputs = [changed[index].type for index in operation.outputs]
    known = OPERATIONS[OperationType(operation.type)]
    if not any(signature.accepts(types, outputs) for signature in known.signatures):
        return None
    return graph.with_operands(changed)


def quantized(values: Array, operand: GraphOperand) -> Array:
    """Real numbers in steps of a quantized operand, halves away from zero."""
    limits = np.iinfo(hal.dtype_of(operand.type))
    steps = values.astype(np.float64) / np.float32(operand.scale)
    rounded = np.trunc(steps + np.copysign(0.5, steps)) + operand.zero_point
    bounded = np.clip(np.nan_to_num(rounded, nan=limits.max), limits.min, limits.max)
    return np.asarray(bounded, limits.dtype)


def _in_reals(operand: GraphOperand) -> GraphOperand:
    if operand.type not in (*QUANTIZED, _PER_CHANNEL):
        return operand
    value = None if operand.value is None else _real(operand.value, operand)
    return GraphOperand(_FLOAT32, operand.origin, operand.shape, value=value)


def _real(value: Array, operand: GraphOperand) -> Array:
    scale = np.asarray(operand.scale, np.float32)
    quant = operand.channel_quant
    if quant is not None:
        shape = [1] * value.ndim
        shape[quant.channel_dim] = -1
        scale = np.asarray(quant.scales, np.float32).reshape(shape)
    real: Array = (value.astype(np.float32) - np.float32(operand.zero_point)) * scale
    return real


def _take_bias_scales(graph: RandomGraph, changed: dict[int, GraphOperand]) -> None:
    """A bias of integers is in steps of the products: its own scale, or one for each channel."""
    (operation,) = graph.operations
    known = OPERATIONS[OperationType(operation.type)]
    types = [graph.operands[index].type for index in operation.inputs]
    names = [parameter.name for parameter in known.signature(types).inputs]
    if "bias" not in names or types[names.index("bias")] != OperandType.TENSOR_INT32:
        return
    source, filter = (graph.operands[index] for index in operation.inputs[:2])
    scales = np.asarray(filter.scale, np.float32)
    if filter.channel_quant is not None:
        scales = np.asarray(filter.channel_quant.scales, np.float32)
    index = operation.inputs[names.index("bias")]
    bias = graph.operands[index]
    if bias.value is not None:
        value = bias.value.astype(np.float32) * (np.float32(source.scale) * scales)
        changed[index] = GraphOperand(_FLOAT32, bias.origin, bias.shape, value=value)


def _padding_value(graph: RandomGraph) -> GraphOperand:
    """The value to pad with is in steps of the input."""
    (operation,) = graph.operations
    source, value = graph.operands[operation.inputs[0]], graph.operands[operation.inputs[2]]
    raw = np.zeros((), np.float32) if value.value is None else value.value
    real = (raw.astype(np.float32) - np.float32(source.zero_point)) * np.float32(source.scale)
    return GraphOperand(OperandType.FLOAT32, value.origin, value=np.asarray(real, np.float32))
