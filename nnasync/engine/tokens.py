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

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np

from nnasync import hal
from nnasync.buffers import Buffers, ManagedBuffer
from nnasync.engine.binding import Binding, SizedCall, array_of, target_of
from nnasync.engine.contract import BoundCall, OutputBuffer, Plan, Target
from nnasync.engine.gathering import bound
from nnasync.errors import (
    GeneralFailure,
    InvalidArgument,
    OutputInsufficientSize,
    ResourceExhaustedTransient,
)
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

    @property
    def shape(self) -> Shape:
        """For whom it stands beside arrays and `OutputBuffer`s."""
        return self.dimensions

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


class _Bound:
    """A call of the plan, where its outputs go, and the memory for which it was made."""

    __slots__ = ("call", "memories", "outputs")

    def __init__(
        self, call: BoundCall, outputs: Sequence[Target], memories: Sequence[Array]
    ) -> None:
        self.call = call
        self.outputs = outputs
        self.memories = memories


class TokenBinding(Binding):
    """One request with tokens, and its calls that are idle."""

    __slots__ = (
        "__weakref__",
        "_buffers",
        "_has_fixed_memory",
        "_is_over",
        "_reads",
        "_ready",
        "_shapes",
        "_uses",
        "_writes",
        "_written",
        "claims",
    )

    is_managed: ClassVar[bool] = True

    def __init__(
        self, owner: object, model: Model, plan: Plan, request: Request, known: Buffers
    ) -> None:
        """`owner` is the prepared model of which the buffers have roles; raises InvalidArgument."""
        self._plan = plan
        self.reference = None
        self._ready: list[_Bound] = []
        uses = _Uses(owner, request, known)
        main = model.main
        inputs = [main.operands[index] for index in main.input_indexes]
        outputs = [main.operands[index] for index in main.output_indexes]
        self._uses = (
            [
                uses.input(position, argument, operand)
                for position, (argument, operand) in enumerate(
                    zip(request.inputs, inputs, strict=True)
                )
            ],
            [
                uses.output(position, argument, operand)
                for position, (argument, operand) in enumerate(
                    zip(request.outputs, outputs, strict=True)
                )
            ],
        )
        self._reads = tuple(uses.reads.items())
        self._writes = tuple(uses.writes)
        self._buffers = (*uses.reads, *uses.writes)
        # What need not be asked anew for each run, where everything is known.
        self._has_fixed_memory = all(
            hal.is_fully_specified(buffer.type, buffer.creation_dimensions)
            for buffer in self._buffers
        )
        self._open = not all(_is_settled(output) for output in self.outputs)
        self._shapes = tuple(OutputShape(output.shape) for output in self.outputs)
        self._written = [
            (use.buffer, use.dimensions) for use in self.outputs if isinstance(use, _Use)
        ]
        self.claims = known.claims
        self._is_over = False
        for buffer in self._buffers:
            buffer.followed_by(self)

    @property
    def outputs(self) -> Sequence[Target | _Use]:
        """Where the outputs go, or the uses of buffers for them."""
        return self._uses[1]

    def take(self) -> BoundCall:
        """A call for one run; raises InvalidArgument if a buffer has been closed."""
        if self._is_over:
            raise InvalidArgument("a memory token of the request stands for no buffer any more")
        return TokenCall(self)

    def fail(self, call: BoundCall) -> None:
        """Leave the output buffers without contents, unless somebody has written to them since."""
        if isinstance(call, TokenCall):
            self.claims.void(self._writes, call.tick)

    def give_back(self, call: BoundCall) -> None:
        """It is for one run."""

    def drop(self) -> None:
        """Let go of the buffers' memory: one of them is closed."""
        self._is_over = True
        self._ready.clear()

    # -- for its calls

    def claim(self) -> None:
        """Claim all buffers for a run, or none; raises what `Claims.begin` raises."""
        self.claims.begin(self._reads, self._writes)

    def release(self, outputs: Sequence[Target]) -> tuple[int, tuple[OutputShape, ...]]:
        """Give the claims back with what a run has written; the tick, and the shapes.

        Raises GeneralFailure where the buffers cannot have what was written; they have no contents
        then.
        """
        if not self._open:
            return self.claims.end(self._reads, self._written), self._shapes
        shapes = tuple(OutputShape(output.shape) for output in outputs)
        written = [
            (use.buffer, found.dimensions)
            for use, found in zip(self.outputs, shapes, strict=True)
            if isinstance(use, _Use)
        ]
        if not all(buffer.takes(shape) for buffer, shape in written):
            self.give_up()
            raise GeneralFailure("an output has a shape that its buffer was not allocated for")
        return self.claims.end(self._reads, written), shapes

    def give_up(self) -> None:
        """Give the claims back of a run that failed."""
        self.claims.end(self._reads, [(buffer, None) for buffer in self._writes])

    def bound(self) -> _Bound:
        """A call of the plan on the memory of the buffers, which are claimed; they get enough."""
        if self._has_fixed_memory and self._ready:
            found = self._idle_call()
            if found is not None:
                return found
        while True:
            try:
                return self._bound_now()
            except OutputInsufficientSize as error:
                self.grow(error)

    def _bound_now(self) -> _Bound:
        """A call on the memory that the buffers have."""
        found = self._idle_call()
        for use in self.outputs:
            if isinstance(use, _Use) and use.is_settled:
                use.buffer.grow(use.nbytes)
        memories = [buffer.memory for buffer in self._buffers]
        while found is not None:
            if all(a is b for a, b in zip(found.memories, memories, strict=True)):
                return found
            found = self._idle_call()
        outputs = [_target(output) for output in self.outputs]
        inputs = [each.array() if isinstance(each, _Use) else each for each in self._uses[0]]
        try:
            return _Bound(bound(self._plan, inputs, outputs), outputs, memories)
        except Exception as error:
            failure = contained(error, "binding a request to its memory")
            raise failure from failure.__cause__

    def _idle_call(self) -> _Bound | None:
        try:
            return self._ready.pop()
        except IndexError:
            return None

    def keep(self, bound: _Bound) -> None:
        """Keep a call for the next run."""
        self._ready.append(bound)
        if self._is_over:
            self._ready.clear()

    def grow(self, error: OutputInsufficientSize) -> None:
        """Give buffers the memory that a run lacked; raises where that is not the remedy."""
        lacking = [
            (use, found.dimensions)
            for use, found in zip(self.outputs, error.output_shapes, strict=False)
            if isinstance(use, _Use) and not found.is_sufficient
        ]
        if not lacking:
            raise error
        for use, shape in lacking:
            nbytes = hal.byte_size(use.buffer.type, shape)
            if not use.buffer.takes(shape) or nbytes <= use.buffer.memory.size:
                raise GeneralFailure(
                    f"an output of shape {list(shape)} does not fit in its {use.buffer}"
                ) from error
            use.buffer.grow(nbytes)


