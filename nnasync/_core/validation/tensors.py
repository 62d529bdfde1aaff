"""Operands of a model in the form that the kernels take, and shapes of which parts are unknown."""

from __future__ import annotations

import numpy as np

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.hal import (
    Array,
    ChannelQuant,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Subgraph,
)
from nnasync.kernels.operation import Tensor


def operand_value(model: Model, operand: Operand) -> Array | None:
    """A read-only view of a constant operand's value; None where the operand is no constant.

    A value that is not aligned is copied. OEM and extension types have no values that anybody but
    their vendor knows. Raises ModelError for a constant that leaves its memory.
    """
    opaque = operand.type == OperandType.TENSOR_OEM_BYTE or not hal.has_dtype(operand.type)
    if opaque or not hal.is_constant(operand):
        return None
    location = operand.location
    source = memoryview(model.operand_values)
    if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
        if not 0 <= location.pool_index < len(model.pools):
            raise ModelError(f"its constant lies in pool {location.pool_index}, which is not there")
        source = model.pools[location.pool_index].view
    needed = hal.byte_size(operand.type, operand.dimensions)
    if location.length != needed or not 0 <= location.offset <= len(source) - needed:
        raise ModelError(
            f"its constant lies at {location.offset} with {location.length} bytes; expected"
            f" {needed} bytes within {len(source)}"
        )
    data = source[location.offset : location.offset + needed].toreadonly()
    value = np.frombuffer(data, hal.dtype_of(operand.type))
    return (value if value.flags.aligned else value.copy()).reshape(operand.dimensions)


def operand_tensor(model: Model, operand: Operand) -> Tensor | None:
    """Returns an operand as the kernels' tensor; None where it has no value (omitted)."""
    if operand.lifetime == OperandLifeTime.NO_VALUE:
        return None
    quant = operand.extra_params if isinstance(operand.extra_params, ChannelQuant) else None
    return Tensor(
        type=operand.type,
        shape=operand.dimensions,
        scale=operand.scale,
        zero_point=operand.zero_point,
        channel_quant=quant,
        value=operand_value(model, operand),
    )


def subgraph_tensors(model: Model, subgraph: Subgraph) -> list[Tensor | None]:
    """Returns the kernels' tensor of each operand of a subgraph; raises ModelError."""
    tensors = []
    for index, operand in enumerate(subgraph.operands):
        try:
            tensors.append(operand_tensor(model, operand))
        except ModelError as error:
            raise ModelError(f"operand {index}: {error}") from error
    return tensors
