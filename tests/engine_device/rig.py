"""An engine as a device on workers of its own, requests over real memory, and what they hold."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np

from nnasync._core.clock import Watchdog, now_ns
from nnasync._core.drivers.null import Counters, Gate, NullEngine
from nnasync._core.engine_device import EngineDevice, EnginePreparedModel
from nnasync._core.engine_device.launched import Launched
from nnasync._core.workers import Task, Workers
from nnasync.device import PreparedModel, PrepareModelConfig
from nnasync.engine import Engine
from nnasync.fences import Fence
from nnasync.hal import Array, DataLocation, Model, Priority, Request, RequestArgument
from nnasync.memory import Pool
from nnasync.tracing import Tracer
from tests.rigs import SHAPE, doubler, set_free

PATIENCE_S = 60
MS = 1_000_000
BYTES = 16
"""Size of one row of the doubler."""


class Row:
    """A request for the doubler: one row in, one row out, in one pool."""

    def __init__(self, *values: float, length: int = BYTES) -> None:
        self.pool = Pool.allocate(128)
        self.x = self.pool.array(np.dtype(np.float32), SHAPE, 0)
        self.y = self.pool.array(np.dtype(np.float32), SHAPE, 64)
        self.x[...] = values or (1, 2, 3, 4)
        self.y[...] = -1
        self.request = Request(
            (RequestArgument(location=DataLocation(0, 0, BYTES)),),
            (RequestArgument(location=DataLocation(0, 64, length)),),
            (self.pool,),
        )

    @property
    def is_right(self) -> bool:
        return bool((self.y == 2 * self.x).all())

    @property
    def is_untouched(self) -> bool:
        return bool((self.y == -1).all())


def doubled(inputs: Any) -> list[Array]:
    """What the null engine computes for the doubler."""
    return [inputs[0] * 2]


class Rig:
    """A device on workers; whatever a test does to its engine ends with it."""

    def __init__(
        self,
        engine: Engine,
        *,
        cores: int = 2,
        inline_budget_ns: int = 10**9,
        queue_limit: int = 1000,
        state_directory: Path | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self.engine = engine
        self.watchdog = watchdog or Watchdog()
        self.workers = Workers(
            cores=cores,
            inline_budget_ns=inline_budget_ns,
            stall_budget_ns=10**9,
            queue_limit=queue_limit,
            watchdog=self.watchdog,
            tracer=Tracer(),
        )
        self.device = EngineDevice(engine, self.workers, state_directory=state_directory)
        self.at_end: list[Callable[[], object]] = []

    async def prepare(
        self, model: Model | None = None, priority: Priority = Priority.MEDIUM
    ) -> EnginePreparedModel:
        prepared = await self.device.prepare_model(
            model or doubler(), PrepareModelConfig(priority=priority)
        )
        assert isinstance(prepared, EnginePreparedModel)
        return prepared

    def close(self) -> None:
        set_free(self.engine)
        for end in self.at_end:
            end()
        self.workers.close()
        assert self.workers.join(PATIENCE_S) == 0
        self.watchdog.close()


def null(*, gated: bool = False, steps: int = 1, concurrency: int = 0) -> NullEngine:
    """A null engine that doubles, step by step behind a gate if `gated`."""
    gate = Gate() if gated else None
    return NullEngine(compute=doubled, gate=gate, steps=steps, concurrency=concurrency)


async def reached(engine: NullEngine, test: Callable[[Counters], bool]) -> None:
    """Wait until the engine has come so far."""
    with anyio.fail_after(PATIENCE_S):
        await engine.when(test)


async def finished(fence: Fence) -> Exception | None:
    """Wait for a fence; its error, if it failed."""
    with anyio.fail_after(PATIENCE_S):
        try:
            await fence
        except Exception:
            return fence.error
    return None


async def released(launched: Launched) -> None:
    """Wait until the device has let go of an execution's memory."""
    if isinstance(launched._task, Task):
        fence = Fence()
        launched._task.when_released(fence.signal)
        await finished(fence)


async def free(rig: Rig) -> None:
    """Wait until the device has let go of everything."""
    with anyio.fail_after(PATIENCE_S):
        while rig.workers.statistics().running or rig.workers.statistics().live:
            await anyio.lowlevel.checkpoint()


async def until_inline(rig: Rig, prepared: PreparedModel, request: Request) -> None:
    """Execute until the duration is known and executions run on the calling thread."""
    for _ in range(1000):
        before = rig.workers.statistics().inline_runs
        await prepared.execute_synchronously(request)
        if rig.workers.statistics().inline_runs > before:
            return
    raise AssertionError("it never ran inline")


def look_cheap(prepared: EnginePreparedModel) -> None:
    """Have an execution taken for the cheapest there is, however slow the machine was so far."""
    estimate = prepared.estimate
    estimate.ns = estimate.best_ns = estimate.floor_ns = estimate.high_ns = 1.0


def busy_until(at_ns: int) -> None:
    """Let the time come."""
    while now_ns() < at_ns:
        pass


def collected() -> None:
    """Have everything gone that nobody refers to."""
    for _ in range(3):
        gc.collect()


def in_threads(count: int, work: Callable[[int], object]) -> list[BaseException]:
    """Run `work(number)` in that many threads at once; what they raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait(PATIENCE_S)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return errors
