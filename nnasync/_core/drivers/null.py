"""The null engine: accepts everything, computes nothing, and misbehaves on request.

It stands in for a device in tests and experiments. What it supports, how long it takes, in how many
steps, what it writes, and where it fails or hangs are attributes and methods, to be changed at any
time. A test steers it without clocks: a `Gate` holds each step until the test lets it through, and
`when` is a fence for "the engine has come so far".
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import numpy as np

from nnasync import errors, hal
from nnasync.engine import (
    BoundCall,
    CacheFiles,
    EngineBase,
    Given,
    Lowering,
    OutputBuffer,
    Plan,
    StopFlag,
    Target,
    deliver,
)
from nnasync.extensions import operation_label
from nnasync.fences import Fence

Latency = int | Sequence[int] | Callable[[int], int]
"""Nanoseconds of an execution: the same for all, in turn, or a function of its number."""
Compute = Callable[[Sequence[hal.Array | None]], Sequence[Any]]
"""What an execution writes to its outputs, from its inputs."""
Supports = Callable[[hal.Operation, Sequence[hal.Operand], Sequence[hal.Operand]], bool]
"""Whether an operation with these inputs and outputs is supported."""
Where = Literal["compile", "serialize", "deserialize", "bind", "run"]

_FREE = hal.PerformanceInfo(exec_time=1.0, power_usage=1.0)
_CAPABILITIES = hal.Capabilities(
    relaxed_float32_to_float16_performance_scalar=_FREE,
    relaxed_float32_to_float16_performance_tensor=_FREE,
    operand_performance=tuple(
        hal.OperandPerformance(type, _FREE)
        for type in hal.OperandType
        if type not in (hal.OperandType.SUBGRAPH, hal.OperandType.OEM)
    ),
    if_performance=_FREE,
    while_performance=_FREE,
)


class Counters(hal.Struct, frozen=True):
    """Calls of a null engine so far, and what happens now.

    `run` counts executions begun, `resume` continuations after a stop; `waiting` are at the gate
    and `hanging` in a hang at this moment.
    """

    supported_operations: int = 0
    compile: int = 0
    serialize: int = 0
    deserialize: int = 0
    bind: int = 0
    trim: int = 0
    rewind: int = 0
    run: int = 0
    resume: int = 0
    step: int = 0
    finished: int = 0
    stopped: int = 0
    failed: int = 0
    waiting: int = 0
    hanging: int = 0


class Gate:
    """Lets steps of executions through, as many as it is opened for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._permits = 0
        self._wide_open = False

    def open(self, steps: int = 1) -> None:
        """Let that many steps through, of any execution, now or when they come."""
        with self._changed:
            self._permits += steps
            self._changed.notify_all()

    def open_wide(self) -> None:
        """Let everything through from now on."""
        with self._changed:
            self._wide_open = True
            self._changed.notify_all()

    def enter(self) -> None:
        """Block the calling thread until it is let through."""
        with self._changed:
            self._changed.wait_for(lambda: self._wide_open or self._permits > 0)
            if not self._wide_open:
                self._permits -= 1


class _InjectedFault(hal.Struct, frozen=True):
    where: Where
    error: Exception | None
    at: int | None
    step: int


