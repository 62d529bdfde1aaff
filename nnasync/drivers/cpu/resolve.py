"""What is known of the operands of a subgraph before it runs, and which operations have kernels."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.hal import ChannelQuant, Model, Operand, OperandLifeTime, OperationType, Subgraph
from nnasync.kernels import EXTENSION_OPERATIONS, OPERATIONS, Operation, Tensor

__all__ = ["find_operation", "is_supported", "operation_at", "tensors_of"]

_CONTROL_FLOW = (OperationType.IF, OperationType.WHILE)


def tensors_of(model: Model, subgraph: Subgraph) -> list[Tensor | None]:
    """The operands of a subgraph; None for those without a value or a numpy type.

    Raises ModelError for a constant that does not lie within its memory.
    """
    return [_tensor(model, index, operand) for index, operand in enumerate(subgraph.operands)]


def find_operation(model: Model, type: int) -> Operation | None:
    """The operation with kernels, if there is one; extensions go by the model's prefixes."""
    if not hal.is_extension(type):
        return OPERATIONS.get(type)  # type: ignore[call-overload, no-any-return]
    for entry in model.extension_name_to_prefix:
        if entry.prefix == type >> hal.EXTENSION_PREFIX_SHIFT:
            return EXTENSION_OPERATIONS.get((entry.name, type & 0xFFFF))
    return None


def operation_at(model: Model, subgraph: Subgraph, position: int) -> Operation:
    """The kernels of an operation of a subgraph; raises ModelError if there are none."""
    operation = subgraph.operations[position]
    known = find_operation(model, operation.type)
    if known is None:
        raise ModelError(f"{hal.operation_name(operation.type)} is not supported")
    return known


def is_supported(
    model: Model, subgraph: Subgraph, operation: hal.Operation, tensors: list[Tensor | None]
) -> bool:
    """Whether an operation can run; `tensors` is completed with what its rule infers."""
    if operation.type in _CONTROL_FLOW:
        return all(
            _runs(model, model.referenced[subgraph.operands[index].location.offset])
            for index in operation.inputs
            if subgraph.operands[index].lifetime == OperandLifeTime.SUBGRAPH
        )
    known = find_operation(model, operation.type)
    if known is None:
        return False
    types = [subgraph.operands[index].type for index in operation.outputs]
    try:
        inferred = known.infer([tensors[index] for index in operation.inputs], types)
    except ModelError:
        return False
    for index, rule in zip(operation.outputs, inferred, strict=True):
        given = tensors[index]
        if given is None:
            return False
        if rule.is_known and not given.is_known:
            tensors[index] = msgspec.structs.replace(given, shape=rule.shape)
    return True


def _runs(model: Model, subgraph: Subgraph) -> bool:
    tensors = tensors_of(model, subgraph)
    return all(is_supported(model, subgraph, each, tensors) for each in subgraph.operations)


def _tensor(model: Model, index: int, operand: Operand) -> Tensor | None:
    if operand.lifetime == OperandLifeTime.NO_VALUE or not hal.has_dtype(operand.type):
        return None
    quant = operand.extra_params
    return Tensor(
        type=operand.type,
        shape=tuple(operand.dimensions),
        scale=operand.scale,
        zero_point=operand.zero_point,
        channel_quant=quant if isinstance(quant, ChannelQuant) else None,
        value=_value(model, index, operand) if hal.is_constant(operand) else None,
    )


def _value(model: Model, index: int, operand: Operand) -> hal.Array:
    """The value of a constant: a view of the model's memory where that is aligned."""
    where = operand.location
    memory: bytes | memoryview = model.operand_values
    if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
        if not 0 <= where.pool_index < len(model.pools):
            raise ModelError(f"operand {index}: there is no pool {where.pool_index}")
        memory = model.pools[where.pool_index].view
    needed = hal.byte_size(operand.type, operand.dimensions)
    if where.length != needed or not 0 <= where.offset <= len(memory) - needed:
        raise ModelError(
            f"operand {index}: its constant lies at {where.offset} with {where.length} bytes;"
            f" expected {needed} bytes within {len(memory)}"
        )
    dtype = hal.dtype_of(operand.type)
    count = needed // dtype.itemsize
    value = np.frombuffer(memory, dtype, count, where.offset) if count else np.empty(0, dtype)
    if not value.flags.aligned:
        value = value.copy()
    return value.reshape(operand.dimensions)


def declared(tensors: Sequence[Tensor | None], indexes: Sequence[int]) -> list[Tensor]:
    """The operands that an operation writes; raises ModelError for one without a numpy type."""
    found = []
    for index in indexes:
        tensor = tensors[index]
        if tensor is None:
            raise ModelError(f"operand {index} is an output that cannot hold a value")
        found.append(tensor)
    return found
