"""Values moved: orders, parts, entries by number, joins; booleans are bytes meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.importers.onnx.scope import OnnxScope
from nnasync._core.model import Value
from nnasync._core.model.broadcasting import booleans_of, moved, numbers_of
from nnasync._core.model.graph import int32_array
from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels.operation import Tensor

_T = OperationType
_NOT_MOVED = (OperandType.TENSOR_INT32, OperandType.TENSOR_BOOL8)
_MOST_PLACES = 1 << 20
"""More entries of an axis are not taken one by one: their numbers become a constant."""
_BYTES = Tensor(type=OperandType.TENSOR_QUANT8_ASYMM, scale=1.0)


def is_movable(scope: OnnxScope, *names: str) -> bool:
    """Returns whether these are of a type that every operation takes which only moves numbers."""
    return not any(scope.value_of_any_rank(name).type in _NOT_MOVED for name in names)


def transposed(scope: OnnxScope, x: Value, order: Sequence[int]) -> Value:
    """x with its axes in another order; raises ModelError for INT32."""
    if x.type == OperandType.TENSOR_INT32:
        raise ModelError("transposes INT32")
    build = scope.builder.operation
    return moved(scope, x, lambda y: build(_T.TRANSPOSE, y, int32_array(order), like=y))


def cut(scope: OnnxScope, x: Value, chosen: Sequence[range]) -> Value:
    """Some entries of each axis, of which there are some."""

    def move(y: Value) -> Value:
        for axis, part in enumerate(chosen):
            if part.step < 0 or (part.step > 1 and y.type == OperandType.TENSOR_INT32):
                y = gathered(scope, y, axis, part)
        steps = [
            part.step if n != len(part) else 1 for part, n in zip(chosen, y.shape, strict=True)
        ]
        begins = [
            0 if n == len(part) else part.start for part, n in zip(chosen, y.shape, strict=True)
        ]
        return _cut(scope, y, begins, [len(part) for part in chosen], steps)

    return moved(scope, x, move)


def _cut(
    scope: OnnxScope, y: Value, begins: list[int], sizes: list[int], steps: list[int]
) -> Value:
    build = scope.builder.operation
    if tuple(sizes) == y.shape:
        return y
    if all(step == 1 for step in steps):
        return build(_T.SLICE, y, int32_array(begins), int32_array(sizes), like=y)
    ends = [
        begin + (size - 1) * step + 1
        for begin, size, step in zip(begins, sizes, steps, strict=True)
    ]
    places = [int32_array(numbers) for numbers in (begins, ends, steps)]
    return build(_T.STRIDED_SLICE, y, *places, 0, 0, 0, like=y)


def gathered(scope: OnnxScope, x: Value, axis: int, places: Sequence[int] | Array | Value) -> Value:
    """Entries of an axis by their numbers, which are not negative; raises ModelError for many."""
    if not isinstance(places, Value) and len(places) > _MOST_PLACES:
        raise ModelError(f"takes {len(places)} entries of an axis one by one")
    numbers = places if isinstance(places, Value) else int32_array(list(places))
    build = scope.builder.operation
    return moved(scope, x, lambda y: build(_T.GATHER, y, axis, numbers, like=y))


def joined_along(scope: OnnxScope, values: Sequence[Value], axis: int) -> Value:
    """Values joined along an axis; raises ModelError for INT32."""
    types = {value.type for value in values}
    if OperandType.TENSOR_INT32 in types:
        raise ModelError("joins INT32")
    if types == {OperandType.TENSOR_BOOL8}:
        parts = [numbers_of(scope, value, _BYTES) for value in values]
        joined = scope.builder.operation(_T.CONCATENATION, *parts, axis, like=parts[0])
        return booleans_of(scope, joined)
    return scope.builder.operation(_T.CONCATENATION, *values, axis)
