"""The inputs of one operation, read with errors that say which argument is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnasync.errors import ModelError
from nnasync.hal import Array, Shape
from nnasync.kernels.signature import Signature
from nnasync.kernels.tensor import Tensor


class NotConstant(Exception):
    """An operand's value is needed but not known before the network runs."""


class Arguments:
    """The inputs of one operation, read with errors that say which argument is wrong.

    What a rule has computed from values and the kernel needs again may be kept in `memo`.
    """

    __slots__ = ("inputs", "memo", "operation", "signature")

    def __init__(
        self, operation: str, inputs: Sequence[Tensor | None], signature: Signature
    ) -> None:
        self.operation = operation
        self.memo: dict[str, Any] = {}
        self.inputs = tuple(inputs)
        self.signature = signature

    def __len__(self) -> int:
        return len(self.inputs)

    def error(self, index: int, message: str) -> ModelError:
        """The error for argument `index`; the caller adds where the operation is."""
        parameters = self.signature.parameters(len(self.inputs)) or ()
        name = f" ({parameters[index].name})" if index < len(parameters) else ""
        return ModelError(f"{self.operation}: input {index}{name}: {message}")

    def fail(self, message: str) -> ModelError:
        """The error for the operation as a whole."""
        return ModelError(f"{self.operation}: {message}")

    def has(self, index: int) -> bool:
        """Returns whether the argument is there and not omitted."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def optional(self, index: int) -> Tensor | None:
        """The argument, or None where it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def tensor(self, index: int, *ranks: int) -> Tensor:
        """The argument, which must be there and have one of the ranks, if any are given."""
        tensor = self.optional(index)
        if tensor is None:
            raise self.error(index, "must not be omitted")
        if ranks and tensor.rank not in ranks:
            expected = " or ".join(str(rank) for rank in ranks)
            raise self.error(index, f"has shape {tensor.shape}, expected rank {expected}")
        return tensor

    def check_shape(self, index: int, expected: Shape) -> None:
        """Raise ModelError where an argument that is not omitted has another shape."""
        tensor = self.optional(index)
        if tensor is not None and tensor.shape != expected:
            raise self.error(index, f"has shape {tensor.shape}, expected {expected}")

    def value(self, index: int) -> Array:
        """The argument's value; whoever called `infer` or `prepare` handles that it is unknown."""
        tensor = self.tensor(index)
        if tensor.value is None:
            raise NotConstant
        return tensor.value

    def number(self, index: int) -> float:
        """The value of a floating point scalar."""
        return float(self.value(index).reshape(-1)[0])

    def integer(self, index: int, minimum: int | None = None) -> int:
        """The value of an integer scalar, checked against a smallest legal value."""
        value = int(self.value(index).reshape(-1)[0])
        if minimum is not None and value < minimum:
            raise self.error(index, f"is {value}, expected at least {minimum}")
        return value

    def flag(self, index: int) -> bool:
        """The value of a boolean scalar; False where the argument is not given."""
        return self.has(index) and bool(self.value(index).reshape(-1)[0])

    def integers(self, index: int) -> tuple[int, ...]:
        """The values of an integer tensor, flattened."""
        return tuple(int(value) for value in self.value(index).reshape(-1))

    def axis(self, index: int, rank: int) -> int:
        """The value of an axis scalar, made non-negative."""
        return self.checked_axis(index, self.integer(index), rank)

    def checked_axis(self, index: int, axis: int, rank: int) -> int:
        """An axis that came with argument `index`, made non-negative."""
        if not -rank <= axis < rank:
            raise self.error(index, f"is axis {axis}, expected within [{-rank}, {rank})")
        return axis % rank
