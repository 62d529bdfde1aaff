"""Networks of one model share its plan, whatever their priorities."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.compilation import Compilation
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device import EnginePreparedModel
from nnasync.device import SharingDevice
from nnasync.errors import DeviceUnavailable, InvalidArgument, MissedDeadlineTransient
from nnasync.hal import Model, Priority
from tests.rigs import (
    POOL,
    REFERENCE,
    ROW,
    ManualWatchdog,
    attempt,
    double,
    doubler,
    gated,
    runtime,
    until,
)
from tests.service.rig import Slot, served

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


def plan_of(net: nn.Net) -> Any:
    prepared = net._prepared
    assert isinstance(prepared, EnginePreparedModel)
    return prepared._bindings.plan


def users(rt: nn.Runtime) -> list[int]:
    """How many compile now, or wait for that, on the same terms."""
    return [each.users for each in rt._plans._terms.values()]


def compiling(rt: nn.Runtime, **options: Any) -> Callable[[], Awaitable[nn.Net]]:
    """A compilation of the same model each time it is begun."""
    return lambda: rt.compile(doubler(), **options)


async def compiled_thrice(rt: nn.Runtime, make: Any = doubler, **options: Any) -> list[nn.Net]:
    return [await rt.compile(make(), priority=each, **options) for each in Priority]


async def test_priorities_share_one_plan() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=POOL) as rt:
        nets = await compiled_thrice(rt)
        assert engine.counters.compile == 1
        assert len({id(plan_of(net)) for net in nets}) == 1
        assert [net.priority for net in nets] == list(Priority)
        for net in nets:
            assert np.array_equal(await net(ROW), 2 * ROW)


async def test_those_that_are_asked_for_at_once_share_as_well() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=POOL) as rt, anyio.create_task_group() as group:
        found = [await attempt(group, compiling(rt, priority=each)) for each in Priority]
        for each in found:
            await each.done.wait()
        assert engine.counters.compile == 1
        assert len({id(plan_of(each.result)) for each in found}) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"preference": nn.Preference.LOW_POWER},
        {"precision": "bf16"},
        {"options": nn.CompileOptions(preemption_quantum_ms=1)},
    ],
)
async def test_other_terms_are_another_plan(options: dict[str, Any]) -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=POOL) as rt:
        nets = [await rt.compile(doubler()), await rt.compile(doubler(), **options)]
        assert plan_of(nets[0]) is not plan_of(nets[1])


async def test_another_model_is_another_plan() -> None:
    async with runtime(NullEngine(compute=double), options=POOL) as rt:
        nets = [await rt.compile(doubler()), await rt.compile(doubler("other"))]
        assert plan_of(nets[0]) is not plan_of(nets[1])


async def test_each_is_closed_on_its_own() -> None:
    engine = gated()
    async with runtime(engine, options=POOL) as rt, anyio.create_task_group() as group:
        low, medium, high = await compiled_thrice(rt)
        calls = [await attempt(group, partial(each, ROW)) for each in (low, medium)]
        await until(lambda: rt.statistics().workers.live == 2)
        await low.aclose()
        assert isinstance(await calls[0].failure(), DeviceUnavailable)
        assert not calls[1].done.is_set()
        assert engine.gate is not None
        engine.gate.open_wide()
        assert await calls[1].failure() is None
        await medium.aclose()
        assert np.array_equal(await high(ROW), 2 * ROW)


async def test_the_plan_goes_with_the_last_of_them() -> None:
    engine = NullEngine(compute=double, max_models=1)
    async with runtime(engine, options=POOL) as rt:
        for net in await compiled_thrice(rt):
            assert len(engine._plans) == 1
            await net.aclose()
        del net
        await until(lambda: gc.collect() >= 0 and len(engine._plans) == 0)
        net = await rt.compile(doubler())
        assert np.array_equal(await net(ROW), 2 * ROW)
        assert engine.counters.compile == 2


async def test_a_closed_network_takes_nobody_s_first_turn() -> None:
    async with runtime(NullEngine(compute=double), options=POOL) as rt:
        closed, kept = await rt.compile(doubler()), await rt.compile(doubler("other"))
        await closed.aclose()
        with rt._plans.claim():
            (terms,) = rt._plans._terms.values()
            assert list(terms.nets) == [kept]


async def test_memory_that_one_uses_is_not_given_back_by_another() -> None:
    async with runtime(NullEngine(compute=double), options=POOL) as rt:
        idle, busy = await rt.compile(doubler()), await rt.compile(doubler(), priority=Priority.LOW)
        plan, trims = plan_of(idle), []
        plan.trim = lambda: trims.append(1)
        for _ in range(3):
            await busy(ROW)
            for net in (idle, busy):
                net._prepared.trim()  # type: ignore[attr-defined]
        assert not trims
        for _ in range(2):
            idle._prepared.trim()  # type: ignore[attr-defined]
        assert trims
        trims.clear()
        await idle.aclose()
        assert not trims
        await busy.aclose()
        assert trims == [1]


async def test_an_engine_that_runs_one_at_a_time_does_so_for_all_of_them() -> None:
    at_once, most = 0, 0

    def compute(inputs: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        found = double(inputs)
        at_once -= 1
        return found

    engine = NullEngine(compute=compute, concurrency=1, steps=3)
    async with runtime(engine, options=POOL) as rt, anyio.create_task_group() as group:
        nets = await compiled_thrice(rt)
        for net in nets:
            for _ in range(10):
                group.start_soon(net, ROW)
    assert most == 1


async def test_a_device_in_a_service_shares_too() -> None:
    engine = NullEngine(compute=double)
    async with served(engine) as it, runtime(it.device, options=POOL) as rt:
        nets = await compiled_thrice(rt)
        assert engine.counters.compile == 1
        for net in nets:
            assert np.array_equal(await net(ROW), 2 * ROW)
        await nets[0].aclose()
        assert np.array_equal(await nets[2](ROW), 2 * ROW)


async def test_it_is_one_that_falls_back_as_well() -> None:
    engine = NullEngine(compute=double)
    async with served(engine) as it, runtime(it.device, REFERENCE, options=POOL) as rt:
        nets = await compiled_thrice(rt, devices=["null", REFERENCE])
        assert engine.counters.compile == 1
        engine.fail("run", RuntimeError("boom"))
        for net in nets:
            assert np.array_equal(await net(ROW), 2 * ROW)
            assert net.report().fallbacks


async def test_a_device_that_does_not_share_prepares_again() -> None:
    engine = NullEngine(compute=double)
    async with served(engine, wrapped=Unsharing) as it, runtime(it.device, options=POOL) as rt:
        assert isinstance(it.device, SharingDevice)  # as far as one knows here
        nets = await compiled_thrice(rt)
        for net in nets:
            assert np.array_equal(await net(ROW), 2 * ROW)
        assert engine.counters.compile == 3


class Unsharing:
    """A device that shares nothing."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "share":
            raise AttributeError(name)
        return getattr(self._inner, name)