class NullEngine(EngineBase):
    """A programmable engine without arithmetic; its attributes may be changed at any time.

    `operation_types` (None: all) and `supports` decide together what is supported. `latency_ns` is
    spread evenly over `steps`, which is how often an execution looks at its stop flag. `compute`
    gives the outputs; without it they are zeros. At most `max_models` plans may exist at a time.
    `cache_files` are numbers of model cache and data cache files, which have one byte each.
    """

    def __init__(
        self,
        name: str = "null",
        *,
        latency_ns: Latency = 0,
        steps: int = 1,
        compute: Compute | None = None,
        gate: Gate | None = None,
        operation_types: Collection[int] | None = None,
        supports: Supports | None = None,
        max_models: int | None = None,
        concurrency: int = 0,
        capabilities: hal.Capabilities = _CAPABILITIES,
        cache_files: tuple[int, int] = (0, 0),
    ) -> None:
        self.name = name
        self.version = "1"
        self.type = hal.DeviceType.OTHER
        self.capabilities = capabilities
        self.extensions: tuple[hal.Extension, ...] = ()
        self.concurrency = concurrency
        self.latency_ns = latency_ns
        self.steps = steps
        self.compute = compute
        self.gate = gate
        self.operation_types = operation_types
        self.supports = supports
        self.max_models = max_models
        self.cache_files = cache_files
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Counters.__struct_fields__, 0)
        self._watchers: list[tuple[Callable[[Counters], bool], Fence]] = []
        self._faults: list[_InjectedFault] = []
        self._released = threading.Event()
        self._plans: weakref.WeakSet[_Plan] = weakref.WeakSet()

    # -- what a test does

    @property
    def counters(self) -> Counters:
        """Returns the counts so far."""
        with self._lock:
            return Counters(**self._counts)

    def when(self, reached: Callable[[Counters], bool]) -> Fence:
        """A fence that is signaled once `reached(counters)` is true."""
        fence = Fence()
        with self._lock:
            self._watchers.append((reached, fence))
        self._tell()
        return fence

    def fail(self, where: Where, error: Exception, *, at: int | None = None, step: int = 0) -> None:
        """Raise `error` in a call: number `at` of its kind, from 0; None is each of them.

        A failing run raises before its step `step`.
        """
        self._faults.append(_InjectedFault(where, error, at, step))

    def hang(self, *, at: int | None = None, step: int = 0) -> None:
        """Let execution `at` (None: each) block before its step `step`, deaf to its stop flag."""
        self._faults.append(_InjectedFault("run", None, at, step))

    def release(self) -> None:
        """End the hangs of this moment; the executions go on."""
        with self._lock:
            released, self._released = self._released, threading.Event()
        released.set()

    def heal(self) -> None:
        """Fail and hang no more from now on; what hangs already is not released."""
        self._faults.clear()

    # -- the contract of an engine

    def supported_operations(self, model: hal.Model) -> list[bool]:
        """Returns for each operation whether both `operation_types` and `supports` accept it."""
        self._count("supported_operations")
        return [self._supported(model.main, each) for each in model.main.operations]

    def compile(self, model: hal.Model, preference: hal.ExecutionPreference) -> _Plan:
        """A plan for any model whose operations are all supported.

        Raises InvalidArgument if one is not, ResourceExhaustedPersistent beyond `max_models`.
        """
        self._trouble("compile", self._count("compile"))
        for index, operation in enumerate(model.main.operations):
            if not self._supported(model.main, operation):
                name = operation_label(model.extension_name_to_prefix, operation.type)
                raise errors.InvalidArgument(
                    f"operation {index}, {name}, is not supported by {self.name}"
                )
        return self._new_plan()

    def serialize(self, plan: Plan) -> CacheFiles:
        """Files of a plan, each with the number of its place; BadState for a stranger's plan."""
        if not isinstance(plan, _Plan):
            raise errors.BadState(f"this plan is not one of {self.name}")
        self._trouble("serialize", self._count("serialize"))
        model, data = self.cache_files
        return CacheFiles(tuple(map(_byte, range(model))), tuple(map(_byte, range(data))))

    def deserialize(self, files: CacheFiles, lowering: Lowering | None) -> _Plan:
        """A plan; raises GeneralFailure for other files than `serialize` gives."""
        self._trouble("deserialize", self._count("deserialize"))
        model, data = self.cache_files
        if list(map(bytes, files.model)) != list(map(_byte, range(model))):
            raise errors.GeneralFailure(f"{self.name} did not write these model cache files")
        if len(files.data) != data:
            raise errors.GeneralFailure(f"{self.name} did not write these data cache files")
        return self._new_plan()

    def _new_plan(self) -> _Plan:
        with self._lock:
            if self.max_models is not None and len(self._plans) >= self.max_models:
                raise errors.ResourceExhaustedPersistent(
                    f"{self.name} holds {self.max_models} prepared models and takes no more"
                )
            plan = _Plan(self)
            self._plans.add(plan)
        return plan

    def _supported(self, graph: hal.Subgraph, operation: hal.Operation) -> bool:
        if self.operation_types is not None and operation.type not in self.operation_types:
            return False
        if self.supports is None:
            return True
        inputs = [graph.operands[index] for index in operation.inputs]
        outputs = [graph.operands[index] for index in operation.outputs]
        return self.supports(operation, inputs, outputs)

    # -- what plans and calls report

    def _count(self, what: str, by: int = 1) -> int:
        """Change a counter and return what it was before."""
        with self._lock:
            before = self._counts[what]
            self._counts[what] = before + by
        if self._watchers:
            self._tell()
        return before

    def run_through(self, fills: Sequence[Callable[[int], object]]) -> bool:
        """Write zeros and count a run that nothing can stop, if there is nothing else to it."""
        if not (
            self.compute is None
            and self.gate is None
            and self.latency_ns == 0
            and not (self._faults or self._watchers)
        ):
            return False
        counts = self._counts
        with self._lock:
            counts["run"] += 1
            counts["step"] += max(1, self.steps)
            counts["finished"] += 1
        for fill in fills:
            fill(0)
        return True

    def _tell(self) -> None:
        with self._lock:
            counters = Counters(**self._counts)
            reached = [fence for test, fence in self._watchers if test(counters)]
            self._watchers = [each for each in self._watchers if each[1] not in reached]
        for fence in reached:
            fence.signal()

    def _trouble(self, where: Where, number: int, step: int = 0) -> None:
        """Fail or hang, if call `number` is to do so before `step`."""
        for fault in tuple(self._faults):
            if fault.where != where or fault.step != step or fault.at not in (None, number):
                continue
            if fault.error is not None:
                raise fault.error.with_traceback(None)
            with self._lock:
                released = self._released
            self._count("hanging")
            released.wait()
            self._count("hanging", -1)

    def _latency_of(self, number: int) -> int:
        latency = self.latency_ns
        if callable(latency):
            return latency(number)
        if isinstance(latency, int):
            return latency
        return latency[number % len(latency)]


