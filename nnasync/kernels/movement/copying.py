"""What operations that only move data share: results like the input, sizes as values, one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnasync.hal import Array, HalVersion, Shape
from nnasync.kernels.operation import Arguments, Kernel, Step, Tensor
from nnasync.kernels.steps import copy, sequence

Views = Callable[[Array, Array], tuple[Array, Array]]
"""From the arrays of output and input: views of one shape, the first to be filled by the second."""


def like(source: Tensor, shape: Shape) -> Tensor:
    """A result with the type and quantization of an input."""
    return Tensor(type=source.type, shape=shape, scale=source.scale, zero_point=source.zero_point)


def sizes(arguments: Arguments, index: int, minimum: int, count: int) -> tuple[int, ...]:
    """The values of an integer tensor that has `count` of them, each at least `minimum`."""
    values = arguments.integers(index)
    if len(values) != count:
        raise arguments.error(index, f"has {len(values)} elements, expected {count}")
    if any(value < minimum for value in values):
        raise arguments.error(index, f"is {list(values)}, expected at least {minimum} each")
    return values


def moving(views: Views, *, view_of: int | None = None) -> Kernel:
    """The kernel that copies one view of the input into one of the output."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        return sequence([copy(*views(outputs[0], inputs[0]))])

    return Kernel(bind, view_of=view_of)


def needs_zero_point(arguments: Arguments, outputs: Sequence[Tensor]) -> HalVersion:
    """Padding with a zero point other than 0 came with HAL 1.2."""
    return HalVersion.V1_2 if arguments.tensor(0).zero_point else HalVersion.V1_0
