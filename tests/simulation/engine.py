"""An engine in a simulated world: it computes right, in steps, until the seed has it fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnasync._core.drivers.null import NullEngine
from nnasync.engine import BoundCall, EngineBase, Given, OutputBuffer, Plan, StopFlag, Target
from nnasync.errors import DeviceUnavailable, GeneralFailure, ResourceExhaustedTransient
from nnasync.hal import Array, DeviceType, ExecutionPreference, Extension, Model
from tests.simulation.world import World

_ERRORS: tuple[Callable[[], Exception], ...] = (
    lambda: GeneralFailure("simulated: the device failed"),
    lambda: ResourceExhaustedTransient("simulated: no memory on the device"),
    lambda: DeviceUnavailable("simulated: the device has gone"),
    lambda: ValueError("simulated: the driver is broken"),
)


class SimulatedEngine(EngineBase):
    """Computes with `compute`; each fault of a run has its probability.

    `slow` is a step of up to 30 ms, `deaf` a run that does not look at its stop flag for up to
    300 ms, `broken` an error in a run, `idle` a run that stops without having been asked to.
    """

    type = DeviceType.ACCELERATOR
    version = "1"
    extensions: tuple[Extension, ...] = ()
    concurrency = 0
    capabilities = NullEngine().capabilities

    def __init__(self, world: World, compute: Callable[[Sequence[Array]], list[Array]]) -> None:
        self.name = "simulated"
        self.world = world
        self.compute = compute
        self.slow = self.deaf = self.broken = self.idle = self.unbound = 0.0
        self.running = self.bound = 0

    def supported_operations(self, model: Model) -> list[bool]:
        return [True] * len(model.main.operations)

    def compile(self, model: Model, preference: ExecutionPreference) -> Plan:
        self.world.work(self.world.random.randrange(1_000_000))
        return _Plan(self)


class _Plan(Plan):
    def __init__(self, engine: SimulatedEngine) -> None:
        self.engine = engine

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> _Call:
        if self.engine.world.chance(self.engine.unbound):
            raise ResourceExhaustedTransient("simulated: no memory for a call")
        return _Call(self.engine, inputs, outputs)

    def trim(self) -> None:
        return


class _Call(BoundCall):
    def __init__(
        self, engine: SimulatedEngine, inputs: Sequence[Any], outputs: Sequence[Target]
    ) -> None:
        self.engine, self.world = engine, engine.world
        self.inputs, self.outputs = inputs, outputs
        self.left = 0
        self.is_running = False

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        assert not self.is_running, "one call is run by two threads at once"
        self.is_running = True
        self.engine.running += 1
        try:
            return self._run(stop, self.inputs if given is None else given)
        finally:
            self.engine.running -= 1
            self.is_running = False

    def rewind(self) -> None:
        assert not self.is_running, "a call is rewound while it runs"
        self.left = 0

    def _run(self, stop: StopFlag, inputs: Sequence[Any]) -> bool:
        engine, world = self.engine, self.world
        self.left = self.left or world.random.randint(1, 3)
        if world.chance(engine.deaf):
            world.work(world.random.randrange(300_000_000))
        while self.left:
            if stop.raised:
                return False
            world.work(world.random.randrange(30_000_000 if world.chance(engine.slow) else 200_000))
            if world.chance(engine.broken):
                self.left = 0
                self._spoil()
                raise world.random.choice(_ERRORS)()
            if world.chance(engine.idle):
                return False
            self.left -= 1
        for output, value in zip(self.outputs, engine.compute(inputs), strict=True):
            assert not isinstance(output, OutputBuffer)
            output[...] = value
        return True

    def _spoil(self) -> None:
        for output in self.outputs:
            assert not isinstance(output, OutputBuffer)
            output[...] = np.float32(77)
