"""Runs of a candidate outside the ordinary paths."""

from __future__ import annotations

import threading

import pytest

import nnasync as nn
from nnasync._core.compilation.samples import sample
from nnasync._core.compilation.trials import EngineTrial, OutsideTrial
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync.engine import StopFlag
from nnasync.errors import GeneralFailure
from tests.compilation.rig import FakeEngine, ManualClock, way
from tests.compilation.rig import clock as clock
from tests.rigs import doubler

# Whether a worker of anyio still holds the last task when a test ends is its affair: no `no_leaks`.
pytestmark = pytest.mark.anyio


async def test_the_first_run_of_a_turn_does_not_count(clock: ManualClock) -> None:
    engine = FakeEngine("engine", clock, way(us=100))

    def begin(stop: StopFlag) -> None:
        clock.run(900_000, 0)
        engine.before_run = lambda stop: None

    model = doubler()
    trial = EngineTrial("engine", model, engine.compile(model, nn.Preference.LOW_POWER))
    engine.before_run = begin
    turn = await trial.turn(1_500_000)
    assert turn.runs_ns == (100_000,) * 5
    assert turn.cpu_ns == 100_000


async def test_a_plan_runs_on_the_thread_that_made_caches_cold(clock: ManualClock) -> None:
    engine = FakeEngine("engine", clock, way(us=100, cold_us=250))
    threads: list[int] = []
    engine.before_run = lambda stop: threads.append(threading.get_ident())
    model = doubler()
    trial = EngineTrial("engine", model, engine.compile(model, nn.Preference.LOW_POWER))
    await trial.answer(sample(model, 0))

    def evict() -> None:
        threads.append(threading.get_ident())
        clock.evict()

    turn = await trial.cold(evict)
    assert turn.runs_ns == (250_000,)
    assert turn.cpu_ns == 250_000
    assert len(threads) == 3
    assert threads[1] == threads[2] != threading.get_ident()


async def test_another_device_is_left_alone_before_its_cold_run(clock: ManualClock) -> None:
    engine = FakeEngine("engine", clock, way(us=100, cold_us=250))
    async with nn.open_runtime(devices=[engine]) as rt:
        prepared = await rt.devices[0].prepare_model(doubler())
        try:
            trial = OutsideTrial("engine", doubler(), prepared)
            await trial.answer(sample(doubler(), 0))
            turn = await trial.cold(clock.evict)
        finally:
            await prepared.close()
    assert turn.runs_ns == (250_000,)
    assert turn.cpu_ns is None
    assert not clock.is_cold


async def test_a_failure_in_a_cold_run_is_the_devices() -> None:
    model = doubler()
    plan = ReferenceEngine().compile(model, nn.Preference.LOW_POWER)
    trial = EngineTrial("engine", model, plan)

    def evict() -> None:
        raise MemoryError("no memory")

    with pytest.raises(GeneralFailure, match="no memory"):
        await trial.cold(evict)
