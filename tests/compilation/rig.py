"""Engines whose speed, agreement and faults a test sets, on a clock that only they move.

Their results are those of the reference, so they take any model.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.compilation import competition, contest, kept, trials
from nnasync._core.compilation.verdicts import Question
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.null import NullEngine
from nnasync.engine import BoundCall, EngineBase, Given, Lowering, Plan, StopFlag
from nnasync.machine.here import Here
from tests.rigs import GUARD_S

REFERENCE = "nnasync-reference"
_CAPABILITIES = NullEngine().capabilities


class ManualClock:
    """Time that passes when an engine says so; the reference takes no time."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.cpu_ns = 0
        self.chills = 0
        self.is_cold = False
        self.is_quiet = True
        """Whether the machine seems to have nothing else to do."""

    def evict(self) -> None:
        """Let the next run find cold caches."""
        self.chills += 1
        self.is_cold = True

    def run(self, wall_ns: int, cpu_ns: int) -> None:
        """Let a run take time."""
        self.now_ns += wall_ns
        self.cpu_ns += cpu_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of all trials of this test."""
    made = ManualClock()
    monkeypatch.setattr(trials, "now_ns", lambda: made.now_ns)
    monkeypatch.setattr(trials, "process_time_ns", lambda: made.cpu_ns)
    monkeypatch.setattr(contest, "CacheEvictor", lambda: made.evict)
    # A runtime tells what its folder of state knows of the machine: here, always the same.
    monkeypatch.setattr(contest, "HERE", Here())
    for module in (competition, kept):
        monkeypatch.setattr(module, "is_quiet", lambda: made.is_quiet)
    return made


class Way(hal.Struct, frozen=True):
    """A lowering of a fake engine: what a run takes, how wrong it is, and what it raises.

    `cold_us` is what one takes, of time and processor time, that finds cold caches; by default it
    is like the others.
    """

    lowering: Lowering
    us: float = 100
    cpu_us: float | None = None
    cold_us: float | None = None
    error: float = 0
    fault: Exception | None = None
    compile_fault: Exception | None = None
    per_operation: bool = False


def way(name: str = "f32", threads: int = 1, *, us: float = 100, **options: Any) -> Way:
    """A lowering that takes this long for a run."""
    flags = {key: options.pop(key, False) for key in ("is_exact", "reduces_precision")}
    return Way(Lowering(name, threads, **flags), us, **options)


class FakeEngine(EngineBase):
    """A LoweringEngine."""

    type = hal.DeviceType.CPU
    extensions: tuple[hal.Extension, ...] = ()
    concurrency = 0

    def __init__(
        self,
        name: str,
        clock: ManualClock,
        *ways: Way,
        takes: Callable[[int], bool] = lambda type: True,
    ) -> None:
        self.name = name
        self.version = "1"
        self.capabilities = _CAPABILITIES
        self.cores = 1
        self.clock = clock
        self.ways = list(ways or (way(),))
        self.takes = takes
        self.compiled: list[str] = []
        self.plans: weakref.WeakSet[_Plan] = weakref.WeakSet()
        self.before_compile: Callable[[Lowering], object] = lambda lowering: None
        self.before_run: Callable[[StopFlag], object] = lambda stop: None

    def supported_operations(self, model: hal.Model) -> list[bool]:
        return [self.takes(operation.type) for operation in model.main.operations]

    def lowerings(
        self, model: hal.Model, preference: hal.ExecutionPreference
    ) -> Sequence[Lowering]:
        return [each.lowering for each in self.ways]

    def compile(
        self,
        model: hal.Model,
        preference: hal.ExecutionPreference,
        lowering: Lowering | None = None,
    ) -> Any:
        chosen = next(each for each in self.ways if lowering in (None, each.lowering))
        self.compiled.append(f"{chosen.lowering.name}*{chosen.lowering.threads}")
        self.before_compile(chosen.lowering)
        if chosen.compile_fault is not None:
            raise chosen.compile_fault
        plan = _Plan(self, chosen, model)
        self.plans.add(plan)
        return plan


class _Plan(Plan):
    def __init__(self, engine: FakeEngine, way: Way, model: hal.Model) -> None:
        self.engine = engine
        self.way = way
        self.count = len(model.main.operations)
        self.inner = ReferenceEngine().compile(model, hal.ExecutionPreference.LOW_POWER)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        return _Call(self, self.inner.bind(inputs, outputs), outputs)

    def trim(self) -> None:
        self.inner.trim()


class _Call(BoundCall):
    def __init__(self, plan: _Plan, inner: Any, outputs: Sequence[Any]) -> None:
        self.plan = plan
        self.inner = inner
        self.outputs = outputs

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        way, engine = self.plan.way, self.plan.engine
        engine.before_run(stop)
        if way.fault is not None:
            raise way.fault
        times = self.plan.count if way.per_operation else 1
        us, cpu_us = way.us, way.us if way.cpu_us is None else way.cpu_us
        if engine.clock.is_cold and way.cold_us is not None:
            us = cpu_us = way.cold_us
        engine.clock.is_cold = False
        engine.clock.run(int(us * 1000 * times), int(cpu_us * 1000 * times))
        # Whatever the flag says: such engines cannot stop inside a run.
        finished = bool(self.inner.run(StopFlag()))
        for output in self.outputs:
            if way.error:
                output += np.asarray(way.error).astype(output.dtype)
        return finished

    def rewind(self) -> None:
        self.inner.rewind()


@asynccontextmanager
async def competing(
    *devices: Any, budget_ms: float = 50, cores: int = 2, background_ms: float = 1000
) -> AsyncIterator[nn.Runtime]:
    """A runtime whose devices compete."""
    options = nn.Options(
        cores=cores, competition_budget_ms=budget_ms, background_contest_ms=background_ms
    )
    with anyio.fail_after(GUARD_S):
        async with nn.open_runtime(devices=devices, options=options) as runtime:
            yield runtime


def chain(length: int = 12, name: str = "chain") -> nn.Model:
    """That many additions, one after the other."""
    builder = nn.ModelBuilder(name)
    x = builder.input("x", (1, 64))
    value = x
    for _ in range(length):
        value = builder.add(value, x)
    builder.output("y", value)
    return builder.build()


def question(model: str = "m", **changes: Any) -> Question:
    """What verdicts are kept for."""
    asked = Question(
        model=model,
        devices=(("a", "1"), ("b", "1")),
        judge="r 1",
        preference=1,
        precision=None,
        cores=2,
    )
    return msgspec.structs.replace(asked, **changes)


def verdict_of(report: Any, device: str, lowering: str = "") -> str:
    """The verdict on the first candidate of a device, or of one of its lowerings."""
    lines = [each for each in report.candidates if each.device == device]
    return str(next(each for each in lines if each.lowering.startswith(lowering)).verdict)
