"""Functions of numbers, written down as operations of the HAL.

`Maths` has the operations by short names; a plain number beside a value becomes a constant of the
type of that value.
"""

from __future__ import annotations

import numpy as np

from nnasync._core.importers.onnx.scope import OnnxScope
from nnasync._core.model import Value
from nnasync._core.model.broadcasting import (
    booleans_of,
    broadcast,
    numbers_of,
    shape_of_all,
)
from nnasync._core.model.graph import Input, int32_array
from nnasync.hal import OperandType, OperationType
from nnasync.kernels.operation import Tensor

_T = OperationType
Operand = Value | float


class Maths:
    """Adds operations to the model of a scope."""

    def __init__(self, scope: OnnxScope) -> None:
        self.scope = scope

    def number(self, like: Value, number: float) -> Value:
        """A constant of one element, of the type of another value."""
        kind = like.tensor
        return self.scope.builder.constant(
            np.asarray([number]),
            type=OperandType(kind.type),
            scale=kind.scale,
            zero_point=kind.zero_point,
        )

    def apply(self, type: OperationType, *inputs: Input) -> Value:
        """The result of any operation."""
        return self.scope.builder.operation(type, *inputs)

    def pair(self, type: OperationType, x: Value, other: Operand, *further: Input) -> Value:
        """The result of an operation of two values."""
        y = other if isinstance(other, Value) else self.number(x, other)
        return self.apply(type, x, y, *further)

    def add(self, x: Value, other: Operand) -> Value:
        """x + other."""
        return self.pair(_T.ADD, x, other, 0)

    def sub(self, x: Value, other: Operand) -> Value:
        """x - other."""
        return self.pair(_T.SUB, x, other, 0)

    def mul(self, x: Value, other: Operand) -> Value:
        """x * other."""
        return self.pair(_T.MUL, x, other, 0)

    def div(self, x: Value, other: Operand) -> Value:
        """x / other; of integers rounded down."""
        return self.pair(_T.DIV, x, other, 0)

    def reciprocal(self, x: Value) -> Value:
        """1 / x."""
        return self.apply(_T.DIV, self.number(x, 1), x, 0)

    def square(self, x: Value) -> Value:
        """x * x."""
        return self.apply(_T.MUL, x, x, 0)

    def neg(self, x: Value) -> Value:
        """-x."""
        return self.apply(_T.NEG, x)

    def exp(self, x: Value) -> Value:
        """e to the power of x."""
        return self.apply(_T.EXP, x)

    def log(self, x: Value) -> Value:
        """The natural logarithm of x."""
        return self.apply(_T.LOG, x)

    def sqrt(self, x: Value) -> Value:
        """The square root of x."""
        return self.apply(_T.SQRT, x)

    def abs(self, x: Value) -> Value:
        """x without its sign."""
        return self.apply(_T.ABS, x)

    def floor(self, x: Value) -> Value:
        """The largest whole number that is not above x."""
        return self.apply(_T.FLOOR, x)

    def maximum(self, x: Value, other: Operand) -> Value:
        """The larger one."""
        return self.pair(_T.MAXIMUM, x, other)

    def minimum(self, x: Value, other: Operand) -> Value:
        """The smaller one."""
        return self.pair(_T.MINIMUM, x, other)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """a where a condition is true and b elsewhere, all brought to one shape."""
        shape = shape_of_all([condition, a, b])
        wide = [broadcast(self.scope, value, shape) for value in (condition, a, b)]
        return self.apply(_T.SELECT, *wide)

    def choose(self, condition: Value, a: Operand, b: Operand, like: Value) -> Value:
        """Selects as `select` does, also from plain numbers, which get the type of `like`."""
        x, y = (each if isinstance(each, Value) else self.number(like, each) for each in (a, b))
        return self.select(condition, x, y)

    def reduced(self, type: OperationType, x: Value, axes: list[int]) -> Value:
        """x reduced along axes, of which each keeps one entry."""
        keeps = 1 if type == _T.MEAN else True
        return self.apply(type, x, int32_array(axes), keeps)

    def cast(self, x: Value, type: OperandType) -> Value:
        """x in another type."""
        if x.type == type:
            return x
        result = Tensor(type=type, shape=x.shape)
        if x.type == OperandType.TENSOR_BOOL8:
            return numbers_of(self.scope, x, result)
        if type == OperandType.TENSOR_BOOL8:
            return booleans_of(self.scope, x)
        return self.scope.builder.operation(_T.CAST, x, output=result)
