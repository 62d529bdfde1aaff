"""What a driver author writes: an engine, its plans and their bound calls; all synchronous."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from nnasync._core.words import counted
from nnasync._core.workers import Given, StopFlag
from nnasync.device import Lowering
from nnasync.errors import GeneralFailure, OutputInsufficientSize
from nnasync.hal import (
    Array,
    Capabilities,
    DeviceType,
    ExecutionPreference,
    Extension,
    Model,
    OutputShape,
    Shape,
    Struct,
)


class OutputBuffer:
    """Memory for an output whose shape is not known before the run.

    `memory` is one-dimensional and of bytes. `dimensions` says what is known: 0 is an unknown
    dimension, an empty shape an unknown rank. `shape` is what the last run found.
    """

    __slots__ = ("_last", "dimensions", "dtype", "memory", "shape")

    def __init__(self, memory: Array, dtype: np.dtype[Any], dimensions: Shape) -> None:
        self.memory = memory
        self.dtype = dtype
        self.dimensions = dimensions
        self.shape: Shape = dimensions
        self._last: Array | None = None

    def array(self, shape: Shape) -> Array | None:
        """The beginning of the memory as an array, or None where the memory is too small."""
        last = self._last
        if last is not None and shape == self.shape:
            return last
        self.shape, self._last = shape, None
        nbytes = math.prod(shape) * self.dtype.itemsize
        if nbytes > self.memory.size:
            return None
        self._last = self.memory[:nbytes].view(self.dtype).reshape(shape)
        return self._last


Target = Array | OutputBuffer
"""Where an output goes: an array, or memory for one whose shape is not known yet."""


def fit(outputs: Sequence[Target], shapes: Sequence[Shape]) -> list[Array]:
    """The arrays for outputs of these shapes; raises OutputInsufficientSize where one is too small.

    An output that came as an array has that shape already. Raises GeneralFailure where there are
    more or fewer shapes than outputs.
    """
    if len(shapes) != len(outputs):
        raise GeneralFailure(
            f"{len(shapes)} results were given for {counted(len(outputs), 'output')}"
        )
    arrays: list[Array] = []
    for output, shape in zip(outputs, shapes, strict=True):
        array = output.array(shape) if isinstance(output, OutputBuffer) else output
        if array is None:
            raise _too_small(outputs, shapes)
        arrays.append(array)
    return arrays


def _too_small(outputs: Sequence[Target], shapes: Sequence[Shape]) -> OutputInsufficientSize:
    """Returns the error that says of each output whether its memory suffices."""
    found = tuple(
        OutputShape(shape, not isinstance(output, OutputBuffer) or output.array(shape) is not None)
        for output, shape in zip(outputs, shapes, strict=True)
    )
    index = next(i for i, each in enumerate(found) if not each.is_sufficient)
    return OutputInsufficientSize(
        f"the buffer of output {index} is too small for {list(shapes[index])}", found
    )


def deliver(outputs: Sequence[Target], results: Sequence[Array]) -> None:
    """Copy results to where the outputs go; raises OutputInsufficientSize, GeneralFailure."""
    targets = fit(outputs, [result.shape for result in results])
    for target, result in zip(targets, results, strict=True):
        np.copyto(target, result)


class LateFiles(Protocol):
    """The cache files of a plan, after it was compiled or loaded."""

    def update(self, files: CacheFiles) -> None:
        """Replace all of them, as `serialize` gives them; returns at once, from any thread.

        They are written on a thread; of several updates the last counts. What cannot be written,
        or comes after the runtime was closed, is dropped, and the older files stay.
        """


class BoundCall(Protocol):
    """A plan bound to arrays; used by one thread at a time. Implementations inherit it."""

    __slots__ = ()

    reads_given: bool = False
    """Whether `run` takes `given`; else the framework copies such arrays to the inputs."""

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Run to the end: True, and ready for the next run.

        Where the engine can, it looks at `stop.raised` between operations and returns False when it
        is not 0; the next `run` goes on with the next operation. One that can only be interrupted
        from outside uses `stop.arm(interrupt)` and `stop.disarm()`, and returns False if it was.

        `given` are arrays to read in place of all inputs, of the same dtypes and shapes with any
        strides; such a run is a whole one, which nobody stops.
        """

    def rewind(self) -> None:
        """Forget a stopped or failed run and give its scratch back; harmless if there is none."""
        return


