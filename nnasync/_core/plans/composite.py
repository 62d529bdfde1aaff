"""A plan made of the plans of several engines, which run one after the other as one.

A `Wire` says where a step reads or writes: an input or an output of the whole model, or a boundary,
a value that one step leaves for later ones. Nothing is copied between steps: writer and readers are
bound to the same memory. Boundaries that are never alive at the same time may share memory; their
offsets say how. Inputs and outputs of a request must not overlap, since a step may write an output
before another one reads an input.

Where all shapes are known when a call is bound, so are all its steps, and a run walks a list. Where
one is only known at the run, the steps that touch it are bound when their turn comes, and again
when the shape changes. Such a boundary grows to what its writer asks for. So does a stand-in for an
output of the request that is too small: the run goes on with it to its end, and only then raises
OutputInsufficientSize, with the shapes of all outputs.
"""

from __future__ import annotations

import enum
import math
import threading
import weakref
from collections.abc import Sequence

import numpy as np

from nnasync._core.workers import Given, StopFlag
from nnasync.engine.contract import BoundCall, OutputBuffer, Plan, Target
from nnasync.engine.problems import check_call
from nnasync.errors import (
    CallerError,
    Cancelled,
    GeneralFailure,
    InvalidArgument,
    OutputInsufficientSize,
    ResourceExhaustedTransient,
)
from nnasync.hal import (
    MAX_TENSOR_BYTES,
    Array,
    OutputShape,
    Shape,
    Struct,
    byte_size,
    dtype_of,
    is_fully_specified,
)

_ALIGNMENT = 64


class WireEnd(enum.Enum):
    """What is at the other end of a wire: an input, an output, or a boundary."""

    INPUT = "input"
    OUTPUT = "output"
    BOUNDARY = "boundary"


class Wire(Struct, frozen=True):
    """Where a step reads or writes: the number of an input or output of the model, or boundary."""

    place: WireEnd
    index: int


class Boundary(Struct, frozen=True):
    """A value that steps hand on: operand `operand` of the main subgraph, its type and dimensions.

    `offset` in bytes is where it lies in the memory of a call; one of unknown shape lies elsewhere.
    """

    operand: int
    type: int
    dimensions: Shape
    offset: int = 0

    @property
    def is_settled(self) -> bool:
        """Returns whether the shape is known before the run."""
        return is_fully_specified(self.type, self.dimensions)

    @property
    def nbytes(self) -> int:
        """Returns the size in bytes; 0 where the shape is not known."""
        return byte_size(self.type, self.dimensions) if self.is_settled else 0


class CompositeStep(Struct, frozen=True):
    """A plan, with the wires of its inputs and outputs."""

    plan: Plan
    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]
    name: str = ""


