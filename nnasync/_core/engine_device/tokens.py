"""Requests that name device-managed buffers by their tokens: checked, bound, and run.

What cannot change is checked when a request is seen first: that its tokens are known, that each is
used in a role of its buffer, once if it is written to, with dimensions that it can have. What
depends on what ran before is checked when the execution runs, behind its fences: that inputs are
initialized, with these dimensions. From there to its end the execution claims its buffers, and
before its fence is signaled they are as it leaves them.

Where model and buffers have the same dimensions, which are known, a call is made once for all runs
that follow each other. Else each run has its own. An output whose shape nobody knows goes into what
memory its buffer has; if that is too small, and the buffer was allocated without that dimension, it
gets more, and the execution runs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from nnasync import hal
from nnasync._core.engine_device.binding import Binding, SizedCall
from nnasync._core.engine_device.buffers import Buffers, Claim
from nnasync._core.engine_device.uses import Use, Uses, is_settled, target
from nnasync._core.plans.dense_copies import bound
from nnasync._core.workers import Given, StopFlag, contained
from nnasync.engine.contract import BoundCall, Plan, Target
from nnasync.errors import (
    GeneralFailure,
    InvalidArgument,
    OutputInsufficientSize,
    ResourceExhaustedTransient,
)
from nnasync.hal import Array, Model, OutputShape, Request


class _Bound:
    """A call of the plan, where its outputs go, and for which memory it was made."""

    __slots__ = ("call", "memories", "outputs")

    def __init__(
        self, call: BoundCall, outputs: Sequence[Target], memories: Sequence[Array]
    ) -> None:
        self.call = call
        self.outputs = outputs
        self.memories = memories


class TokenBinding(Binding):
    """A request with tokens of buffers, and its idle calls."""

    __slots__ = (
        "__weakref__",
        "_buffers",
        "_has_steady_calls",
        "_is_over",
        "_ready",
        "_shapes",
        "_steady",
        "_uses",
        "claim",
        "claims",
    )

    is_managed: ClassVar[bool] = True
    is_free = False

    def __init__(
        self,
        owner: object,
        model: Model,
        plan: Plan,
        request: Request,
        known: Buffers,
        shapes: Sequence[OutputShape] = (),
    ) -> None:
        """`owner` is the prepared model for which the buffers have roles; raises InvalidArgument.

        Shapes equal to `shapes` are not reported after a run.
        """
        self._plan = plan
        self.reference = None
        self._ready: list[_Bound] = []
        self._steady: list[SteadyCall] = []
        uses = Uses(owner, request, known)
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
        self._buffers = (*uses.reads, *uses.writes)
        self._open = not all(is_settled(output) for output in self.outputs)
        self._shapes = tuple(OutputShape(output.shape) for output in self.outputs)
        self.claims = known.claims
        self.claim = Claim(
            uses.reads.items(),
            [(use.buffer, use.dimensions) for use in self.outputs if isinstance(use, Use)],
        )
        has_fixed_memory = all(
            hal.is_fully_specified(buffer.type, buffer.creation_dimensions)
            for buffer in self._buffers
        )
        self._has_steady_calls = (
            has_fixed_memory and not self._open and self._shapes == tuple(shapes)
        )
        self._is_over = False
        for buffer in self._buffers:
            buffer.followed_by(self)

    @property
    def outputs(self) -> Sequence[Target | Use]:
        """Returns where the outputs go, or the uses of buffers for them."""
        return self._uses[1]

    def take(self) -> BoundCall:
        """Returns a call for one run; raises InvalidArgument if a buffer has been closed."""
        try:
            call = self._steady.pop()
        except IndexError:
            return self._new_call()
        call.tick = self.claims.tick
        return call

    def _new_call(self) -> BoundCall:
        if self._is_over:
            raise InvalidArgument("a memory token of the request stands for no buffer any more")
        return SteadyCall(self) if self._has_steady_calls else TokenCall(self)

    def fail(self, call: BoundCall) -> None:
        """Invalidates the output buffers' contents, unless somebody has written to them since."""
        if isinstance(call, SteadyCall | TokenCall):
            self.claims.void(self.claim.writes, call.tick)

    def give_back(self, call: BoundCall) -> None:
        """Takes back a call that may run again."""
        if call.__class__ is SteadyCall:
            self._steady.append(call)
            if self._is_over:
                self._steady.clear()

    def drop(self) -> None:
        """Drops the buffers' memory, because one of them is closed."""
        self._is_over = True
        self._ready.clear()
        self._steady.clear()

    # -- for its calls

    def release(self, outputs: Sequence[Target]) -> tuple[int, tuple[OutputShape, ...]]:
        """Releases the claims with the results of a run; returns the tick and the shapes.

        Raises GeneralFailure where the buffers cannot have what was written; they have no contents
        then.
        """
        if not self._open:
            return self.claims.end(self.claim), self._shapes
        shapes = tuple(OutputShape(output.shape) for output in outputs)
        written = [
            (use.buffer, found.dimensions)
            for use, found in zip(self.outputs, shapes, strict=True)
            if isinstance(use, Use)
        ]
        if not all(buffer.takes(shape) for buffer, shape in written):
            self.claims.fail(self.claim)
            raise GeneralFailure("an output has a shape that its buffer was not allocated for")
        return self.claims.end(self.claim, written), shapes

    def bound(self) -> _Bound:
        """Returns a call of the plan on the claimed buffers, which get enough memory."""
        while True:
            try:
                return self._bound_now()
            except OutputInsufficientSize as error:
                self.grow(error)

    def _bound_now(self) -> _Bound:
        """Returns a call on the memory that the buffers have."""
        found = self._idle_call()
        for use in self.outputs:
            if isinstance(use, Use) and use.is_settled:
                use.buffer.grow(use.nbytes)
        memories = [buffer.memory for buffer in self._buffers]
        while found is not None:
            if all(a is b for a, b in zip(found.memories, memories, strict=True)):
                return found
            found = self._idle_call()
        outputs = [target(output) for output in self.outputs]
        inputs = [each.array() if isinstance(each, Use) else each for each in self._uses[0]]
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
        """Keeps a call for the next run."""
        self._ready.append(bound)
        if self._is_over:
            self._ready.clear()

    def grow(self, error: OutputInsufficientSize) -> None:
        """Gives buffers the memory that a run lacked; raises where that is not the remedy."""
        lacking = [
            (use, found.dimensions)
            for use, found in zip(self.outputs, error.output_shapes, strict=False)
            if isinstance(use, Use) and not found.is_sufficient
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


class SteadyCall(BoundCall):
    """Runs of a request whose buffers keep their memory and dimensions, one after another.

    Changes of its output buffers up to `tick` are those that it knows of; none if it was refused.
    """

    __slots__ = ("_binding", "_call", "_claim", "_claims", "_has_begun", "tick")

    def __init__(self, binding: TokenBinding) -> None:
        self.tick = binding.claims.tick
        self._binding = binding
        self._claims = binding.claims
        self._claim = binding.claim
        self._call: BoundCall | None = None
        self._has_begun = False

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Claims the buffers, runs, and releases them as the run leaves them."""
        if not self._has_begun:
            try:
                self._claims.begin(self._claim)
            except ResourceExhaustedTransient:
                # Whoever has the buffers decides what becomes of them.
                self.tick = -1
                raise
            self._has_begun = True
        try:
            call = self._call
            if call is None:
                call = self._call = self._binding.bound().call
            if not call.run(stop):
                return False
        except OutputInsufficientSize as error:
            self.rewind()
            self._binding.grow(error)
            raise
        except BaseException:
            self.rewind()
            raise
        self._has_begun = False
        self.tick = self._claims.end(self._claim)
        return True

    def rewind(self) -> None:
        """Discards a stopped or failed run: its output buffers have no contents."""
        if not self._has_begun:
            return
        self._has_begun = False
        try:
            if self._call is not None:
                self._call.rewind()
        finally:
            self._claims.fail(self._claim)


class TokenCall(SizedCall):
    """One run of a request with tokens; `tick` is as that of a steady call."""

    __slots__ = ("_binding", "_bound", "tick")

    def __init__(self, binding: TokenBinding) -> None:
        self.shapes = ()
        self.tick = binding.claims.tick
        self._binding = binding
        self._bound: _Bound | None = None

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Claims the buffers, runs, and releases them as the run leaves them."""
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
        """Discards a stopped or failed run: its output buffers have no contents."""
        bound, self._bound = self._bound, None
        if bound is not None:
            try:
                bound.call.rewind()
            finally:
                self._binding.claims.fail(self._binding.claim)

    def _begun(self) -> _Bound:
        claims, claim = self._binding.claims, self._binding.claim
        try:
            claims.begin(claim)
        except ResourceExhaustedTransient:
            self.tick = -1
            raise
        try:
            self._bound = self._binding.bound()
        except BaseException:
            claims.fail(claim)
            raise
        return self._bound
