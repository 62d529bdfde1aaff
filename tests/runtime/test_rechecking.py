"""Networks whose runs are slower than measured for long: their devices compete again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import nnasync as nn
from nnasync._core.compilation import Compilation
from nnasync._core.runtime.rechecking import Rechecker, Slowness
from nnasync.errors import BadState
from nnasync.hal import Priority
from nnasync.scheduler import Estimate
from tests.compilation.rig import FakeEngine, ManualClock, competing, way
from tests.compilation.rig import clock as clock
from tests.rigs import ROW, doubler

pytestmark = pytest.mark.filterwarnings("ignore:network .* was dropped:ResourceWarning")
MINUTE = 60_000_000_000


def looks(slowness: Slowness, run_ns: float, count: int, since: int = 0) -> list[bool]:
    """What so many looks say, one every five seconds, with 100 runs between them."""
    return [
        slowness.look((since + number) * MINUTE // 12, (since + number) * 100, run_ns)
        for number in range(1, count + 1)
    ]


def test_runs_as_measured_are_never_slow() -> None:
    assert not any(looks(Slowness(1e6), 1.5e6, 1000))


def test_half_a_minute_of_slow_runs_is_long() -> None:
    assert looks(Slowness(1e6), 1.6e6, 6) == [False] * 5 + [True]


def test_one_look_at_quick_runs_begins_anew() -> None:
    slowness = Slowness(1e6)
    assert not any(looks(slowness, 2e6, 5))
    assert looks(slowness, 1e6, 1, since=5) == [False]
    assert not any(looks(slowness, 2e6, 5, since=6))


def test_a_network_that_is_not_used_says_nothing() -> None:
    slowness = Slowness(1e6)
    assert not any(looks(slowness, 2e6, 5))
    assert not any(slowness.look(number * MINUTE, 500, 9e9) for number in range(100))
    assert looks(slowness, 2e6, 1, since=5) == [True]


def test_short_runs_may_find_cold_caches() -> None:
    assert not any(looks(Slowness(10e3), 60e3, 100))
    assert any(looks(Slowness(10e3), 70e3, 100))


def test_after_a_contest_runs_must_be_slower_still_and_the_pause_doubles() -> None:
    slowness = Slowness(1e6)
    assert looks(slowness, 2e6, 6)[-1]
    slowness.competed(0, 1e6, 2e6)
    assert not any(looks(slowness, 3e6, 100))
    assert looks(slowness, 4e6, 130).index(True) == 119  # after ten minutes
    slowness.competed(0, 4e6, 4e6)
    assert looks(slowness, 9e6, 300).index(True) == 239  # after twenty
    slowness.competed(0, 9e6, 9e6)
    assert looks(slowness, 20e6, 500).index(True) == 479  # after forty


async def until(met: Callable[[], bool]) -> None:
    from anyio.lowlevel import checkpoint

    while not met():
        await checkpoint()


@pytest.mark.anyio
async def test_another_winner_takes_over_while_the_network_is_in_use(clock: ManualClock) -> None:
    a, b = FakeEngine("a", clock, way(us=50)), FakeEngine("b", clock, way(us=100))
    async with competing(a, b) as rt:
        net = await rt.compile(doubler())
        assert net.report().partitions[0].device == "a"
        a.ways[0] = way(us=500)
        slow(rt, net)
        await until(lambda: net.report().partitions[0].device == "b")
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
    async with competing(a, b) as rt:
        net = await rt.compile(doubler())
        assert net.report().partitions[0].device == "b"
        assert net.report().partitions[0].reason.endswith("as measured before")


@pytest.mark.anyio
async def test_the_same_winner_stays_as_it_is(clock: ManualClock) -> None:
    a, b = FakeEngine("a", clock, way(us=50)), FakeEngine("b", clock, way(us=100))
    async with competing(a, b) as rt:
        net = await rt.compile(doubler())
        prepared, compiled = net._prepared, len(a.compiled)
        slow(rt, net)
        await until(lambda: len(a.compiled) > compiled)
        await until(lambda: checker(rt).is_waiting)
        assert net._prepared is prepared
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.anyio
async def test_a_network_whose_buffers_are_a_devices_stays_there(clock: ManualClock) -> None:
    a, b = FakeEngine("a", clock, way(us=50)), FakeEngine("b", clock, way(us=100))
    async with competing(a, b) as rt:
        net = await rt.compile(doubler())
        role = net.input_role(0)
        a.ways[0] = way(us=500)
        prepared, compiled = net._prepared, len(a.compiled)
        slow(rt, net)
        await until(lambda: len(a.compiled) > compiled)
        await until(lambda: checker(rt).is_waiting)
        assert net._prepared is prepared
        assert role is not None


@pytest.mark.anyio
async def test_a_contest_that_fails_harms_nobody(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = FakeEngine("a", clock, way(us=50)), FakeEngine("b", clock, way(us=100))
    async with competing(a, b) as rt:
        net = await rt.compile(doubler())
        for engine in (a, b):
            engine.ways[0] = way(us=50, compile_fault=RuntimeError("not today"))
        slow(rt, net)
        await until(lambda: "stays as it is" in caplog.text)
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.anyio
async def test_who_closes_a_network_ends_its_watch(clock: ManualClock) -> None:
    async with competing(FakeEngine("a", clock), FakeEngine("b", clock)) as rt:
        net = await rt.compile(doubler())
        assert len(rt._recheckers) == 1
        await net.close()
        assert not rt._recheckers


@pytest.mark.anyio
async def test_where_nothing_competed_nothing_is_watched() -> None:
    async with nn.open_runtime(devices=["nnasync-reference"]) as rt:
        await rt.compile(doubler())
        assert not rt._recheckers


def checker(rt: nn.Runtime) -> Rechecker:
    (found,) = rt._recheckers
    return found


def slow(rt: nn.Runtime, *nets: nn.Net) -> None:
    """Let the runtime see six times in a row that runs have become slow."""
    for _ in range(6):
        for net in nets:
            prepared: Any = net._prepared
            prepared.estimate.samples += 100
            prepared.estimate.ns = 1e9
        for watch in rt._recheckers:
            watch.look()


@pytest.mark.anyio
async def test_a_contest_that_ends_with_its_network_is_no_failure(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with competing(FakeEngine("a", clock), FakeEngine("b", clock)) as rt:
        net = await rt.compile(doubler())

        async def again(pin: str) -> Compilation:
            net.close()
            raise BadState("the runtime is closed")

        watch = Rechecker(net, 1.0, again)
        watch._is_due.signal()
        await watch.run()
    assert "stays as it is" not in caplog.text


@pytest.mark.anyio
async def test_runs_that_give_way_are_not_held_against_a_network(clock: ManualClock) -> None:
    """LOW runs take longer, since others go first; MEDIUM ones are as quick as measured."""
    async with competing(FakeEngine("a", clock, way(us=50)), FakeEngine("b", clock)) as rt:
        net = await rt.compile(doubler())
        prepared: Any = net._prepared
        await net(ROW, priority=Priority.LOW)
        medium, low = prepared.levels
        watch = checker(rt)
        for _ in range(20):
            observe(medium.estimate, 50_000, 100)
            observe(low.estimate, 900_000, 100)
            watch.look()
        assert watch.is_waiting
        for _ in range(20):
            observe(low.estimate, 900_000, 100)
            watch.look()
        assert not watch.is_waiting  # nobody else runs, and it is slow all the same


def observe(estimate: Estimate, duration_ns: int, times: int) -> None:
    for _ in range(times):
        estimate.observe(duration_ns)


@pytest.mark.anyio
async def test_networks_of_one_plan_hold_one_contest(clock: ManualClock) -> None:
    a, b = FakeEngine("a", clock, way(us=50)), FakeEngine("b", clock, way(us=100))
    async with competing(a, b) as rt:
        nets = [await rt.compile(doubler(), priority=each) for each in Priority]
        compiled = len(b.compiled)
        a.ways[0] = way(us=500)
        slow(rt, *nets)
        await until(lambda: all(net.report().partitions[0].device == "b" for net in nets))
        await until(lambda: all(watch.is_waiting for watch in rt._recheckers))
        assert len({id(net._prepared._bindings.plan) for net in nets}) == 1  # type: ignore[attr-defined]  # Private.
        assert len(b.compiled) == compiled + 1
        for net in nets:
            assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