class Plan(Protocol):
    """A compiled model; implementations inherit it. Several of its calls may run at once."""

    __slots__ = ()

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        """A call that reads and writes these C-contiguous arrays; None is an omitted input.

        An output whose shape the model and the request leave open is an `OutputBuffer`: the run
        sets its `shape`, and raises OutputInsufficientSize if it is too small (`deliver` does).
        """

    def reads_in_place(self, array: Array) -> bool:
        """Returns whether `bind` takes this input as it is; else it is copied before each run.

        Asked about inputs whose memory is read-only, and about images with padded rows: only the
        rows are apart, and each has its padding behind it, the last too.
        """
        return array.flags.c_contiguous

    def trim(self) -> None:
        """Give idle scratch memory back."""
        return

    def kept_in(self, files: LateFiles) -> None:
        """Hear of the files that the plan of an engine that caches late is in, or came from.

        It may be called again, with other files, in place of those before.
        """
        return


class EngineBase(Protocol):
    """The members of `Engine` that have defaults; engines inherit it."""

    extensions: tuple[Extension, ...] = ()
    """Vendor extensions that are supported in full."""
    concurrency: int = 0
    """How many executions of one plan may run at once; 0 means any number."""
    tries_ahead: bool = False
    """Whether plans may be run on arbitrary inputs before their first execution, to measure them.

    Such a run must be harmless, and end soon after an abort.
    """
    caches_late: bool = False
    """Whether plans may replace their cache files when more of them is compiled."""
    loads_in_ms: float = 0.0
    """About how long the import of its packages and the compiling of a small model take.

    A model that was never compiled before first runs on the engine that is ready soonest.
    """

    def why_not(self, model: Model) -> Sequence[str | None] | None:
        """Returns for each operation of the main subgraph a short reason why it is not supported.

        None means that it is supported, or that no reason is known. Reports and errors show it as
        "MUL: the reason".
        """
        return None

    def get_ready(self) -> None:
        """Import slow dependencies; called on its own thread while files are read."""
        return

    def loading_ns(self) -> int:
        """Returns how long that import took in this process."""
        return 0


@runtime_checkable
class Engine(EngineBase, Protocol):
    """What a driver author writes."""

    @property
    def name(self) -> str:
        """Name of the device."""

    @property
    def version(self) -> str:
        """Version of the engine, not empty."""

    @property
    def type(self) -> DeviceType:
        """Kind of hardware."""

    @property
    def capabilities(self) -> Capabilities:
        """Performance figures, as ratios to the reference."""

    def supported_operations(self, model: Model) -> list[bool]:
        """Returns for each operation of the main subgraph whether this engine can run it."""

    def compile(self, model: Model, preference: ExecutionPreference) -> Plan:
        """Compile a whole model; raises the typed error that says why not."""


@runtime_checkable
class LoweringEngine(Engine, Protocol):
    """An engine that knows several ways to run a model."""

    cores: int
    """How many cores one execution may use; the device sets it to what its workers have."""

    def lowerings(self, model: Model, preference: ExecutionPreference) -> Sequence[Lowering]:
        """The ways to run a model that it supports, the most promising one first; at least one."""

    def compile(
        self, model: Model, preference: ExecutionPreference, lowering: Lowering | None = None
    ) -> Plan:
        """Compile in one of these ways; None is the first that does not reduce precision."""


class CacheFiles(Struct, frozen=True):
    """Contents of the cache files of one plan, as an engine gives and takes them.

    model: everything that determines what is computed; it is verified before an engine gets it
    back. data: values only, such as packed weights; it may come back damaged.
    """

    model: tuple[bytes | memoryview, ...] = ()
    data: tuple[bytes | memoryview, ...] = ()


@runtime_checkable
class CachingEngine(Engine, Protocol):
    """An engine that can keep its plans in files."""

    @property
    def cache_files(self) -> tuple[int, int]:
        """Numbers of model cache and data cache files of one plan; the same for all plans."""

    def serialize(self, plan: Plan) -> CacheFiles:
        """The files of a plan of this engine.

        Raises BadState where this plan cannot be kept, GeneralFailure where it ought to but fails.
        """

    def deserialize(self, files: CacheFiles, lowering: Lowering | None) -> Plan:
        """The plan of which `serialize` gave these files, with the threads of its lowering.

        The model cache is what was written. The data cache may be damaged: then results have wrong
        values at worst. Raises typed errors only. Memory of the files stays valid, and may be used
        in place; it is not to be written.
        """
