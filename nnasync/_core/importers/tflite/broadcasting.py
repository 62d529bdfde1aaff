"""Values brought to one shape, for operations of the HAL that do not broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.model import Value
from nnasync._core.model.graph import int32_array
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType, Shape
from nnasync.kernels.operation import Tensor

__all__ = ["booleans_of", "broadcast", "moved", "numbers_of", "shape_of_all"]

Move = Callable[[Value], Value]

_BYTES = Tensor(type=OperandType.TENSOR_QUANT8_ASYMM, scale=1.0)


def shape_of_all(values: Sequence[Value]) -> Shape:
    """The shape that all values have once they are broadcast; raises ModelError."""
    shapes = [value.shape for value in values]
    if any(not shape or 0 in shape for shape in shapes):
        raise ModelError(f"has inputs of shapes that are not known: {shapes}")
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise ModelError(f"has inputs of shapes {shapes}") from error


def broadcast(tensors: Tensors, value: Value, shape: Shape, *, leading: bool = True) -> Value:
    """A value repeated to a shape; new dimensions stand before its own, or behind them."""
    if value.shape == shape:
        return value
    missing = len(shape) - len(value.shape)
    if missing < 0:
        raise ModelError(f"shape {list(value.shape)} does not broadcast to {list(shape)}")
    ones = [1] * missing
    source = (*ones, *value.shape) if leading else (*value.shape, *ones)
    times = []
    for size, wanted in zip(source, shape, strict=True):
        if size not in (1, wanted):
            raise ModelError(f"shape {list(value.shape)} does not broadcast to {list(shape)}")
        times.append(wanted if size == 1 else 1)
    return moved(tensors, value, lambda x: _repeated(tensors, x, times, leading=leading))


def _repeated(tensors: Tensors, x: Value, times: Sequence[int], *, leading: bool) -> Value:
    for _ in range(len(times) - len(x.shape)):
        axis = 0 if leading else len(x.shape)
        x = tensors.builder.operation(OperationType.EXPAND_DIMS, x, axis, like=x)
    if all(count == 1 for count in times):
        return x
    return tensors.builder.operation(OperationType.TILE, x, int32_array(times), like=x)


def moved(tensors: Tensors, value: Value, move: Move) -> Value:
    """What `move` makes of a value; booleans are bytes meanwhile, which the HAL can move."""
    if value.type != OperandType.TENSOR_BOOL8:
        return move(value)
    return booleans_of(tensors, move(numbers_of(tensors, value, _BYTES)))


def numbers_of(tensors: Tensors, booleans: Value, kind: Tensor) -> Value:
    """1 where a boolean is true, otherwise 0, in a type: the HAL casts no booleans."""
    shape = booleans.shape
    if not shape or 0 in shape:
        raise ModelError("makes numbers of booleans of a shape that is not known")
    one, zero = (broadcast(tensors, _number(tensors, kind, n), shape) for n in (1, 0))
    return tensors.builder.operation(OperationType.SELECT, booleans, one, zero, like=one)


def booleans_of(tensors: Tensors, numbers: Value) -> Value:
    """Whether numbers are not 0."""
    zero = _number(tensors, numbers.tensor, 0)
    return tensors.builder.operation(OperationType.NOT_EQUAL, numbers, zero)


def _number(tensors: Tensors, kind: Tensor, number: int) -> Value:
    return tensors.builder.constant(
        [number], type=OperandType(kind.type), scale=kind.scale, zero_point=kind.zero_point
    )
