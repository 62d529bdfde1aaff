"""A compiled model, and its calls that are bound to memory.

Where the shapes of the inputs settle all others, a call walks the steps of a `Program` and
allocates nothing; programs are kept for each set of input shapes that was met. Where they do not,
or the model branches, it runs through an `Interpreter`. A plan tells only when a call is bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextvars import Context

import numpy as np

from nnasync._core.drivers.cpu.blas import ONE_BLAS_THREAD
from nnasync._core.drivers.cpu.execution_limits import MAX_EXECUTION_BYTES
from nnasync._core.drivers.cpu.interpreter import Interpreter, Run
from nnasync._core.drivers.cpu.program import Lane, Program, Unresolved, silent_context
from nnasync._core.drivers.cpu.programs import Programs, Shapes
from nnasync._core.plans.arena import MemoryPlan
from nnasync._core.validation import subgraph_tensors
from nnasync.engine import (
    BoundCall,
    Given,
    Layer,
    OutputBuffer,
    Phase,
    Plan,
    StopFlag,
    Target,
    deliver,
    fit,
    span,
)
from nnasync.errors import GeneralFailure, InvalidArgument, ModelError
from nnasync.hal import Array, Model, Shape
from nnasync.kernels import Packing, Step, Tensor
from nnasync.memory import count_copied
from nnasync.tracing import SWITCH, vlog


class ReferencePlan(Plan):
    """A model prepared for the processor; any number of its calls may run at once.

    Raises ModelError that names the operation at fault, or says that an execution would need more
    memory than the limit. `packing` replays the weights that a plan of the same model had packed.
    """

    def __init__(
        self,
        model: Model,
        memory_limit_bytes: int = MAX_EXECUTION_BYTES,
        packing: Packing | None = None,
    ) -> None:
        ONE_BLAS_THREAD.apply()
        self.model = model
        """The model that was compiled."""
        self._limit_bytes = memory_limit_bytes
        tensors = subgraph_tensors(model, model.main)
        self._inputs = [tensors[index] for index in model.main.input_indexes]
        self._outputs = [tensors[index] for index in model.main.output_indexes]
        self._programs = Programs()
        self._interpreter: Interpreter | None = None
        self.packed: tuple[Array, ...] = ()
        """The weights that were packed for the usual shapes, in order; for `packing`."""
        try:
            if all(tensor is not None and tensor.is_known for tensor in self._inputs):
                key = tuple(tensor.shape for tensor in self._inputs if tensor is not None)
                packing = packing or Packing()
                self._programs.remember(key, self._new_program(None, packing))
                self.packed = tuple(packing.arrays)
                return
        except Unresolved:
            self._programs.remember(key, None)
        self._interpreter = self._flexible()

    def reads_in_place(self, array: Array) -> bool:
        """Returns True.

        Every execution copies its inputs into a lane, row by row where it has to.
        """
        return True

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        """A call on C-contiguous arrays of the operands' dtypes and shapes.

        Raises InvalidArgument for an array that does not fit the model, OutputInsufficientSize.
        """
        for kind, given, tensors in (
            ("input", inputs, self._inputs),
            ("output", outputs, self._outputs),
        ):
            if len(given) != len(tensors):
                raise InvalidArgument(f"{len(given)} {kind}s given, expected {len(tensors)}")
            for position, (array, tensor) in enumerate(zip(given, tensors, strict=True)):
                if array is not None and tensor is not None:
                    _check(f"{kind} {position}", array, tensor)
        shapes = tuple(None if array is None else array.shape for array in inputs)
        program = self._programs.find(shapes, self._fitting_program)
        if program is None:
            return FlexibleCall(self._flexible(), inputs, outputs)
        fault = _shape_fault(outputs, program.output_shapes)
        if fault:
            raise InvalidArgument(fault)
        return ReferenceCall(program, inputs, fit(outputs, program.output_shapes))

    def trim(self) -> None:
        """Gives the memory of idle executions back."""
        self._programs.trim()
        if self._interpreter is not None:
            self._interpreter.trim()

    def _fitting_program(self, shapes: Shapes) -> Program:
        """A program; what does not fit is an error of the run, and the interpreter raises it."""
        try:
            return self._new_program(shapes)
        except ModelError as error:
            raise Unresolved from error

    def _flexible(self) -> Interpreter:
        if self._interpreter is None:
            vlog.cpuexe("%s: operations are run as they come up", self.model.name or "model")
            self._interpreter = Interpreter(self.model, self._limit_bytes)
        return self._interpreter

    def _new_program(self, shapes: Shapes | None, packing: Packing | None = None) -> Program:
        with span(Phase.TRANSFORMATION, "pack weights and lay memory out", Layer.CPU):
            program = Program(
                self.model,
                self.model.main,
                shapes,
                memory_limit_bytes=self._limit_bytes,
                packing=packing,
            )
        vlog.cpuexe(
            "%s: %d operations in a fixed order, %d bytes for an execution",
            self.model.name or "model",
            len(self.model.main.operations),
            program.nbytes,
        )
        return program


def memory_plan(model: Model) -> MemoryPlan:
    """Returns how the memory of one execution is laid out.

    Raises ModelError where a run must tell.
    """
    try:
        return Program(model, model.main).memory_plan
    except Unresolved as error:
        raise ModelError(
            "the memory depends on the run: a shape is not known before, or the model branches"
        ) from error


def _check(where: str, target: Target, tensor: Tensor) -> None:
    shape = target.dimensions if isinstance(target, OutputBuffer) else target.shape
    stated = tensor.shape
    exact = tensor.is_known and not isinstance(target, OutputBuffer)
    fits = shape == stated if exact else _agree(shape, stated)
    if not fits or target.dtype != tensor.dtype:
        raise InvalidArgument(
            f"{where} is {target.dtype}{list(shape)}, expected {tensor.dtype}{list(stated)}"
        )


def _agree(shape: Shape, stated: Shape) -> bool:
    if not shape or not stated:
        return True
    return len(shape) == len(stated) and all(
        a == b or not b or not a for a, b in zip(shape, stated, strict=True)
    )


def _shape_fault(targets: Sequence[Target], shapes: Sequence[Shape]) -> str | None:
    """Returns why outputs of these shapes contradict what was asked for, or None."""
    for position, (target, shape) in enumerate(zip(targets, shapes, strict=True)):
        if isinstance(target, OutputBuffer):
            expected = target.dimensions
            fits = _agree(shape, expected)
        else:
            expected = target.shape
            fits = shape == expected
        if not fits:
            return f"output {position} is {list(shape)}, expected {list(expected)}"
    return None


class _Resumable(BoundCall, ABC):
    """A call that is forgotten when it ends, well or badly, but not when it is stopped."""

    __slots__ = ()

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Runs to the end, or to the next operation boundary once `stop.raised` is not 0."""
        try:
            if not self._advance(stop, given):
                return False
        except ModelError as error:
            self.rewind()
            raise GeneralFailure(str(error)) from error
        except BaseException:
            self.rewind()
            raise
        self.rewind()
        return True

    @abstractmethod
    def _advance(self, stop: StopFlag, given: Given) -> bool:
        """Runs on.

        Returns whether the end is reached. Raises ModelError where the model is at fault.
        """

    @abstractmethod
    def rewind(self) -> None:
        """Forgets what has run and gives its memory back."""


