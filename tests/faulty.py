"""An engine that computes right, until a test has it fail; then it leaves garbage behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.null import NullEngine
from nnasync.engine import BoundCall, EngineBase, Given, OutputBuffer, Plan, StopFlag, Target
from nnasync.hal import Array, DeviceType, ExecutionPreference, Extension, Model

__all__ = ["Faulty"]


class Faulty(EngineBase):
    """The reference under another name, with faults by the number of the run, from 1.

    `fault` may return an error to raise, or True for a run that stops without having been asked.
    """

    type = DeviceType.ACCELERATOR
    version = "1"
    extensions: tuple[Extension, ...] = ()
    concurrency = 0
    capabilities = NullEngine().capabilities

    def __init__(
        self, name: str = "faulty", *, takes: Callable[[int], bool] = lambda type: True
    ) -> None:
        self.name = name
        self.takes = takes
        self.fault: Callable[[int], Exception | bool | None] = lambda number: None
        self.bind_fault: BaseException | None = None
        self.compile_fault: Callable[[Model], Exception | None] = lambda model: None
        self.runs = self.binds = self.trims = 0
        self.compiled: list[str] = []

    def always(self, error: Exception) -> None:
        """Have each run fail."""
        self.fault = lambda number: error.with_traceback(None)

    def heal(self) -> None:
        """Have no run fail."""
        self.fault = lambda number: None

    def supported_operations(self, model: Model) -> list[bool]:
        return [self.takes(operation.type) for operation in model.main.operations]

    def compile(self, model: Model, preference: ExecutionPreference) -> Plan:
        self.compiled.append(model.name)
        error = self.compile_fault(model)
        if error is not None:
            raise error
        return _Plan(self, ReferenceEngine().compile(model, preference))


class _Plan(Plan):
    def __init__(self, engine: Faulty, inner: Plan) -> None:
        self.engine = engine
        self.inner = inner

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> _Call:
        self.engine.binds += 1
        if self.engine.bind_fault is not None:
            raise self.engine.bind_fault.with_traceback(None)
        return _Call(self.engine, self.inner.bind(inputs, outputs), outputs)

    def trim(self) -> None:
        self.engine.trims += 1
        self.inner.trim()


class _Call(BoundCall):
    def __init__(self, engine: Faulty, inner: Any, outputs: Sequence[Target]) -> None:
        self.engine = engine
        self.inner = inner
        self.outputs = outputs
        self.midway = False

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        if not self.midway:
            self.engine.runs += 1
            fault = self.engine.fault(self.engine.runs)
            if fault:
                for output in self.outputs:
                    memory = output.memory if isinstance(output, OutputBuffer) else output
                    memory[...] = 77
                if isinstance(fault, Exception):
                    raise fault
                return False
        self.midway = not self.inner.run(stop)
        return not self.midway

    def rewind(self) -> None:
        self.midway = False
        self.inner.rewind()
