"""One seed of a runtime under faults: calls, launches, bursts, and what must hold after each step.

The seed draws the settings of the runtime, the faults of the world and of the engine, and some 20
tasks with priorities, deadlines and cancellations. A seed is clean if

- each call ends, once, with the right values or a typed error, and no two calls get the same error
  object;
- a call with a deadline ends by it, but for the time for which threads were held up meanwhile;
- nothing is cancelled that nobody cancelled;
- after each step, threads, cores and executions add up, and fewer than allowed wait;
- at the end the counts of calls and bursts add up, nothing runs, waits or is watched, and when the
  runtime is closed its threads have ended.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import numpy as np

import nnasync as nn
from nnasync.fences import Fence
from nnasync.hal import Array, Priority
from tests.rigs import SHAPE, counter, doubler
from tests.simulation.engine import SimulatedEngine
from tests.simulation.threads import inside
from tests.simulation.world import Faults, Stuck, World

TASKS = 20
_SLACK_NS = 1_000_000
_REST_NS = 5_000_000_000
_LIMIT_S = 120.0


class Verdict(msgspec.Struct, frozen=True):
    """What a seed found, None for nothing; its trace, and how calls ended."""

    seed: int
    finding: str | None
    trace: str
    steps: int
    endings: dict[str, int]


class Wrong(AssertionError):
    """A broken promise."""


def compute(inputs: Sequence[Array]) -> list[Array]:
    """What the engine computes for `doubler` and for `counter`."""
    return [inputs[0] * 2] if len(inputs) == 1 else [inputs[0] + inputs[1]] * 2


class Scenario:
    """The tasks of one seed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random
        self.engine = SimulatedEngine(world, compute)
        self.endings: dict[str, int] = {}
        self.errors: list[BaseException] = []
        self.launched: list[nn.Execution] = []
        self.wrong: list[str] = []
        self.serial = 0.0

    async def run(self, folder: str) -> None:
        """All of it, in a runtime of its own."""
        options = self._options(folder)
        async with nn.open_runtime(devices=[self.engine], options=options) as runtime:
            try:
                await self._in(runtime)
            finally:
                self.world.after_step = lambda: None
                workers = runtime._workers
        threads = [worker.thread for worker in workers._crew.workers]
        leftover = [each.name for each in threads if each is not None and each.is_alive()]
        self._demand(not leftover, f"threads {leftover} outlive their runtime")
        self._demand(not runtime._watchdog.pending(), "alarms outlive their runtime")

    def _options(self, folder: str) -> nn.Options:
        draw = self.random
        return nn.Options(
            cores=draw.randint(1, 3),
            inline_budget_us=draw.choice([0, 0, 1e6]),
            stall_budget_us=draw.choice([100, 1000, 5000]),
            queue_limit=draw.choice([3, 12, 64, 64]),
            aging_ms=draw.choice([5, 500]),
            low_os_priority=False,  # What else runs on this machine must not matter.
            worker_niceness=0,
            competition_budget_ms=0,
            contest_process=False,
            switch_interval_us=0,
            time_slice_us=0,
            blas_threads=None,
            state_dir=folder,
        )

    async def _in(self, runtime: nn.Runtime) -> None:
        double = await runtime.compile(doubler())
        count = await runtime.compile(counter())
        self._draw_faults()
        self.world.after_step = lambda: self._after_step(runtime)
        kinds = self.random.choices([self._calls, self._launches, self._burst], k=TASKS)
        tasks = []
        for kind in kinds:
            net = count if kind == self._burst else double
            tasks.append(asyncio.create_task(self._contained(kind, net)))
            if self.world.chance(0.3):
                await asyncio.sleep(self.random.random() * 0.005)
        await self._all(tasks)
        self._heal()
        await self._at_rest(runtime)
        for net in (double, count):
            await net.aclose()

    def _draw_faults(self) -> None:
        draw, engine = self.random, self.engine
        self.world.faults = Faults(
            preempts=draw.choice([0.05, 0.3, 0.6]),
            stalls=draw.choice([0, 0, 0.002, 0.02]),
            jumps=draw.choice([0, 0, 0.001]),
            refuses_threads=draw.choice([0, 0, 0, 0.5, 1]),
        )
        engine.slow = draw.choice([0, 0.1])
        engine.deaf = draw.choice([0, 0, 0.1])
        engine.broken = draw.choice([0, 0, 0.1, 0.4])
        engine.idle = draw.choice([0, 0, 0.05])
        engine.unbound = draw.choice([0, 0, 0.05])

    def _heal(self) -> None:
        self.world.faults = Faults()
        engine = self.engine
        engine.slow = engine.deaf = engine.broken = engine.idle = engine.unbound = 0.0

    async def _all(self, tasks: list[asyncio.Task[None]]) -> None:
        _, left = await asyncio.wait(tasks, timeout=_LIMIT_S)
        self._demand(not left, f"{len(left)} tasks do not end")
        for task in tasks:
            await task

    # -- what tasks do

    async def _contained(self, kind: Callable[[nn.Net], Awaitable[None]], net: nn.Net) -> None:
        try:
            await kind(net)
        except Wrong as error:
            self.wrong.append(str(error))
        except BaseException as error:
            self.wrong.append(f"a task ended with {type(error).__name__}: {error}")
            self.wrong.append("".join(traceback.format_exception(error)))

    async def _calls(self, net: nn.Net) -> None:
        for _ in range(self.random.randint(1, 5)):
            row = self._row()
            found = await self._one(net, row)
            self._demand(found is None or np.array_equal(found, row * 2), f"2 * {row} is {found}")

    async def _launches(self, net: nn.Net) -> None:
        for _ in range(self.random.randint(1, 4)):
            row = self._row()
            before = self.random.sample(
                self.launched, min(len(self.launched), self.random.randint(0, 2))
            )
            fences = [each.fence for each in before]
            found = await self._one(functools.partial(self._launch, net, fences), row)
            self._demand(found is None or np.array_equal(found, row * 2), f"2 * {row} is {found}")

    async def _launch(self, net: nn.Net, fences: list[Fence], row: Array, **how: Any) -> Any:
        execution = await net.launch(row, wait_for=fences, **how)
        self.launched.append(execution)
        beside = asyncio.create_task(self._hear(execution.fence))
        try:
            return await execution.result()
        finally:
            if self.world.chance(0.3):
                execution.cancel()
            await asyncio.shield(beside)

    async def _hear(self, fence: Fence) -> None:
        """A second one who waits for a launch; gets an error of its own."""
        try:
            await fence
        except nn.NNError as error:
            self._note_error(error)

    async def _burst(self, net: nn.Net) -> None:
        total = np.zeros(SHAPE, np.float32)
        on_full: Any = self.random.choice(["wait", "refuse"])
        succeeded = failed = 0
        try:
            async with net.burst(depth=self.random.randint(1, 3), on_full=on_full) as burst:
                for _ in range(self.random.randint(1, 5)):
                    row = self._row()
                    found = await self._one(burst, row)
                    if found is None:
                        failed += 1
                        total = (await burst.state())["total"]
                        continue
                    succeeded += 1
                    total = total + row
                    self._demand(np.array_equal(found, total), f"{total} is {found}")
                counts = burst.statistics()
        except nn.NNError as error:
            self._note_error(error)
            return
        of = f"{counts} after {succeeded} and {failed}"
        self._demand(counts.submitted == counts.succeeded + counts.failed + counts.in_flight, of)
        self._demand(counts.succeeded >= succeeded, of)

    def _row(self) -> Array:
        self.serial += 1
        return np.full(SHAPE, self.serial, np.float32)

    async def _one(self, call: Callable[..., Awaitable[Any]], row: Array) -> Any:
        """What one call gives, None where it failed; it may be cancelled."""
        draw = self.random
        deadline = None
        if draw.random() < 0.6:
            deadline = nn.Deadline(self.world.now_ns + int(10 ** draw.uniform(4, 8)))
        priority = draw.choice([None, *Priority])
        task = asyncio.ensure_future(call(row, deadline=deadline, priority=priority))
        handle = None
        if draw.random() < 0.2:
            loop = asyncio.get_running_loop()
            handle = loop.call_later(10 ** draw.uniform(-5, -1.5), task.cancel)
        found = None
        try:
            found = await task
            self._note("completed")
        except asyncio.CancelledError:
            self._demand(handle is not None, "a call was cancelled that nobody cancelled")
            self._note("cancelled")
        except nn.NNError as error:
            self._note_error(error)
        finally:
            if handle is not None:
                handle.cancel()
        if deadline is not None and self.world.now_ns > deadline.at_ns + _SLACK_NS:
            late_ns = self.world.free_ns(deadline.at_ns)
            self._demand(late_ns < _SLACK_NS, f"answered {late_ns / 1e6:.3f} ms after its deadline")
        return found

    # -- what must be so

    def _demand(self, holds: bool, text: str) -> None:
        if not holds:
            raise Wrong(text)

    def _note(self, ending: str) -> None:
        self.endings[ending] = self.endings.get(ending, 0) + 1

    def _note_error(self, error: nn.NNError) -> None:
        self._demand(all(error is not each for each in self.errors), f"shared by two: {error!r}")
        self.errors.append(error)
        self._note(type(error).__name__)

    def _after_step(self, runtime: nn.Runtime) -> None:
        workers = runtime._workers
        if workers._lock.locked():
            return
        running = workers._running
        held = len(running.held())
        self._demand(running.busy == held, f"{running.busy} cores busy, {held} executions run")
        self._demand(running.busy + running.lost == len(running), "threads lost do not add up")
        self._demand(all(total >= 0 for total in workers._scheduler.totals), "fewer than none wait")
        idle = [each for set_ in workers._crew._idle.values() for each in set_]
        self._demand(len(set(map(id, idle))) == len(idle), "a thread is idle twice")
        busy = {id(worker) for _, worker in running.pairs()}
        self._demand(not busy & set(map(id, idle)), "a thread is idle while it runs something")

    async def _at_rest(self, runtime: nn.Runtime) -> None:
        """Wait until nothing is held, which does not take long."""
        end_ns = self.world.now_ns + _REST_NS
        while held := self._held(runtime):
            self._demand(self.world.now_ns < end_ns, f"held when all is over: {held}")
            await asyncio.sleep(0.01)

    def _held(self, runtime: nn.Runtime) -> dict[str, float]:
        """What runs, waits or has not been counted as ended, by what it is."""
        now = runtime.statistics().workers
        _, _, in_flight = runtime.calls.collect()
        held = {
            "running": now.running,
            "live": now.live,
            "queued": sum(runtime._workers._scheduler.totals),
            "in flight": sum(abs(each.value) for each in in_flight.samples),
        }
        return {name: count for name, count in held.items() if count}


def simulate(seed: int) -> Verdict:
    """Play one seed."""
    _rehearse()
    return _played(seed)


@functools.cache
def _rehearse() -> None:
    """Play one seed for what the package does once in a process, so that all others are alike."""
    _played(0)


def _played(seed: int) -> Verdict:
    world = World(seed)
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as folder, inside(world) as loop:
            # Before the end of the world, which breaks off what is left.
            return _verdict(seed, Scenario(world), loop, folder)
    finally:
        logging.disable(logging.NOTSET)


def _verdict(
    seed: int, scenario: Scenario, loop: asyncio.AbstractEventLoop, folder: str
) -> Verdict:
    world, findings = scenario.world, scenario.wrong
    try:
        loop.run_until_complete(scenario.run(folder))
    except (Exception, Stuck) as error:
        findings.append(_told(error))
    if world.finding is not None:
        findings.append(_told(world.finding))
    finding = "; ".join(findings) or None
    return Verdict(seed, finding, world.trace, world.steps, dict(scenario.endings))


def _told(error: BaseException) -> str:
    if isinstance(error, Wrong | Stuck):
        return f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception(error))
