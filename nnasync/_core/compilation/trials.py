"""Runs of a candidate outside the ordinary paths: its answers to samples, and how long it takes.

A plan of an engine is bound to arrays and run on a helper thread, many times in a row, so that
neither the loop nor a wake-up is measured. Any other device is measured from outside, through its
prepared model. A trial that is cancelled tells the engine to stop and leaves the thread to itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from time import process_time_ns
from typing import Protocol, TypeVar

import msgspec

from nnasync._core.clock import now_ns
from nnasync._core.compilation.samples import SampleMemory
from nnasync._core.wakeup import yield_now
from nnasync._core.workers import contained
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.burst import BurstController, LocalChannel, Outcome
from nnasync.device import PreparedModel
from nnasync.engine import BoundCall, Plan, StopFlag
from nnasync.errors import DeviceUnavailable, GeneralFailure, NNError
from nnasync.fences import Fence
from nnasync.hal import NOT_AVAILABLE, Array, ExecutionConfig, Model

T = TypeVar("T")

_MAX_RUNS = 200
_FIRST_RUNS = 2
_LOOP_TIMEOUT_NS = 500_000_000
"""Made-up inputs may keep a loop going for ever, and each candidate has to find that out."""


class SampleAnswer(msgspec.Struct, frozen=True):
    """Holds the outputs for a sample, and how long the run took."""

    outputs: list[Array]
    run_ns: int


class TurnTimes(msgspec.Struct, frozen=True):
    """Durations of runs in a row, and the processor time of all threads for one of them."""

    runs_ns: tuple[int, ...]
    cpu_ns: float | None


class Trial(Protocol):
    """Runs a candidate under test, one call at a time; all methods raise typed errors."""

    async def answer(self, inputs: Sequence[Array]) -> SampleAnswer:
        """Run once on a sample."""

    async def turn(self, slice_ns: int) -> TurnTimes:
        """Run for about that long on the last sample, at least once."""

    async def cold(self, evict: Callable[[], None]) -> TurnTimes:
        """Run once on the last sample, right after `evict`, which takes a while, on a thread."""


class EngineTrial:
    """Runs a plan of an engine under test."""

    def __init__(self, name: str, model: Model, plan: Plan) -> None:
        self._name = name
        self._model = model
        self._plan = plan
        self._stop = StopFlag(_LOOP_TIMEOUT_NS, falls_back=False)
        self._memory: SampleMemory | None = None
        self._call: BoundCall | None = None

    async def answer(self, inputs: Sequence[Array]) -> SampleAnswer:
        """Run once on a sample; binds before the first."""
        return await self._in_helper_thread(lambda: self._answer(inputs))

    async def turn(self, slice_ns: int) -> TurnTimes:
        """Run in a row; the first of several runs, which finds cold caches, does not count."""
        return await self._in_helper_thread(lambda: self._turn(slice_ns))

    async def cold(self, evict: Callable[[], None]) -> TurnTimes:
        """Run once with cold caches, on the thread that made them so."""
        return await self._in_helper_thread(lambda: self._cold(evict))

    async def _in_helper_thread(self, work: Callable[[], T]) -> T:
        def guarded() -> T:
            try:
                return work()
            except BaseException as error:
                failure = contained(error, self._name)
                raise failure from failure.__cause__

        is_over = False
        try:
            result = await in_helper_thread(guarded, abandon_on_cancel=True)
            is_over = True
            return result
        except Exception:
            is_over = True
            raise
        finally:
            if not is_over:
                self._stop.abort()

    def _answer(self, inputs: Sequence[Array]) -> SampleAnswer:
        call, memory = self._bound()
        memory.write(inputs)
        began_ns = now_ns()
        self._run(call)
        run_ns = now_ns() - began_ns
        return SampleAnswer(memory.read(), run_ns)

    def _turn(self, slice_ns: int) -> TurnTimes:
        call, _ = self._bound()
        runs_ns: list[int] = []
        cpu_began_ns = process_time_ns()
        began_ns = before_ns = now_ns()
        while not runs_ns or (before_ns - began_ns < slice_ns and len(runs_ns) < _MAX_RUNS):
            self._run(call)
            after_ns = now_ns()
            runs_ns.append(after_ns - before_ns)
            before_ns = after_ns
        cpu_ns = (process_time_ns() - cpu_began_ns) / len(runs_ns)
        return TurnTimes(tuple(runs_ns[1:] or runs_ns), cpu_ns)

    def _cold(self, evict: Callable[[], None]) -> TurnTimes:
        call, _ = self._bound()
        evict()
        cpu_began_ns = process_time_ns()
        began_ns = now_ns()
        self._run(call)
        run_ns = now_ns() - began_ns
        return TurnTimes((run_ns,), process_time_ns() - cpu_began_ns)

    def _bound(self) -> tuple[BoundCall, SampleMemory]:
        if self._call is None or self._memory is None:
            self._memory = SampleMemory(self._model, is_shared=False)
            self._call = self._plan.bind(self._memory.inputs, self._memory.outputs)
        return self._call, self._memory

    def _run(self, call: BoundCall) -> None:
        if not call.run(self._stop):
            call.rewind()
            raise GeneralFailure(f"{self._name} stopped in the middle of a trial")


class OutsideTrial:
    """Runs a prepared model of any device under test; its turns are bursts, the fastest way."""

    def __init__(self, name: str, model: Model, prepared: PreparedModel) -> None:
        self._name = name
        self._prepared = prepared
        self._memory = SampleMemory(model)

    async def answer(self, inputs: Sequence[Array]) -> SampleAnswer:
        """Execute once on a sample."""
        self._memory.write(inputs)
        began_ns = now_ns()
        result = await self._contained(
            self._prepared.execute(self._memory.request, ExecutionConfig(measure=True))
        )
        elapsed_ns = now_ns() - began_ns
        device_ns = result.timing.time_on_device_ns
        run_ns = elapsed_ns if device_ns == NOT_AVAILABLE else min(device_ns, elapsed_ns)
        return SampleAnswer(self._memory.read(), run_ns)

    async def turn(self, slice_ns: int) -> TurnTimes:
        """Execute in a row, in a burst; the first runs, which make it known, do not count."""
        async with self._burst() as controller:
            return await self._contained(self._runs(controller, slice_ns))

    async def cold(self, evict: Callable[[], None]) -> TurnTimes:
        """Execute once in a burst that made it known and then was left alone, as in a stream."""
        async with self._burst() as controller:
            return await self._contained(self._run_cold(controller, evict))

    @asynccontextmanager
    async def _burst(self) -> AsyncIterator[BurstController]:
        requests, results = LocalChannel(), LocalChannel()
        controller = BurstController(requests, results)
        opening = self._prepared.configure_execution_burst(controller, requests, results)
        controller.attach(await self._contained(opening))
        try:
            yield controller
        finally:
            controller.close(DeviceUnavailable("the trial is over"))

    async def _runs(self, controller: BurstController, slice_ns: int) -> TurnTimes:
        arguments = controller.encode(self._memory.request)
        runs_ns: list[int] = []
        began_ns = now_ns()
        while len(runs_ns) <= _FIRST_RUNS or (
            now_ns() - began_ns < slice_ns and len(runs_ns) < _MAX_RUNS
        ):
            before_ns = now_ns()
            await _run_in(controller, arguments)
            runs_ns.append(now_ns() - before_ns)
            await yield_now()
        return TurnTimes(tuple(runs_ns[_FIRST_RUNS:]), None)

    async def _run_cold(self, controller: BurstController, evict: Callable[[], None]) -> TurnTimes:
        arguments = controller.encode(self._memory.request)
        for _ in range(_FIRST_RUNS):
            await _run_in(controller, arguments)
        await in_helper_thread(evict, abandon_on_cancel=True)
        before_ns = now_ns()
        await _run_in(controller, arguments)
        return TurnTimes((now_ns() - before_ns,), None)

    async def _contained(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except Exception as error:
            failure = contained(error, self._name)
            raise failure from failure.__cause__


async def _run_in(controller: BurstController, arguments: bytes) -> None:
    """Executes once in a burst; raises what that fails with."""
    outcomes: list[Outcome] = []
    over = Fence()

    def done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        over.signal()

    outcome = controller.ask(arguments)
    if isinstance(outcome, int):
        controller.follow(outcome, done)
    else:
        done(outcome)
    await over
    if isinstance(outcomes[0], NNError):
        raise outcomes[0]
