"""What is known of each operand of a model before it runs: constants' values, inferred shapes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.hal import ChannelQuant, Model, Operand, OperandLifeTime, Subgraph
from nnasync.kernels import OPERATIONS, Operation, Tensor

__all__ = ["find_operation", "resolve", "tensors_of"]


def tensors_of(model: Model) -> list[Tensor | None]:
    """The operands of the main subgraph; None for those without a value or a numpy type.

    Raises ModelError for a constant that does not lie within its memory.
    """
    return [_tensor(model, index, operand) for index, operand in enumerate(model.main.operands)]


def find_operation(type: int) -> Operation | None:
    """The operation with kernels, if there is one."""
    return OPERATIONS.get(type)  # type: ignore[call-overload, no-any-return]


def resolve(subgraph: Subgraph, operation: hal.Operation, tensors: list[Tensor | None]) -> None:
    """Completes the outputs of an operation in `tensors` with what its rule infers.

    Raises ModelError when the operation has no kernel or its operands do not fit.
    """
    known = find_operation(operation.type)
    if known is None:
        raise ModelError(f"{hal.operation_name(operation.type)} is not supported")
    if not operation.outputs:
        raise ModelError(f"{known.name}: has no outputs")
    declared = [tensors[index] for index in operation.outputs]
    types = [subgraph.operands[index].type for index in operation.outputs]
    inferred = known.infer([tensors[index] for index in operation.inputs], types)
    for index, given, rule in zip(operation.outputs, declared, inferred, strict=True):
        if given is None:
            raise ModelError(f"operand {index} is an output without a value")
        tensors[index] = _combined(index, given, rule)


def _combined(index: int, given: Tensor, rule: Tensor) -> Tensor:
    if not rule.shape or rule.shape == given.shape:
        return given
    fits = not given.shape or (
        len(given.shape) == len(rule.shape)
        and all(a in (0, b) for a, b in zip(given.shape, rule.shape, strict=True))
    )
    if not fits:
        raise ModelError(f"operand {index} has shape {given.shape}, expected {rule.shape}")
    return msgspec.structs.replace(given, shape=rule.shape, value=None)


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


def known_shapes(tensors: Sequence[Tensor | None], indexes: Sequence[int]) -> bool:
    """Whether the shapes of these operands are all known, omitted ones aside."""
    return all(
        tensor is None or tensor.is_known for tensor in (tensors[index] for index in indexes)
    )
