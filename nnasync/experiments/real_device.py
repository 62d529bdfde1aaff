"""A device that takes exactly as long as each request is to cost, and computes nothing.

Its input is what the execution costs in nanoseconds, a row for each request of it. Time passes
asleep until shortly before the end, and then awake, since the system wakes sleepers late; with
`spins` it passes awake throughout, which loads a core as arithmetic would. Whoever is awake
computes checksums, for which the interpreter lock is let go. Between its steps an execution looks
at its stop flag. One that stops has done as much as time has passed, and goes on from there when it
is run again: what its stop was late by is part of its cost, not more of it.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from nnasync import hal
from nnasync._core.clock import now_ns
from nnasync.engine import (
    BoundCall,
    EngineBase,
    Given,
    OutputBuffer,
    Plan,
    StopFlag,
    Target,
    deliver,
)
from nnasync.experiments.costs import Batching

Borders = Callable[[int], Sequence[int]]
"""When the steps of an execution of that cost end, in nanoseconds of its run; the last is it."""

_WAKES_WITHIN_NS = 200_000
_LONG, _SHORT = bytes(1 << 16), bytes(1 << 13)
_LONG_NS = 100_000
_FREE = hal.PerformanceInfo(exec_time=1.0, power_usage=1.0)


class CostEngine(EngineBase):
    """The engine of one stream, which spends the costs of its requests."""

    def __init__(
        self, name: str, borders: Borders, *, spins: bool, batching: Batching | None = None
    ) -> None:
        self.name, self.version, self.type = name, "1", hal.DeviceType.OTHER
        self.capabilities = hal.Capabilities(_FREE, _FREE, (), _FREE, _FREE)
        self.borders = borders
        self.spins = spins
        self.joined = batching or Batching()

    def supported_operations(self, model: hal.Model) -> list[bool]:
        """Returns True for every operation."""
        return [True] * len(model.main.operations)

    def compile(self, model: hal.Model, preference: hal.ExecutionPreference) -> Plan:
        """Returns a plan that takes as long as its input says, whatever the model is."""
        return _CostPlan(self)


class _CostPlan(Plan):
    def __init__(self, engine: CostEngine) -> None:
        self._engine = engine

    def bind(self, inputs: Sequence[hal.Array | None], outputs: Sequence[Target]) -> BoundCall:
        return _CostCall(self._engine, inputs[0], outputs)

    def trim(self) -> None:
        return


class _CostCall(BoundCall):
    """An execution: `_ends` are the ends of its steps to come, `_at_ns` is how much was done."""

    def __init__(
        self, engine: CostEngine, told: hal.Array | None, outputs: Sequence[Target]
    ) -> None:
        self._engine = engine
        self._told = told
        self._outputs = outputs
        self._ends: list[int] | None = None
        self._at_ns = 0

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        told = self._told if given is None else given[0]
        engine = self._engine
        costs_ns = [0.0] if told is None else told[:, 0].tolist()
        cost_ns = engine.joined.cost_ns(costs_ns)
        if self._ends is None:
            self._ends, self._at_ns = list(engine.borders(cost_ns)), 0
        began_ns = now_ns() - self._at_ns
        for done, end_ns in enumerate(self._ends):
            if stop.raised:
                self._ends = self._ends[done:]
                self._at_ns = now_ns() - began_ns
                return False
            pass_time(began_ns + end_ns, spins=engine.spins)
        self._ends = None
        for output in self._outputs:
            if isinstance(output, OutputBuffer):
                deliver([output], [np.zeros((len(costs_ns), 1), output.dtype)])
            else:
                output.fill(0)
        return True

    def rewind(self) -> None:
        self._ends = None


def pass_time(until_ns: int, *, spins: bool) -> None:
    """Return at that time: at most some microseconds later on a core that is free."""
    left_ns = until_ns - now_ns()
    if not spins and left_ns > _WAKES_WITHIN_NS:
        time.sleep((left_ns - _WAKES_WITHIN_NS) / 1e9)
        left_ns = until_ns - now_ns()
    while left_ns > 0:
        zlib.crc32(_LONG if left_ns > _LONG_NS else _SHORT)
        left_ns = until_ns - now_ns()


def whole(cost_ns: int) -> list[int]:
    """Returns a single step border: the execution cannot be stopped before its end."""
    return [cost_ns]


def at_shares(shares: Sequence[float]) -> Borders:
    """Returns a function that gives the step borders at these shares of a cost."""
    return lambda cost_ns: [round(share * cost_ns) for share in shares]


def at_multiples(step_ns: int) -> Borders:
    """Returns a function that gives step borders at each multiple of `step_ns`."""

    def borders(cost_ns: int) -> list[int]:
        ends = itertools.takewhile(
            lambda end_ns: end_ns < cost_ns, itertools.count(step_ns, step_ns)
        )
        return [*ends, cost_ns]

    return borders
