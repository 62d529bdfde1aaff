"""Values brought to one shape, and types that the HAL does not move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from nnasync._core.model.graph import GraphBuilder, Value, int32_array
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType, Shape
from nnasync.kernels.operation import Tensor

Move = Callable[[Value], Value]


class Scope(Protocol):
    """What an importer writes operations to."""

    @property
    def builder(self) -> GraphBuilder:
        """Builds the subgraph."""
        ...


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


def broadcast(scope: Scope, value: Value, shape: Shape, *, leading: bool = True) -> Value:
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
    return moved(scope, value, lambda x: _repeated(scope, x, times, leading=leading))


def _repeated(scope: Scope, x: Value, times: Sequence[int], *, leading: bool) -> Value:
    for _ in range(len(times) - len(x.shape)):
        axis = 0 if leading else len(x.shape)
        x = scope.builder.operation(OperationType.EXPAND_DIMS, x, axis, like=x)
    if all(count == 1 for count in times):
        return x
    return scope.builder.operation(OperationType.TILE, x, int32_array(times), like=x)


def moved(scope: Scope, value: Value, move: Move) -> Value:
    """Returns the result of `move` on a value; moves booleans as bytes, as the HAL can."""
    if value.type != OperandType.TENSOR_BOOL8:
        return move(value)
    return booleans_of(scope, move(numbers_of(scope, value, _BYTES)))


def numbers_of(scope: Scope, booleans: Value, kind: Tensor) -> Value:
    """1 where a boolean is true, otherwise 0, in a type: the HAL casts no booleans."""
    shape = booleans.shape
    if not shape or 0 in shape:
        raise ModelError("makes numbers of booleans of a shape that is not known")
    one, zero = (broadcast(scope, _number(scope, kind, n), shape) for n in (1, 0))
    return scope.builder.operation(OperationType.SELECT, booleans, one, zero, like=one)


def booleans_of(scope: Scope, numbers: Value) -> Value:
    """Returns whether numbers are not 0."""
    zero = _number(scope, numbers.tensor, 0)
    return scope.builder.operation(OperationType.NOT_EQUAL, numbers, zero)


def _number(scope: Scope, kind: Tensor, number: int) -> Value:
    return scope.builder.constant(
        [number], type=OperandType(kind.type), scale=kind.scale, zero_point=kind.zero_point
    )


def reshape_to(scope: Scope, x: Value, shape: Shape) -> Value:
    """x in another shape, of which one dimension may be -1; booleans are bytes meanwhile."""
    if x.shape == shape:
        return x
    if x.type == OperandType.TENSOR_INT32:
        return _spread(scope, x, shape)
    if x.type == OperandType.TENSOR_BOOL8:
        return moved(scope, x, lambda y: reshape_to(scope, y, shape))
    return scope.builder.operation(OperationType.RESHAPE, x, int32_array(shape), like=x)


def _spread(scope: Scope, x: Value, shape: Shape) -> Value:
    """x with further dimensions of 1, which is all that the HAL can reshape of INT32."""
    rest = list(x.shape)
    for axis, size in enumerate(shape):
        if rest and rest[0] == size:
            rest.pop(0)
        elif size == 1:
            x = scope.builder.operation(OperationType.EXPAND_DIMS, x, axis, like=x)
    if rest or x.shape != shape:
        raise ModelError("reshapes INT32")
    return x
