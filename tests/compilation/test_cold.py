"""Runs that find cold caches: those of contenders that are near each other are measured."""

from __future__ import annotations

import time

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.compilation import contest
from nnasync.engine import StopFlag
from tests.compilation.rig import FakeEngine, ManualClock, competing, verdict_of, way
from tests.compilation.rig import clock as clock
from tests.rigs import ROW, doubler

pytestmark = [
    pytest.mark.one_loop("What is measured decides, on any loop."),
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.filterwarnings("ignore:network .* was dropped:ResourceWarning"),
]

PLENTY_MS = 60_000
ROUNDS, LEAST_ROUNDS = 7, 3


def chosen(net: nn.Net) -> str:
    """Device of the winner."""
    (line,) = [each for each in net.report().candidates if each.verdict == "chosen"]
    return line.device


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
async def test_of_two_that_are_near_the_quicker_when_cold_wins(
    clock: ManualClock, order: tuple[str, ...]
) -> None:
    engines = {
        "a": FakeEngine("a", clock, way(us=360, cold_us=560)),
        "b": FakeEngine("b", clock, way(us=350, cold_us=840)),
    }
    async with competing(*(engines[name] for name in order)) as rt:
        net = await rt.compile(doubler())
        assert chosen(net) == "a"
        lines = {each.device: each for each in net.report().candidates}
        assert (lines["a"].cold_us, lines["b"].cold_us) == (560, 840)
        assert (lines["a"].median_us, lines["b"].median_us) == (360, 350)
        told = "equal back to back, slower when cold: 1.50 times the chosen"
        assert lines["b"].verdict == told


async def test_who_is_not_near_is_not_run_cold(clock: ManualClock) -> None:
    quick = FakeEngine("quick", clock, way(us=100, cold_us=900))
    steady = FakeEngine("steady", clock, way(us=112, cold_us=120))
    async with competing(quick, steady) as rt:
        net = await rt.compile(doubler())
        assert chosen(net) == "quick"
        assert {each.cold_us for each in net.report().candidates} == {None}
        assert clock.chills == 0


async def test_long_runs_are_not_run_cold(clock: ManualClock) -> None:
    a, b = FakeEngine("a", clock, way(us=20_000)), FakeEngine("b", clock, way(us=20_000))
    async with competing(a, b, budget_ms=PLENTY_MS) as rt:
        assert chosen(await rt.compile(doubler())) == "a"
    assert clock.chills == 0


@pytest.mark.parametrize(("budget_ms", "rounds"), [(PLENTY_MS, ROUNDS), (0.001, LEAST_ROUNDS)])
async def test_cold_runs_end_with_the_budget(
    clock: ManualClock, budget_ms: float, rounds: int
) -> None:
    a, b = FakeEngine("a", clock, way(us=100)), FakeEngine("b", clock, way(us=100))
    far = FakeEngine("far", clock, way(us=900))
    async with competing(a, b, far, budget_ms=budget_ms) as rt:
        await rt.compile(doubler())
    assert clock.chills == 2 * rounds


@pytest.mark.parametrize(("chill_ms", "is_measured"), [(1, True), (200, False)])
async def test_cold_runs_begin_only_if_the_processor_time_suffices(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, chill_ms: int, *, is_measured: bool
) -> None:
    spent_ns = 0

    def evict() -> None:
        nonlocal spent_ns
        spent_ns += chill_ms * 1_000_000
        clock.evict()

    monkeypatch.setattr(contest, "CacheEvictor", lambda: evict)
    monkeypatch.setattr(time, "process_time_ns", lambda: spent_ns)
    a, b = FakeEngine("a", clock, way(us=100)), FakeEngine("b", clock, way(us=100))
    options = nn.CompileOptions(wait="first")
    async with competing(a, b, background_ms=1000) as rt:
        net = await rt.compile(doubler(), options=options)
        await net(ROW)
        await net.optimized()
        lines = net.report().candidates
        assert any(each.cold_us is not None for each in lines) == is_measured
    assert spent_ns < 1_000_000_000


async def test_now_and_then_a_bad_cold_run_does_not_decide(clock: ManualClock) -> None:
    a = FakeEngine("a", clock, way(us=100, cold_us=200))
    b = FakeEngine("b", clock, way(us=100, cold_us=200))

    def disturb(stop: StopFlag) -> None:
        if clock.is_cold and clock.chills % 3 == 1:
            clock.run(900_000, 0)

    a.before_run = disturb
    async with competing(a, b, budget_ms=PLENTY_MS) as rt:
        net = await rt.compile(doubler())
        assert chosen(net) == "a"
        assert verdict_of(net.report(), "b") == "equal: order decides"


async def test_low_power_counts_processor_time_of_cold_runs(clock: ManualClock) -> None:
    hungry = FakeEngine("hungry", clock, way(us=100, cpu_us=150, cold_us=500))
    frugal = FakeEngine("frugal", clock, way(us=300, cpu_us=152, cold_us=300))
    async with competing(hungry, frugal) as rt:
        net = await rt.compile(doubler(), preference=nn.Preference.LOW_POWER)
        assert chosen(net) == "frugal"
        assert "slower when cold: 1.67" in verdict_of(net.report(), "hungry")


async def test_who_fails_when_cold_does_not_win(clock: ManualClock) -> None:
    frail, sound = FakeEngine("frail", clock, way(us=100)), FakeEngine("sound", clock, way(us=100))

    def break_down(stop: StopFlag) -> None:
        if clock.is_cold:
            raise RuntimeError("frozen")

    frail.before_run = break_down
    async with competing(frail, sound) as rt:
        net = await rt.compile(doubler())
        assert chosen(net) == "sound"
        assert "frozen" in verdict_of(net.report(), "frail")


def test_making_caches_cold_writes_all_of_its_memory_and_lets_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    evict = contest.CacheEvictor()
    for count in (1, 2):
        evict()
        assert evict.memory.nbytes >= 1 << 24
        assert (np.asarray(evict.memory) == count).all()
        assert len(pauses) == count
    assert min(pauses) > 0


async def test_what_won_cold_runs_as_usual(clock: ManualClock) -> None:
    a = FakeEngine("a", clock, way(us=100, cold_us=300))
    b = FakeEngine("b", clock, way(us=100, cold_us=150))
    async with competing(a, b) as rt:
        net = await rt.compile(doubler())
        assert chosen(net) == "b"
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        again = await rt.compile(doubler(), options=nn.CompileOptions(pin=net.report().pin))
        assert {each.device for each in again.report().partitions} == {"b"}
