"""A request bound to arrays: validated once, kept while the request object lives.

Memory is checked when it is bound: what cannot be read, or written, fails the execution with
GeneralFailure. An image is an array too, of (height, width, channels) or with a 1 before, with
whatever padding its rows have; `plans.dense_copies` brings that to engines that want none.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import numpy as np

from nnasync._core.plans.dense_copies import bound, write
from nnasync._core.workers import Given, StopFlag, contained
from nnasync._core.workers.flight import Flight
from nnasync._core.workers.task import shielded
from nnasync.engine.contract import BoundCall, OutputBuffer, Plan, Target
from nnasync.errors import GeneralFailure, InvalidArgument, OutputInsufficientSize
from nnasync.fences import Fence
from nnasync.hal import (
    Array,
    Memory,
    Operand,
    OutputShape,
    Request,
    RequestArgument,
    Shape,
    Subgraph,
    combine_dimensions,
    dtype_of,
    is_fully_specified,
)
from nnasync.memory import IMAGE, Pool, mapped
from nnasync.tracing import Phase, span


class Binding:
    """A request with its arrays, and the idle calls that are bound to them."""

    __slots__ = ("_inputs", "_made", "_open", "_outputs", "_plan", "flight", "idle", "reference")

    is_managed: ClassVar[bool] = False
    """Whether it uses device-managed buffers, which must be notified of the end of a run."""

    def __init__(
        self, plan: Plan, inputs: Sequence[Array | None], outputs: Sequence[Target]
    ) -> None:
        self._plan = plan
        self._inputs = inputs
        self._outputs = outputs
        self._open = any(isinstance(output, OutputBuffer) for output in outputs)
        self._made = 0
        self.idle: list[BoundCall] = [self._bound()]
        """The calls that are bound to it and not in use."""
        self.reference: weakref.ref[Request] | None = None
        self.flight: Flight | None = None
        """The execution of its last plain call beside others, which the next one may be again."""

    @property
    def is_settled(self) -> bool:
        """Returns whether the shapes of all outputs are known before the run."""
        return not self._open

    @property
    def is_free(self) -> bool:
        """Returns whether none of its calls is in use."""
        return len(self.idle) == self._made

    def take(self) -> BoundCall:
        """Returns a call that is not in use."""
        try:
            return self.idle.pop()
        except IndexError:
            return self._bound()

    def write(self, given: Sequence[Array]) -> None:
        """Copies arrays to where the inputs are."""
        write(self._inputs, given)

    def fail(self, call: BoundCall) -> None:
        """Discards the effects of a call, because its execution failed."""

    def give_back(self, call: BoundCall) -> None:
        """Take a call back."""
        self.idle.append(call.successor() if self._open and isinstance(call, SizedCall) else call)

    def taker(self, fence: Fence) -> Callable[[BoundCall], object]:
        """Returns a callback that takes a call back.

        It discards the effects unless the fence signaled. The fence of a call that was refused is
        never settled. For managed buffers; other calls are just given back.
        """

        def take_back(call: BoundCall) -> None:
            if not fence.done or fence.error is not None:
                shielded(lambda: self.fail(call))
            shielded(lambda: self.give_back(call))

        return take_back

    def drop(self) -> None:
        """Notes that a call that was taken is neither given back nor in use any more."""
        self._made -= 1

    def exchange(self, change: Callable[[BoundCall], BoundCall]) -> None:
        """Replaces the idle calls by what `change` makes of them; from any thread."""
        self.flight = None  # It keeps the call that it was.
        for _ in range(len(self.idle)):
            try:
                call = self.idle.pop(0)
            except IndexError:
                return
            self.idle.append(change(call))

    def _bound(self) -> BoundCall:
        try:
            with span(Phase.PREPARATION, "bind a request"):
                call = self._bound_here()
        except (Exception, SystemExit) as error:
            failure = contained(error, "binding a request to its memory")
            raise failure from failure.__cause__
        self._made += 1
        return call

    def _bound_here(self) -> BoundCall:
        if not self._open:
            return bound(self._plan, self._inputs, self._outputs)
        outputs = [_own(output) for output in self._outputs]
        return SizedCall(bound(self._plan, self._inputs, outputs), outputs)


class SizedCall:
    """A call for one run that keeps the output shapes, which are known only after the run."""

    # It inherits no protocol: `isinstance` would be slow, and is asked of every call.
    __slots__ = ("_call", "_outputs", "shapes")

    reads_given: bool = False

    def __init__(self, call: BoundCall, outputs: Sequence[Target]) -> None:
        self._call = call
        self._outputs = outputs
        self.shapes: tuple[OutputShape, ...] = ()

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Runs, and keeps the output shapes when the run is over."""
        if not self._call.run(stop):
            return False
        shapes, outputs = self.shapes, self._outputs
        if not shapes:
            self.shapes = tuple(OutputShape(output.shape) for output in outputs)
            return True
        for shape, output in zip(shapes, outputs, strict=True):
            if shape.dimensions != output.shape:
                self.shapes = tuple(OutputShape(each.shape) for each in outputs)
                break
        return True

    def rewind(self) -> None:
        """Forget a stopped or failed run."""
        self._call.rewind()

    def successor(self) -> SizedCall:
        """Returns the same call for another run."""
        return SizedCall(self._call, self._outputs)