class CompositePlan(Plan):
    """Runs plans one after the other as one `Plan`."""

    def __init__(
        self,
        steps: Sequence[CompositeStep],
        boundaries: Sequence[Boundary],
        *,
        inputs: int,
        outputs: int,
    ) -> None:
        """Takes the steps; `inputs` and `outputs` are the numbers of the whole model's."""
        self._counts = inputs, outputs
        self._boundaries = tuple(boundaries)
        self._plans = tuple(step.plan for step in steps)
        self._steps = tuple(
            _Step(
                step.plan,
                tuple(map(self._slot, step.inputs)),
                tuple(map(self._slot, step.outputs)),
                step.name or f"step {number}",
            )
            for number, step in enumerate(steps)
        )
        self._memory = _Memory(max((b.offset + b.nbytes for b in boundaries), default=0))
        self._is_settled = all(boundary.is_settled for boundary in boundaries)
        self._calls: weakref.WeakSet[CompositeCall] = weakref.WeakSet()
        self._lock = threading.Lock()

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> CompositeCall:
        """Returns a call on these arrays, with memory of its own for the boundaries.

        Raises InvalidArgument for a wrong number of arrays, ResourceExhaustedTransient where there
        is no memory, and what the plans of the steps raise.
        """
        for kind, given, count in zip(
            ("input", "output"), (inputs, outputs), self._counts, strict=True
        ):
            if len(given) != count:
                raise InvalidArgument(f"{len(given)} {kind}s given, expected {count}")
        call = CompositeCall(self, tuple(inputs), tuple(outputs))
        with self._lock:
            self._calls.add(call)
        return call

    def trim(self) -> None:
        """Frees idle scratch: that of the plans, and the boundaries of calls that do not run."""
        for plan in self._plans:
            plan.trim()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.trim()
        self._memory.trim()

    def _slot(self, wire: Wire) -> int:
        inputs, outputs = self._counts
        start = {WireEnd.INPUT: 0, WireEnd.OUTPUT: inputs, WireEnd.BOUNDARY: inputs + outputs}
        return start[wire.place] + wire.index

    def _lane(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> _Lane:
        memory = self._memory.lease()
        values = [*inputs, *outputs, *(_value(boundary, memory) for boundary in self._boundaries)]
        if self._is_settled and not any(isinstance(output, OutputBuffer) for output in outputs):
            return _Lane(memory, [step.bind(values) for step in self._steps])
        count = len(inputs)
        return _OpenLane(memory, self._steps, values, range(count, count + len(outputs)))


class CompositeCall(BoundCall):
    """A call of a composite plan that can resume in and between steps, on one thread at a time."""

    __slots__ = ("__weakref__", "_active", "_idle", "_inputs", "_outputs", "_plan")

    def __init__(
        self, plan: CompositePlan, inputs: Sequence[Array | None], outputs: Sequence[Target]
    ) -> None:
        self._plan = plan
        self._inputs = inputs
        self._outputs = outputs
        self._active: _Lane | None = None
        # One lane or none: who pops it owns it, a run or the trimming of another thread.
        self._idle = [plan._lane(inputs, outputs)]

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Run the steps; stops between them, and within one that can, when the flag is raised."""
        lane = self._active
        if lane is None:
            try:
                lane = self._idle.pop()
            except IndexError:
                lane = self._plan._lane(self._inputs, self._outputs)
            self._active = lane
        try:
            if not lane.run(stop):
                return False
        except BaseException:
            self.rewind()
            raise
        self._active = None
        self._idle.append(lane)
        return True

    def rewind(self) -> None:
        """Forgets a stopped or failed run."""
        lane, self._active = self._active, None
        if lane is not None:
            lane.rewind()
            self._idle.append(lane)

    def trim(self) -> None:
        """Unbind the steps and drop the boundaries unless a run needs them.

        The next run binds again.
        """
        self._idle.clear()

    def __del__(self) -> None:
        for lane in getattr(self, "_idle", ()):
            self._plan._memory.give_back(lane.memory)


class _Step(Struct, frozen=True):
    """A step whose wires are numbers of slots: inputs, then outputs, then boundaries."""

    plan: Plan
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    name: str

    def bind(self, values: Sequence[Array | OutputBuffer | None]) -> BoundCall:
        """Returns a call of the step on the values of its slots."""
        call = self.plan.bind(
            [_read(values[slot]) for slot in self.inputs],
            [_written(values[slot]) for slot in self.outputs],
        )
        return check_call(call, self.plan)


class _Lane(BoundCall):
    """The bound steps of a call, and how far they have run."""

    __slots__ = ("_calls", "_index", "memory")

    def __init__(self, memory: Array, calls: list[BoundCall]) -> None:
        self.memory = memory
        self._calls = calls
        self._index = 0

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Runs on; returns False where the flag stops it. Must be rewound if it raises."""
        index = self._index
        try:
            for call in self._calls[index:] if index else self._calls:
                if stop.raised or not call.run(stop):
                    return False
                index += 1
            index = 0
        finally:
            self._index = index
        return True

    def rewind(self) -> None:
        """Forget how far it has run."""
        index, self._index = self._index, 0
        self._calls[index].rewind()


class _OpenLane(_Lane):
    """Steps some of which are bound when their turn comes, since shapes are only known then."""

    __slots__ = ("_bound", "_current", "_given", "_outputs", "_steps", "_values")

    def __init__(
        self,
        memory: Array,
        steps: Sequence[_Step],
        values: list[Array | OutputBuffer | None],
        outputs: range,
    ) -> None:
        super().__init__(memory, [])
        self._steps = steps
        self._values = values
        self._outputs = outputs
        self._given = {slot: values[slot] for slot in outputs}
        self._bound: list[tuple[tuple[Shape, ...], BoundCall] | None] = [None] * len(steps)
        self._current: BoundCall | None = None
        for number, step in enumerate(steps):
            if not self._shapes(step) and not self._writes_open(step):
                self._bound[number] = (), step.bind(values)

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Run on; raises OutputInsufficientSize at the end."""
        while self._index < len(self._steps):
            if stop.raised:
                return False
            try:
                if self._current is None:
                    self._current = self._call()
                if not self._current.run(stop):
                    return False
            except OutputInsufficientSize as error:
                self._grow(error)
                continue
            self._current = None
            self._index += 1
        self._index = 0
        self._check_fit()
        return True

    def rewind(self) -> None:
        """Forget how far it has run."""
        current, self._current, self._index = self._current, None, 0
        if current is not None:
            current.rewind()
        self._restore()

    def _call(self) -> BoundCall:
        """Returns the call of the step whose turn it is."""
        step, kept = self._steps[self._index], self._bound[self._index]
        shapes = self._shapes(step)
        if kept is not None and kept[0] == shapes:
            return kept[1]
        try:
            call = step.bind(self._values)
        except OutputInsufficientSize:
            raise
        except (CallerError, Cancelled) as error:
            raise GeneralFailure(f"{step.name} does not take what came before: {error}") from error
        self._bound[self._index] = shapes, call
        return call

    def _shapes(self, step: _Step) -> tuple[Shape, ...]:
        """Returns the shapes of the step's inputs that are only known at the run."""
        values = (self._values[slot] for slot in step.inputs)
        return tuple(value.shape for value in values if isinstance(value, OutputBuffer))

    def _writes_open(self, step: _Step) -> bool:
        return any(isinstance(self._values[slot], OutputBuffer) for slot in step.outputs)

    def _grow(self, error: OutputInsufficientSize) -> None:
        """Give the outputs of a step as much memory as it says it needs."""
        current, self._current = self._current, None
        if current is not None:
            current.rewind()
        step, shapes = self._steps[self._index], error.output_shapes
        small = [
            (slot, shape.dimensions)
            for slot, shape in zip(step.outputs, shapes, strict=False)
            if not shape.is_sufficient
        ]
        if not small or len(shapes) != len(step.outputs):
            raise GeneralFailure(f"{step.name} does not say which output needs memory") from error
        for slot, shape in small:
            self._values[slot] = _enlarged(self._values[slot], shape, step.name)
        self._unbind({slot for slot, _ in small})

    def _unbind(self, slots: set[int]) -> None:
        """Forget the calls of steps that touch these slots."""
        for number, step in enumerate(self._steps):
            if slots.intersection(step.inputs) or slots.intersection(step.outputs):
                self._bound[number] = None

    def _check_fit(self) -> None:
        """Raise OutputInsufficientSize where a stand-in took the place of an output."""
        values = [self._values[slot] for slot in self._outputs]
        fits = [self._values[slot] is self._given[slot] for slot in self._outputs]
        if all(fits):
            return
        shapes = tuple(
            OutputShape(value.shape, fit)
            for value, fit in zip(values, fits, strict=True)
            if value is not None
        )
        self._restore()
        index = fits.index(False)
        raise OutputInsufficientSize(
            f"the buffer of output {index} is too small for {list(shapes[index].dimensions)}",
            shapes,
        )

    def _restore(self) -> None:
        """Put the outputs of the request back where a stand-in took their place."""
        changed = {slot for slot, value in self._given.items() if self._values[slot] is not value}
        for slot in changed:
            self._values[slot] = self._given[slot]
        if changed:
            self._unbind(changed)


class _Memory:
    """Memory for the boundaries of calls; what idle calls gave back is used again."""

    __slots__ = ("_free", "_nbytes")

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        # No lock: `give_back` may be called by the garbage collector in the midst of `lease`.
        self._free: list[Array] = []

    def lease(self) -> Array:
        try:
            return self._free.pop()
        except IndexError:
            return _aligned(self._nbytes)

    def give_back(self, memory: Array) -> None:
        self._free.append(memory)

    def trim(self) -> None:
        self._free.clear()


def _aligned(nbytes: int) -> Array:
    """Returns bytes that begin at a cache line; raises ResourceExhaustedTransient."""
    try:
        raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    except MemoryError as error:
        raise ResourceExhaustedTransient(
            f"the values between steps need {nbytes} bytes of memory, which are not to be had"
        ) from error
    start = -raw.__array_interface__["data"][0] % _ALIGNMENT
    return raw[start : start + nbytes]


def _value(boundary: Boundary, memory: Array) -> Array | OutputBuffer:
    """Returns a boundary in the memory of a call, or memory of its own if its shape is unknown."""
    dtype, dimensions = dtype_of(boundary.type), boundary.dimensions
    if not boundary.is_settled:
        return OutputBuffer(_aligned(0), dtype, dimensions)
    array = memory[boundary.offset : boundary.offset + boundary.nbytes]
    return array.view(dtype).reshape(dimensions)


def _read(value: Array | OutputBuffer | None) -> Array | None:
    """Returns an input of a step.

    The step that wrote a value of open shape has stored its shape.
    """
    return value.array(value.shape) if isinstance(value, OutputBuffer) else value


def _written(value: Array | OutputBuffer | None) -> Target:
    if value is None:
        raise InvalidArgument("an output cannot be omitted")
    return value


def _enlarged(value: Array | OutputBuffer | None, shape: Shape, who: str) -> OutputBuffer:
    """Returns memory for this shape; raises GeneralFailure for a shape that cannot be true."""
    if not isinstance(value, OutputBuffer):
        raise GeneralFailure(f"{who} wants {list(shape)} for an output of known shape")
    nbytes = math.prod(shape) * value.dtype.itemsize
    if not value.memory.size < nbytes <= MAX_TENSOR_BYTES:
        raise GeneralFailure(
            f"{who} wants {nbytes} bytes for an output that has {value.memory.size}, of at most "
            f"{MAX_TENSOR_BYTES}"
        )
    return OutputBuffer(_aligned(nbytes), value.dtype, value.dimensions)