class TokenCall(SizedCall):
    """One run of a request with tokens.

    Changes of its output buffers up to `tick` are those that it knows of; none if it was refused.
    """

    __slots__ = ("_binding", "_bound", "tick")

    def __init__(self, binding: TokenBinding) -> None:
        self.shapes = ()
        self.tick = binding.claims.tick
        self._binding = binding
        self._bound: _Bound | None = None

    def run(self, stop: StopFlag) -> bool:
        """Claim the buffers, run, and leave them as the run has."""
        bound = self._bound or self._begun()
        try:
            while True:
                try:
                    if not bound.call.run(stop):
                        return False
                    break
                except OutputInsufficientSize as error:
                    bound.call.rewind()
                    self._binding.grow(error)
                    bound = self._bound = self._binding.bound()
        except BaseException:
            self.rewind()
            raise
        self._bound = None
        self.tick, self.shapes = self._binding.release(bound.outputs)
        self._binding.keep(bound)
        return True

    def rewind(self) -> None:
        """Forget a stopped or failed run: what it was to write to has no contents."""
        bound, self._bound = self._bound, None
        if bound is not None:
            try:
                bound.call.rewind()
            finally:
                self._binding.give_up()

    def _begun(self) -> _Bound:
        try:
            self._binding.claim()
        except ResourceExhaustedTransient:
            # Whoever has the buffers decides what becomes of them.
            self.tick = -1
            raise
        try:
            self._bound = self._binding.bound()
        except BaseException:
            self._binding.give_up()
            raise
        return self._bound


class _Uses:
    """Resolves the tokens of a request, and checks their roles."""

    def __init__(self, owner: object, request: Request, known: Buffers) -> None:
        self._owner = owner
        self._request = request
        self._pools = [
            known.find(pool) if isinstance(pool, int) else None for pool in request.pools
        ]
        self.reads: dict[ManagedBuffer, Shape] = {}
        self.writes: list[ManagedBuffer] = []

    def input(
        self, position: int, argument: RequestArgument, operand: Operand
    ) -> Array | _Use | None:
        """Where an input is."""
        if argument.has_no_value:
            return None
        buffer = self._pools[argument.location.pool_index]
        if buffer is None:
            return array_of(self._request, argument, operand)
        dimensions = argument.dimensions or operand.dimensions
        use = self._use(buffer, "input", position, dimensions)
        if self.reads.setdefault(buffer, dimensions) != dimensions:
            raise InvalidArgument(f"input {position}: its buffer is another input of other shape")
        return use

    def output(self, position: int, argument: RequestArgument, operand: Operand) -> Target | _Use:
        """Where an output goes."""
        buffer = self._pools[argument.location.pool_index]
        if buffer is None:
            return target_of(self._request, argument, operand)
        dimensions = hal.combine_dimensions(operand.dimensions, argument.dimensions) or ()
        use = self._use(buffer, "output", position, dimensions)
        if buffer in self.reads:
            raise InvalidArgument(f"output {position}: its buffer is an input of the same request")
        if buffer in self.writes:
            raise InvalidArgument(f"output {position}: its buffer is another output as well")
        self.writes.append(buffer)
        return use

    def _use(self, buffer: ManagedBuffer, kind: str, position: int, dimensions: Shape) -> _Use:
        if not buffer.has_role(self._owner, kind, position):
            raise InvalidArgument(
                f"{kind} {position} of this prepared model is no role of its {buffer}"
            )
        if hal.combine_dimensions(buffer.creation_dimensions, dimensions) is None:
            raise InvalidArgument(
                f"{kind} {position} has dimensions {list(dimensions)}, its {buffer} has others"
            )
        return _Use(buffer, dimensions)


def _is_settled(output: Target | _Use) -> bool:
    return not isinstance(output, OutputBuffer) and (
        not isinstance(output, _Use) or output.is_settled
    )


def _target(output: Target | _Use) -> Target:
    """An output for one call; calls that run at once find shapes of their own."""
    if isinstance(output, _Use):
        return output.target()
    if isinstance(output, OutputBuffer):
        return OutputBuffer(output.memory, output.dtype, output.dimensions)
    return output
