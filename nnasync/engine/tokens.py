"""Requests that name device-managed buffers by their tokens: checked, bound, and run.

What cannot change is checked when a request is seen first: that its tokens are known, that each is
used in a role of its buffer, once if it is written to, with dimensions that it can have. What
depends on what ran before is checked when the execution runs, behind its fences: that inputs are
initialised, with these dimensions. From there to its end the execution claims its buffers, and
before its fence is signaled they are as it leaves them.

An output whose shape nobody knows goes into what memory its buffer has; if that is too small, and
the buffer was allocated without that dimension, it gets more, and the execution runs again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec
import numpy as np

from nnasync import hal
from nnasync.buffers import Buffers, ManagedBuffer
from nnasync.engine.binding import Binding, SizedCall, array_of, target_of
from nnasync.engine.contract import BoundCall, OutputBuffer, Plan, Target
from nnasync.errors import GeneralFailure, InvalidArgument, OutputInsufficientSize
from nnasync.hal import Array, Model, Operand, OutputShape, Request, RequestArgument, Shape
from nnasync.workers import StopFlag, contained

__all__ = ["TokenBinding", "TokenCall"]


class _Use(msgspec.Struct, frozen=True):
    """One input or output of a request that is in a buffer; `dimensions` may be unknown in part."""

    buffer: ManagedBuffer
    dimensions: Shape

    @property
    def is_settled(self) -> bool:
        return hal.is_fully_specified(self.buffer.type, self.dimensions)

    @property
    def nbytes(self) -> int:
        return hal.byte_size(self.buffer.type, self.dimensions)

    def array(self) -> Array:
        """The contents, whose dimensions are known."""
        dtype = hal.dtype_of(self.buffer.type)
        count = int(np.prod(self.dimensions, dtype=np.int64))
        memory = self.buffer.memory[: count * dtype.itemsize]
        return memory.view(dtype).reshape(self.dimensions)

    def target(self) -> Target:
        """Where the contents go."""
        if self.is_settled:
            return self.array()
        return OutputBuffer(self.buffer.memory, hal.dtype_of(self.buffer.type), self.dimensions)


class TokenBinding(Binding):
    """One request with tokens, and its calls that are idle; found anew for each execution."""

    __slots__ = ("__weakref__", "_bound_calls", "_name", "_reads", "_writes", "buffers")

    is_managed: ClassVar[bool] = True

    def __init__(
        self, owner: object, model: Model, name: str, plan: Plan, request: Request, known: Buffers
    ) -> None:
        """`owner` is the prepared model, which buffers have roles of. Raises InvalidArgument."""
        self._plan = plan
        self._name = name
        self.reference = None
        uses = _Uses(owner, request, known)
        main = model.main
        operands = main.operands
        self._inputs: list[Array | None | _Use] = [
            uses.input(position, argument, operands[index])
            for position, (argument, index) in enumerate(
                zip(request.inputs, main.input_indexes, strict=True)
            )
        ]
        self._outputs: list[Target | _Use] = [
            uses.output(position, argument, operands[index])
            for position, (argument, index) in enumerate(
                zip(request.outputs, main.output_indexes, strict=True)
            )
        ]