def _own(output: Target) -> Target:
    """Returns an output for one call: calls that run at once must not share shapes."""
    if isinstance(output, OutputBuffer):
        return OutputBuffer(output.memory, output.dtype, output.dimensions)
    return output


def array_of(request: Request, argument: RequestArgument, operand: Operand) -> Array:
    """Returns the piece of a pool that an input names, as an array of the operand's type.

    A length of 0 stands for the rest of the pool. Raises GeneralFailure for memory that cannot be
    read.
    """
    dimensions = argument.dimensions or operand.dimensions
    pool = _pool(request, argument)
    view = mapped(pool, "the memory of an input")
    if pool.name == IMAGE:
        return _pixels(pool, dimensions)
    dtype = dtype_of(operand.type)
    nbytes = math.prod(dimensions) * dtype.itemsize
    offset = argument.location.offset
    memory = np.frombuffer(view, np.uint8)[offset : offset + nbytes]
    return memory.view(dtype).reshape(dimensions)


def target_of(request: Request, argument: RequestArgument, operand: Operand) -> Target:
    """Returns where an output goes: an array if its shape is known, else the memory for it.

    Raises OutputInsufficientSize where a known shape does not fit in, GeneralFailure for memory
    that cannot be written.
    """
    dimensions = combine_dimensions(operand.dimensions, argument.dimensions) or ()
    dtype = dtype_of(operand.type)
    location = argument.location
    pool = _pool(request, argument)
    view = mapped(pool, "the memory of an output", writable=True)
    if pool.name == IMAGE:
        return _pixels(pool, dimensions)
    memory = np.frombuffer(view, np.uint8)[location.offset : location.offset + location.length]
    buffer = OutputBuffer(memory, dtype, dimensions)
    if not is_fully_specified(operand.type, dimensions):
        return buffer
    array = buffer.array(dimensions)
    return buffer if array is None else array


def bound_to_pools(name: str, plan: Plan, main: Subgraph, request: Request) -> Binding:
    """Binds a request whose pools are memory to a plan; raises as `array_of` and `target_of`."""
    operands = main.operands
    inputs = [
        None if argument.has_no_value else array_of(request, argument, operands[index])
        for argument, index in zip(request.inputs, main.input_indexes, strict=True)
    ]
    outputs = [
        target_of(request, argument, operands[index])
        for argument, index in zip(request.outputs, main.output_indexes, strict=True)
    ]
    check_sizes(name, outputs, [operands[index] for index in main.output_indexes])
    return Binding(plan, inputs, outputs)


class _Shaped(Protocol):
    @property
    def shape(self) -> Shape: ...


def check_sizes(name: str, outputs: Sequence[_Shaped], operands: Sequence[Operand]) -> None:
    """Raises OutputInsufficientSize where an output of known shape does not fit in its memory."""
    sufficient = [
        not (isinstance(output, OutputBuffer) and is_fully_specified(operand.type, output.shape))
        for output, operand in zip(outputs, operands, strict=True)
    ]
    if not all(sufficient):
        shapes = tuple(
            OutputShape(output.shape, fits)
            for output, fits in zip(outputs, sufficient, strict=True)
        )
        raise OutputInsufficientSize(
            f"{name}: the buffer of output {sufficient.index(False)} is too small", shapes
        )


def _pixels(pool: Memory, dimensions: Shape) -> Array:
    """Returns the pixels of an RGB image, whose size has been checked."""
    if not isinstance(pool, Pool) or pool.image_layout is None:
        raise GeneralFailure(f"an image of which only others know how it lies: {pool.name!r}")
    (pixels,) = pool.planes
    return pixels if len(dimensions) == pixels.ndim else pixels[np.newaxis]


def _pool(request: Request, argument: RequestArgument) -> Memory:
    pool = request.pools[argument.location.pool_index]
    if isinstance(pool, int):
        raise InvalidArgument("this device allocates no buffers, so it knows no memory tokens")
    return pool
