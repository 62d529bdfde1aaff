"""Timings of executions: what they include, that they come only if asked for, on every path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import nnasync as nn
from nnasync._core.clock import now_ns
from nnasync._core.drivers.null import NullEngine
from nnasync.fences import Fence
from nnasync.hal import NOT_AVAILABLE, ExecutionConfig, Timing
from tests.rigs import INLINE, POOL, ROW, attempt, compiled, double, doubler, gated, runtime

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
]

Path = Callable[..., Awaitable[Timing]]
ALONE = nn.Options(cores=1, inline_budget_us=0, competition_budget_ms=0, aging_ms=1e9)
both = pytest.mark.parametrize("options", [POOL, INLINE], ids=["worker", "inline"])


async def call(net: nn.Net, *, measure: bool) -> Any:
    assert measure
    return (await net.measured(ROW)).timing


async def launch(net: nn.Net, **options: Any) -> Any:
    launched = await net.launch(ROW, **options)
    await launched.fence
    info = await launched.info()
    assert info.timing_fenced.time_on_device_ns == info.timing_launched.time_on_device_ns
    assert info.timing_fenced.time_in_driver_ns <= info.timing_launched.time_in_driver_ns
    return info.timing_launched


async def burst(net: nn.Net, *, measure: bool) -> Any:
    assert measure
    async with net.burst() as stream:
        return (await stream.measured(ROW)).timing


async def hal(net: nn.Net, **options: Any) -> Any:
    result = await net._prepared.execute(net._slots.take().request, ExecutionConfig(**options))
    assert result.output_shapes[0].dimensions == ROW.shape
    assert result.output_shapes[0].is_sufficient
    return result.timing


async def synchronous(net: nn.Net, **options: Any) -> Any:
    result = await net._prepared.execute_synchronously(
        net._slots.take().request, ExecutionConfig(**options)
    )
    assert result.output_shapes[0].dimensions == ROW.shape
    return result.timing


PATHS: dict[str, Path] = {
    "call": call,
    "launch": launch,
    "burst": burst,
    "execute": hal,
    "execute_synchronously": synchronous,
}
each_path = pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)


@both
@each_path
async def test_driver_time_holds_device_time(path: Path, options: nn.Options) -> None:
    async with runtime(NullEngine(compute=double), options=options) as rt:
        net = await compiled(rt, doubler(), options)
        began_ns = now_ns()
        timing = await path(net, measure=True)
        passed_ns = now_ns() - began_ns
        assert 0 <= timing.time_on_device_ns <= timing.time_in_driver_ns <= passed_ns


@both
@pytest.mark.parametrize("path", [launch, hal, synchronous])
async def test_off_means_not_available(path: Path, options: nn.Options) -> None:
    assert NOT_AVAILABLE == 2**64 - 1
    async with runtime(NullEngine(compute=double), options=options) as rt:
        net = await compiled(rt, doubler(), options)
        assert await path(net) == Timing(NOT_AVAILABLE, NOT_AVAILABLE)


@each_path
async def test_device_time_includes_preemption(path: Path) -> None:
    """LOW begins, HIGH takes its core, and LOW's time goes on while it is away."""
    engine = gated(steps=2)
    async with runtime(engine, options=ALONE) as rt, anyio.create_task_group() as group:
        low = await rt.compile(doubler(), priority=nn.Priority.LOW)
        high = await rt.compile(doubler("urgent"), priority=nn.Priority.HIGH)
        slow = await attempt(group, lambda: path(low, measure=True))
        await engine.when(lambda now: now.waiting == 1)
        urgent = await attempt(group, lambda: call(high, measure=True))
        await engine.when(lambda now: now.waiting == 2)
        from_ns = now_ns()
        # One step of LOW, which has been told to yield after it, and both of HIGH.
        engine.gate.open(3)
        await urgent.done.wait()
        assert not slow.done.is_set()
        until_ns = now_ns()
        engine.gate.open_wide()
        await slow.done.wait()
        assert rt.statistics().workers.preemptions == 1
        assert slow.result.time_on_device_ns >= until_ns - from_ns
        assert slow.result.time_on_device_ns > urgent.result.time_on_device_ns


async def test_driver_time_includes_the_queue() -> None:
    engine = gated()
    async with runtime(engine, options=ALONE) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        first = await attempt(group, lambda: call(net, measure=True))
        await engine.when(lambda now: now.waiting == 1)
        second = await attempt(group, lambda: call(net, measure=True))
        queued_ns = now_ns()
        engine.gate.open()
        await first.done.wait()
        waited_ns = now_ns() - queued_ns
        engine.gate.open()
        await second.done.wait()
        assert second.result.time_in_driver_ns >= waited_ns


async def test_fenced_time_begins_at_the_last_fence() -> None:
    async with runtime(NullEngine(compute=double)) as rt:
        net = await rt.compile(doubler())
        fence = Fence()
        launched = await net.launch(ROW, wait_for=[fence], measure=True)
        held_ns = now_ns()
        while now_ns() == held_ns:
            pass
        fence.signal()
        await launched.fence
        info = await launched.info()
        away_ns = info.timing_launched.time_in_driver_ns - info.timing_fenced.time_in_driver_ns
        assert away_ns > 0
        assert info.timing_launched.time_on_device_ns == info.timing_fenced.time_on_device_ns
