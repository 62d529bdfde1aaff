"""What a plan that takes over asks of who runs it, and what becomes of what the first one asked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.compilation import compiling
from nnasync.engine import BoundCall, Given, Lowering, Plan, StopFlag
from nnasync.errors import DeviceUnavailable
from tests.compilation.rig import FakeEngine, ManualClock, chain, competing, way
from tests.compilation.rig import clock as clock
from tests.rigs import GUARD_S, attempt, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

FIRST = nn.CompileOptions(wait="first")
X = np.ones((1, 64), np.float32)
CALLS = 6
WAIT_S = 0.002
"""A run waits so long for others to come."""


class CountedEngine(FakeEngine):
    """Tells how many runs of one plan there were at once, at most, and on which threads."""

    def __init__(self, name: str, clock: ManualClock, us: int, loads_in_ms: float) -> None:
        super().__init__(name, clock, way(us=us))
        self.loads_in_ms = loads_in_ms
        self.most = 0
        self.on_threads = set[int]()
        self.gate = threading.Event()
        self.gate.set()

    def compile(
        self,
        model: hal.Model,
        preference: hal.ExecutionPreference,
        lowering: Lowering | None = None,
    ) -> Any:
        return _CountedPlan(self, super().compile(model, preference, lowering))


class _CountedPlan(Plan):
    def __init__(self, engine: CountedEngine, plan: Plan) -> None:
        self.engine = engine
        self.plan = plan
        self.inside = 0
        self.lock = threading.Lock()
        self.never = threading.Event()

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> BoundCall:
        return _CountedCall(self, self.plan.bind(inputs, outputs))


class _CountedCall(BoundCall):
    def __init__(self, plan: _CountedPlan, call: BoundCall) -> None:
        self.plan = plan
        self.call = call

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        plan, engine = self.plan, self.plan.engine
        engine.on_threads.add(threading.get_ident())
        with plan.lock:
            plan.inside += 1
            engine.most = max(engine.most, plan.inside)
        if threading.current_thread().name.startswith("nnasync-worker"):  # In no contest.
            plan.never.wait(WAIT_S)
        engine.gate.wait(GUARD_S)
        try:
            return self.call.run(stop)
        finally:
            with plan.lock:
                plan.inside -= 1


def engines(clock: ManualClock) -> tuple[CountedEngine, CountedEngine]:
    """One that is ready soon, and one that is quicker once it is there."""
    return CountedEngine("first", clock, 30, 10), CountedEngine("best", clock, 10, 400)


async def many(net: nn.Net) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(CALLS):
            group.start_soon(net, X)


async def test_the_limit_of_a_plan_that_follows_is_kept(clock: ManualClock) -> None:
    first, best = engines(clock)
    best.concurrency = 1
    with anyio.fail_after(GUARD_S):
        async with (
            competing(first, best, cores=4) as rt,
            rt.compile(chain(4), options=FIRST) as net,
        ):
            async with anyio.create_task_group() as group:
                group.start_soon(net.optimized)
                for _ in range(10):
                    await many(net)
            await many(net)
            best.on_threads.clear()
            for _ in range(20):
                await net(X)
            assert [part.device for part in net.report().partitions] == ["best"]
            assert best.most == 1
            assert threading.get_ident() not in best.on_threads


async def test_the_limit_of_the_first_plan_ends_with_it(clock: ManualClock) -> None:
    first, best = engines(clock)
    first.concurrency = 1
    with anyio.fail_after(GUARD_S):
        async with (
            competing(first, best, cores=4) as rt,
            rt.compile(chain(4), options=FIRST) as net,
        ):
            await many(net)
            await net.optimized()
            while best.most < 2:
                await many(net)
            assert first.most == 1


async def test_errors_name_the_device_that_answers_first(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "PATIENCE_S", 3600)  # Nothing follows before it is used.
    first, best = engines(clock)
    first.concurrency = 1
    with anyio.fail_after(GUARD_S):
        async with competing(first, best) as rt, rt.compile(chain(4), options=FIRST) as net:
            await closed_in_flight(net, first, "chain on first was closed")


async def test_errors_name_the_device_that_has_taken_over(clock: ManualClock) -> None:
    first, best = engines(clock)
    best.concurrency = 1
    with anyio.fail_after(GUARD_S):
        async with competing(first, best) as rt, rt.compile(chain(4), options=FIRST) as net:
            await net(X)
            await net.optimized()
            await closed_in_flight(net, best, "chain on best was closed")


async def closed_in_flight(net: nn.Net, engine: CountedEngine, told: str) -> None:
    """Closes a network while a call is in flight, which is told this."""
    engine.gate.clear()
    engine.on_threads.clear()
    async with anyio.create_task_group() as group:
        call = await attempt(group, lambda: net(X))
        try:
            await until(lambda: bool(engine.on_threads))
            await net.aclose()
        finally:
            engine.gate.set()
        failure = await call.failure()
    assert isinstance(failure, DeviceUnavailable)
    assert told in str(failure)