async def test_a_stranger_is_not_shared() -> None:
    async with served(NullEngine(compute=double)) as it, served(NullEngine()) as other:
        prepared = await it.device.prepare_model(doubler())
        strangers: list[Any] = [other.device, other.runtime.devices[0]]
        for device in strangers:
            with pytest.raises(InvalidArgument, match="not of this"):
                await device.share(prepared, Priority.LOW)
        twin = await it.device.share(prepared, Priority.LOW)
        await prepared.close()
        await twin.execute(Slot().request)
        with pytest.raises(DeviceUnavailable):
            await it.device.share(prepared, Priority.LOW)


async def test_who_waits_for_another_compilation_misses_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watchdog, release = ManualWatchdog(), anyio.Event()
    monkeypatch.setattr("nnasync._core.runtime.runtime.Watchdog", lambda: watchdog)
    async with runtime(NullEngine(compute=double), options=POOL) as rt:
        compiled = rt._compiled

        async def held(spec: Any, begun: Any = None) -> Compilation:
            await release.wait()
            return await compiled(spec, begun)

        rt._compiled = held  # type: ignore[method-assign]
        async with anyio.create_task_group() as group:
            first = await attempt(group, compiling(rt))
            await until(lambda: users(rt) == [1])
            deadline = nn.within(s=3600)
            second = await attempt(group, compiling(rt, deadline=deadline))
            await until(lambda: users(rt) == [2])
            await anyio.wait_all_tasks_blocked()
            watchdog.ring(deadline)
            assert isinstance(await second.failure(), MissedDeadlineTransient)
            release.set()
            assert await first.failure() is None


async def test_one_that_is_cancelled_leaves_the_work_to_the_next() -> None:
    engine = NullEngine(compute=double)
    gate = anyio.Event()
    async with runtime(engine, options=POOL) as rt:
        compiled, calls = rt._compiled, 0

        async def held(spec: Any, begun: Any = None) -> Compilation:
            nonlocal calls
            calls += 1
            if calls == 1:
                await gate.wait()
            return await compiled(spec, begun)

        rt._compiled = held  # type: ignore[method-assign]
        async with anyio.create_task_group() as group:
            first = await attempt(group, compiling(rt))
            await until(lambda: users(rt) == [1])
            second = await attempt(group, compiling(rt))
            await until(lambda: users(rt) == [2])
            first.scope.cancel()
            assert await second.failure() is None
        assert np.array_equal(await second.result(ROW), 2 * ROW)


def heavy() -> Model:
    """16 MiB of weights."""
    builder = nn.ModelBuilder("heavy")
    x = builder.input("x", (1, 2048))
    weights = np.random.default_rng(0).standard_normal((2048, 2048)).astype(np.float32)
    builder.output("y", builder.fully_connected(x, weights, np.zeros(2048, np.float32)))
    return builder.build()


async def test_weights_are_there_once() -> None:
    async with runtime(REFERENCE, options=POOL) as rt:
        model = heavy()
        nets = [await rt.compile(model, priority=each) for each in Priority]
        assert len({id(plan_of(net)) for net in nets}) == 1
        row = np.ones((1, 2048), np.float32)
        found = [await net(row) for net in nets]
        assert all(np.array_equal(each, found[0]) for each in found)
