"""Contestants of `nnasync bench`: samples on a clock that only a test moves, turns, refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync.cli.bench.contestant import Contestant, Refusal, Setting, enter
from nnasync.cli.bench.figures import Figures, figures_of
from nnasync.cli.bench.pinned_lowerings import lowering_settings
from nnasync.cli.bench.rounds import run_rounds
from nnasync.errors import GeneralFailure
from nnasync.hal import Array
from tests.compilation.rig import FakeEngine, ManualClock, way
from tests.rigs import ROW, double, doubler, runtime

pytestmark = pytest.mark.anyio

VALUES = {"x": ROW}


async def given(_: nn.Net) -> dict[str, Array]:
    return VALUES


def ticking(step_ns: int) -> Callable[[], int]:
    """A clock that moves by one step whenever it is read."""
    return itertools.count(0, step_ns).__next__


async def entered(rt: nn.Runtime, device: str = "null", step_ns: int = 10) -> Contestant:
    entry = await enter(
        rt,
        doubler(),
        Setting(device, (device,)),
        given,
        clock=ticking(step_ns),
        cpu_clock=ticking(4 * step_ns),
    )
    assert isinstance(entry, Contestant)
    return entry


async def test_compiling_and_the_first_run_are_apart_from_the_samples() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        entry = await entered(rt)
        assert (entry.compile_ns, entry.first_ns) == (10, 10)
        assert entry.latencies_ns == []
        assert engine.counters.finished == 1


async def test_runs_one_by_one_until_the_time_is_over() -> None:
    async with runtime(NullEngine(compute=double)) as rt:
        entry = await entered(rt)
        await entry.run_one_by_one(100)
        # Every run reads the clock twice, so five of them end after 100 ns.
        assert entry.latencies_ns == [10] * 5
        assert entry.busy_ns == 40


async def test_at_least_one_run_however_short_the_time() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        entry = await entered(rt)
        await entry.run_one_by_one(0)
        await entry.run_in_flight(3, 0)
        assert len(entry.latencies_ns) == 1
        assert entry.flight_runs == 3
        assert engine.counters.finished == 5
        assert entry.flight_ns > 0


async def test_figures() -> None:
    async with runtime(NullEngine(compute=double)) as rt:
        entry = await entered(rt)
        entry.latencies_ns = list(range(1, 101))
        entry.busy_ns = 5_000
        entry.flight_runs, entry.flight_ns, entry.flight_busy_ns = 30, 10_000, 15_000
        figures = figures_of(entry, 8)
    assert figures.name == figures.devices == "null"
    assert figures.partitions == (("null", 1),)
    assert figures.median_ns == 50.5
    assert figures.p90_ns < figures.p99_ns < 100
    assert (figures.runs, figures.cpu_ns, figures.in_flight) == (100, 50, 8)
    assert figures.per_second == pytest.approx(3e6)
    assert figures.busy_cores == 1.5


async def test_a_device_that_cannot_is_a_refusal() -> None:
    async with runtime(NullEngine(operation_types=())) as rt:
        entry = await enter(rt, doubler(), Setting("null", ("null",)), given)
    assert isinstance(entry, Refusal)
    assert "ADD is not supported" in entry.reason


async def test_a_device_that_fails_at_its_first_run_is_a_refusal() -> None:
    engine = NullEngine(compute=double)
    engine.fail("run", GeneralFailure("out of\n  order"))
    async with runtime(engine) as rt:
        entry = await enter(rt, doubler(), Setting("null", ("null",)), given)
    assert isinstance(entry, Refusal)
    assert "out of order" in entry.reason


async def test_contestants_take_turns() -> None:
    async with runtime(NullEngine("a", compute=double), NullEngine("b", compute=double)) as rt:
        entries = [await entered(rt, name, step_ns=100) for name in "ab"]
        told: list[tuple[int, int, str]] = []
        await run_rounds(
            entries,
            duration_ns=10_000,
            in_flight=2,
            progress=lambda *turn: told.append(turn),
        )
        assert [name for _, _, name in told] == list("abbaabbaab")
        assert [turn for turn, _, _ in told] == list(range(10))
        assert {turns for _, turns, _ in told} == {10}
        assert all(entry.latencies_ns and entry.flight_runs for entry in entries)


async def test_a_slow_model_has_fewer_rounds() -> None:
    async with runtime(NullEngine(compute=double)) as rt:
        entry = await entered(rt)
        entry.first_ns = 1_000
        told: list[Any] = []
        await run_rounds(
            [entry], duration_ns=8_000, in_flight=2, progress=lambda *turn: told.append(turn)
        )
        assert len(told) == 2


async def test_one_that_fails_is_out_and_the_others_go_on() -> None:
    broken = NullEngine("broken", compute=double)
    async with runtime(broken, NullEngine("sound", compute=double)) as rt:
        entries = [await entered(rt, name) for name in ("broken", "sound")]
        broken.fail("run", GeneralFailure("burnt out"))
        await run_rounds(
            entries, duration_ns=1_000, in_flight=4, progress=lambda _turn, _turns, _name: None
        )
        assert "burnt out" in str(entries[0].failure)
        assert entries[1].failure is None
        assert isinstance(figures_of(entries[1], 4), Figures)


async def test_each_lowering_is_a_setting() -> None:
    engine = FakeEngine("fake", ManualClock(), way("plain"), way("wide", 2))
    async with runtime(engine, NullEngine(compute=double)) as rt:
        first = await enter(rt, doubler(), Setting("fake", ("fake",)), given)
        assert isinstance(first, Contestant)
        report = first.net.report()
        preference = nn.Preference.FAST_SINGLE_ANSWER
        settings = await lowering_settings(rt.device("fake"), doubler(), preference, None, report)
        assert [one.name for one in settings] == ["fake plain, 1 thread", "fake wide, 2 threads"]
        entries = [await enter(rt, doubler(), setting, given) for setting in settings]
        assert [type(entry) for entry in entries] == [Contestant, Contestant]
        assert engine.compiled[-2:] == ["plain*1", "wide*2"]
        null = rt.device("null")
        assert await lowering_settings(null, doubler(), preference, None, report) == []