class _Plan(Plan):
    """A plan of a null engine."""

    def __init__(self, engine: NullEngine) -> None:
        self._engine = engine

    def bind(self, inputs: Sequence[hal.Array | None], outputs: Sequence[Target]) -> _BoundCall:
        self._engine._trouble("bind", self._engine._count("bind"))
        return _BoundCall(self, self._engine, tuple(inputs), tuple(outputs))

    def trim(self) -> None:
        self._engine._count("trim")


class _BoundCall(BoundCall):
    """An execution of a null engine; its plan lives as long."""

    def __init__(
        self,
        plan: _Plan,
        engine: NullEngine,
        inputs: tuple[hal.Array | None, ...],
        outputs: tuple[Target, ...],
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._inputs = inputs
        self._outputs = outputs
        # To write zeros; where a shape is open, a run has more to do.
        self._fills = [each.fill for each in outputs if not isinstance(each, OutputBuffer)]
        self._is_open = len(self._fills) < len(outputs)
        self._number = -1
        self._step = 0

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        engine = self._engine
        may_stop = stop.raised or self._number >= 0
        if not (may_stop or self._is_open) and engine.run_through(self._fills):
            return True
        if self._number < 0:
            self._number = engine._count("run")
        else:
            engine._count("resume")
        try:
            finished = self._run_steps(stop)
        except BaseException:
            engine._count("failed")
            raise
        if finished:
            self._forget()
        engine._count("finished" if finished else "stopped")
        return finished

    def rewind(self) -> None:
        self._forget()
        self._engine._count("rewind")

    def _forget(self) -> None:
        self._number = -1
        self._step = 0

    def _run_steps(self, stop: StopFlag) -> bool:
        engine, steps = self._engine, max(1, self._engine.steps)
        while self._step < steps:
            if stop.raised:
                return False
            engine._trouble("run", self._number, self._step)
            self._run_step(steps)
            self._step += 1
            engine._count("step")
        self._write()
        return True

    def _run_step(self, steps: int) -> None:
        engine = self._engine
        if engine.gate is not None:
            engine._count("waiting")
            engine.gate.enter()
            engine._count("waiting", -1)
        latency_ns = engine._latency_of(self._number)
        if latency_ns > 0:
            time.sleep(latency_ns / steps / 1e9)

    def _write(self) -> None:
        compute = self._engine.compute
        if compute is not None:
            deliver(
                self._outputs,
                [
                    _shaped(value, output)
                    for value, output in zip(compute(self._inputs), self._outputs, strict=True)
                ],
            )
            return
        for output in self._outputs:
            if isinstance(output, OutputBuffer):
                deliver([output], [np.zeros([n or 1 for n in output.dimensions], output.dtype)])
            else:
                output[...] = 0


def _byte(number: int) -> bytes:
    return bytes([number])


def _shaped(value: Any, output: Target) -> hal.Array:
    array = np.asarray(value, output.dtype)
    return array if isinstance(output, OutputBuffer) else np.broadcast_to(array, output.shape)
