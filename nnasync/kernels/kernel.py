"""A prepared operation, and the step that it becomes on arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnasync.hal import Array
from nnasync.kernels.tensor import ArraySpec

Step = Callable[[], None]
"""What runs an operation on the arrays to which it is bound."""

Bind = Callable[[Sequence[Any], Sequence[Array], Sequence[Array]], Step]


class Kernel:
    """A prepared operation: constants packed, ready to be bound to any number of memories.

    `bind(inputs, outputs, scratch)` takes C-contiguous arrays, None for an omitted input. Scratch
    arrays have the shapes that `scratch` states and arbitrary content, and belong to the step only
    while it runs. Constants come to `bind` too, as the arrays of their values. `view_of` names an
    input whose bytes are the output's, so that both may share memory and no step is needed.
    """

    __slots__ = ("bind", "scratch", "view_of")

    def __init__(
        self, bind: Bind, scratch: Sequence[ArraySpec] = (), *, view_of: int | None = None
    ) -> None:
        self.bind = bind
        self.scratch = tuple(scratch)
        self.view_of = view_of


def bind_nothing(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
    """The step of an operation whose outputs have no elements."""
    return _nothing


def _nothing() -> None:
    """Does what there is to do without elements."""