class ReferenceCall(_Resumable):
    """A program bound to arrays: resumable, and used by one thread at a time."""

    __slots__ = ("_index", "_lane", "_program", "_sources", "_targets", "reads_given")

    def __init__(
        self, program: Program, sources: Sequence[Array | None], targets: Sequence[Array]
    ) -> None:
        self._program = program
        self._sources = tuple(sources)
        self._targets = tuple(targets)
        self._lane: Lane | None = None
        self._index = 0
        self.reads_given = True

    def _advance(self, stop: StopFlag, given: Given) -> bool:
        lane = self._lane
        if lane is None:
            if stop.raised:
                return False
            lane = self._lane = self._program.lease()
            sources = self._sources if given is None else given
            if SWITCH.on:
                return self._traced(lane, sources, stop)
            _take_in(lane, sources)
        if not lane.context.run(self._walk, lane.steps, stop):
            return False
        self._give_out(lane)
        return True

    def _traced(self, lane: Lane, sources: Sequence[Array | None], stop: StopFlag) -> bool:
        """Runs as `_advance` does, with spans; a run that is continued is not reported again."""
        with span(Phase.INPUTS_AND_OUTPUTS, "copy inputs", Layer.CPU):
            _take_in(lane, sources)
        with span(Phase.COMPUTATION, "run the operations", Layer.CPU):
            if not lane.context.run(self._walk, lane.steps, stop):
                return False
        with span(Phase.RESULTS, "copy outputs", Layer.CPU):
            self._give_out(lane)
        return True

    def _give_out(self, lane: Lane) -> None:
        for place, target in enumerate(self._targets):
            target[...] = lane.outputs[place]

    def _walk(self, steps: Sequence[Step], stop: StopFlag) -> bool:
        index = self._index
        for step in steps[index:] if index else steps:
            if stop.raised:
                self._index = index
                return False
            step()
            index += 1
        return True

    def rewind(self) -> None:
        """Forgets what has run and gives the lane back."""
        lane, self._lane, self._index = self._lane, None, 0
        if lane is not None:
            self._program.give_back(lane)


def _take_in(lane: Lane, sources: Sequence[Array | None]) -> None:
    # As `copyto` of all pairs does it: a third of the cost where the arrays are small.
    for place, inner in enumerate(lane.inputs):
        source = sources[place]
        if source is not None and inner is not None:
            inner[...] = source


class FlexibleCall(_Resumable):
    """An interpreter bound to memory: resumable, and used by one thread at a time."""

    __slots__ = ("_context", "_interpreter", "_run", "_sources", "_targets")

    def __init__(
        self,
        interpreter: Interpreter,
        sources: Sequence[Array | None],
        targets: Sequence[Target],
    ) -> None:
        self._interpreter = interpreter
        self._sources = tuple(sources)
        self._targets = tuple(targets)
        self._context: Context = silent_context(MAX_EXECUTION_BYTES)
        self._run: Run | None = None

    def _advance(self, stop: StopFlag, given: Given) -> bool:
        if self._run is None:
            self._run = self._interpreter.run([_dense(each) for each in self._sources], stop)
        with span(Phase.COMPUTATION, "interpret the operations", Layer.CPU):
            results = self._context.run(_results, self._run, stop)
        if results is None:
            return False
        fault = _shape_fault(self._targets, [result.shape for result in results])
        if fault:
            raise ModelError(fault)
        deliver(self._targets, results)
        return True

    def rewind(self) -> None:
        """Forgets what has run."""
        run, self._run = self._run, None
        if run is not None:
            run.close()


def _dense(source: Array | None) -> Array | None:
    """Returns an array that the interpreter can read; an image with padded rows is copied."""
    if source is None or source.flags.c_contiguous:
        return source
    count_copied(source.nbytes)
    return np.ascontiguousarray(source)


def _results(run: Run, stop: StopFlag) -> list[Array] | None:
    """Returns the results of a run; None where it is stopped."""
    while not stop.raised:
        try:
            next(run)
        except StopIteration as end:
            results: list[Array] = end.value
            return results
    return None
